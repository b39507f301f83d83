"""One look for all plots: told apart by marker and dash, so grey paper is enough."""

from collections.abc import Mapping, Sequence

import matplotlib

from _report import ASSETS

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

#: Colours differ in lightness as well as in hue.
_STYLES = (
    ("#000000", "o", "-"),
    ("#0072b2", "s", "--"),
    ("#d55e00", "^", "-."),
    ("#009e73", "v", ":"),
    ("#cc79a7", "D", (0, (5, 1))),
    ("#7f7f7f", "P", (0, (3, 1, 1, 1))),
    ("#e69f00", "X", (0, (1, 1))),
    ("#56b4e9", "<", (0, (6, 2, 1, 2))),
    ("#4d4d4d", ">", (0, (2, 2))),
    ("#a6761d", "*", (0, (4, 1, 1, 1, 1, 1))),
    ("#b0b0b0", "h", "-"),
)


def figure(panels: int) -> tuple[Figure, Sequence[Axes]]:
    """Panels side by side, with both axes logarithmic."""
    plt.rcParams.update({"font.size": 9, "svg.hashsalt": "linrnn"})
    made, axes = plt.subplots(
        1, panels, figsize=(4.6 * panels, 4.0), layout="constrained", squeeze=False
    )
    for ax in axes[0]:
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.grid(True, which="major", color="#dddddd", linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
    return made, axes[0]


def draw(
    ax: Axes, lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], order: Sequence[str]
) -> None:
    """Lines by name; a name looks the same wherever it has the same place in ``order``."""
    for name, (x, y) in lines.items():
        colour, marker, dash = _STYLES[order.index(name) % len(_STYLES)]
        ax.plot(x, y, color=colour, marker=marker, linestyle=dash, markersize=4.5, label=name)


def save(made: Figure, axes: Sequence[Axes], name: str, columns: int) -> None:
    """Add one legend below all panels; write a PNG and an SVG."""
    legends = (ax.get_legend_handles_labels() for ax in axes)
    entries = {t: h for handles, texts in legends for h, t in zip(handles, texts, strict=True)}
    made.legend(entries.values(), entries, loc="outside lower center", ncols=columns, frameon=False)
    ASSETS.mkdir(parents=True, exist_ok=True)
    made.savefig(ASSETS / f"{name}.png", dpi=150)
    made.savefig(ASSETS / f"{name}.svg", metadata={"Date": None})
    plt.close(made)
