"""One look for all plots, that of the library: grey paper is enough to tell lines apart."""

from collections.abc import Mapping, Sequence

import matplotlib

from _report import ASSETS
from linrnn.train.styles import COLOURS as COLOURS
from linrnn.train.styles import styles

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def figure(panels: int, shared: bool = False) -> tuple[Figure, Sequence[Axes]]:
    """Panels side by side, with both axes logarithmic; ``shared``: the upright one is the same."""
    plt.rcParams.update({"font.size": 9, "svg.hashsalt": "linrnn"})
    made, axes = plt.subplots(
        1,
        panels,
        figsize=(4.6 * panels, 4.0),
        layout="constrained",
        squeeze=False,
        sharey=shared,
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
    """Lines by name: a system looks as everywhere, others the same with the same ``order``."""
    looks = styles(order)
    for name, (x, y) in lines.items():
        ax.plot(x, y, label=name, **looks[name])


def save(made: Figure, axes: Sequence[Axes], name: str, columns: int) -> None:
    """Add one legend below all panels; write a PNG and an SVG."""
    legends = (ax.get_legend_handles_labels() for ax in axes)
    entries = {t: h for handles, texts in legends for h, t in zip(handles, texts, strict=True)}
    made.legend(entries.values(), entries, loc="outside lower center", ncols=columns, frameon=False)
    ASSETS.mkdir(parents=True, exist_ok=True)
    made.savefig(ASSETS / f"{name}.png", dpi=150)
    made.savefig(ASSETS / f"{name}.svg", metadata={"Date": None})
    plt.close(made)
