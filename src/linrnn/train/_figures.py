"""Figures that can be read in grey: lines told apart by dash and marker, saved as PNG and SVG."""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linrnn.errors import ArgumentError, MissingExtraError
from linrnn.train._checkpoint import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = tuple[float, float, float]
"""x, mean, and the standard error of the mean: NaN where there is none."""

_STYLES = ("-", "--", "-.", ":")
_MARKERS = "osD^vP*X<>"
_SHADES = 5
_LIGHTEST = 0.75  # of viridis, whose last quarter is too light on paper
_MOST_TICKS = 12
_MOST_INSIDE = 5  # entries of a legend that still leave room for what is drawn
_ENTRY_HEIGHT = 0.25  # inches of a line of a legend below the plot


def new_figure(width: float = 7.2, height: float = 4.4) -> "Figure":
    """An empty figure, in inches.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("drawing a plot", "matplotlib", "train") from error
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: "Figure", path: Path) -> None:
    """Write a figure as ``path.png`` and ``path.svg``, each of them whole or not at all.

    The same figure gives the same bytes: the files hold neither a date nor a random name.

    Args:
        figure: to write.
        path: without an ending.
    """
    from matplotlib import rc_context

    for ending, metadata in (("png", {}), ("svg", {"Date": None})):
        data = io.BytesIO()
        with rc_context({"svg.hashsalt": "linrnn"}):
            figure.savefig(data, format=ending, dpi=130, metadata=metadata)
        write_atomically(path.with_name(f"{path.name}.{ending}"), data.getvalue())


def line(index: int) -> dict[str, Any]:
    """How the n-th line is drawn: told apart by dash and marker, also in grey.

    The first twenty differ.
    """
    from matplotlib import colormaps

    return {
        "color": colormaps["viridis"](_LIGHTEST * (index % _SHADES) / (_SHADES - 1)),
        "linestyle": _STYLES[index % len(_STYLES)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "markersize": 4.5,
        "linewidth": 1.6,
    }


def dense_line(index: int) -> dict[str, Any]:
    """`line` for many points: a marker here and there, at places that differ between lines."""
    return line(index) | {"markevery": (0.02 + 0.015 * (index % 8), 0.16)}


def metric_scale(metric: str) -> tuple[float, str]:
    """What a task's metric is multiplied with to be shown, and its unit in parentheses.

    Example:
        >>> metric_scale("accuracy"), metric_scale("mse")
        ((100.0, ' (%)'), (1.0, ''))
    """
    return (100.0, " (%)") if metric == "accuracy" else (1.0, "")


def spans_decades(values: Sequence[float]) -> bool:
    """Whether values are best drawn as logarithms: positive, the largest over 10 of the least."""
    return bool(values) and min(values) > 0 and max(values) > 10 * min(values)


def metric_against_depth(
    series: Mapping[str, Sequence[Point]],
    *,
    metric: str,
    chance: float | None = None,
    title: str = "",
) -> "Figure":
    """A test metric against the number of layers, a line for each label.

    Args:
        series: points (layers, mean, standard error) of each label. Values are those of the task:
            an accuracy is in [0, 1] and is shown in per cent.
        metric: its name, as `Task.metric`.
        chance: metric of guessing, drawn as a line; None leaves it out.
        title: above the plot; should say what the standard errors are over.

    Raises:
        ArgumentError: there is nothing to draw.

    Example:
        >>> figure = metric_against_depth({"mingru": [(1, 0.37, 0.02), (2, 0.9, 0.01)]},
        ...     metric="accuracy", chance=1 / 14)
        >>> figure.axes[0].get_ylabel()
        'test accuracy (%)'
    """
    figure, axes = _metric(series, metric, chance)
    axes.set_xticks(_thinned(series))
    axes.set(xlabel="depth (layers)", title=title)
    _legend(figure, axes)
    return figure


def metric_against_length(
    series: Mapping[str, Sequence[Point]],
    *,
    metric: str,
    chance: float | Mapping[int, float] | None = None,
    trained: int | None = None,
    title: str = "",
) -> "Figure":
    """A test metric against the length of the test sequences, which is drawn as a logarithm.

    Args:
        series, metric, title: as of `metric_against_depth`, with (steps, mean, error).
        chance: metric of guessing, for all lengths or by the length.
        trained: steps of the training sequences, marked by an upright line; None leaves it out.

    Raises:
        ArgumentError: there is nothing to draw.
    """
    figure, axes = _metric(series, metric, chance)
    _length_axis(axes, series)
    if trained is not None:
        label = f"trained on {trained:,} steps"
        axes.axvline(trained, color="0.35", linestyle=(0, (5, 2)), linewidth=1, label=label)
    axes.set(title=title)
    _legend(figure, axes)
    return figure


def loss_against_position(
    series: Mapping[str, Sequence[Point]],
    *,
    trained: int | None = None,
    title: str = "",
) -> "Figure":
    """Loss per token against how much of a window was read, which is drawn as a logarithm.

    Args:
        series: points (position, nats, standard error) of each label.
        trained: tokens of the training windows, marked by an upright line; None leaves it out.
        title: above the plot; should say what the standard errors are over.

    Raises:
        ArgumentError: there is nothing to draw.
    """
    from matplotlib.ticker import FuncFormatter, NullLocator

    figure, axes = _lines(series, 1.0)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    if trained is not None:
        label = f"trained on {trained:,} tokens"
        axes.axvline(trained, color="0.35", linestyle=(0, (5, 2)), linewidth=1, label=label)
    axes.set(xlabel="position in the window (tokens)", ylabel="loss (nats per token)", title=title)
    _legend(figure, axes)
    return figure


def time_against_length(
    series: Mapping[str, Sequence[Point]],
    *,
    what: str = "time",
    title: str = "",
) -> "Figure":
    """Seconds against the length of a sequence, both as logarithms.

    Args:
        series: points (steps, seconds, standard error) of each label.
        what: was timed; the label of the axis, whose ticks carry the unit.
        title: above the plot; should say what the standard errors are over.

    Raises:
        ArgumentError: there is nothing to draw, or a time is not above 0.
    """
    from matplotlib.ticker import EngFormatter, NullFormatter

    if any(not y > 0 for points in series.values() for _, y, _ in points):
        raise ArgumentError("time_against_length: times must be above 0 s, got one that is not.")
    figure, axes = _lines(series, 1.0)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(EngFormatter(unit="s"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    _length_axis(axes, series)
    axes.set(ylabel=what, title=title)
    _legend(figure, axes)
    return figure


def _metric(
    series: Mapping[str, Sequence[Point]],
    metric: str,
    chance: float | Mapping[int, float] | None,
) -> tuple["Figure", "Axes"]:
    scale, unit = metric_scale(metric)
    figure, axes = _lines(series, scale)
    if chance is not None:
        level: dict[str, Any] = {"color": "0.5", "linestyle": ":", "label": "chance"}
        if isinstance(chance, Mapping) and len(set(chance.values())) > 1:
            axes.plot([*chance], [scale * c for c in chance.values()], **level)
        else:
            one = next(iter(chance.values())) if isinstance(chance, Mapping) else chance
            axes.axhline(scale * one, **level)
    axes.set_ylabel(f"test {metric}{unit}")
    values = [y for points in series.values() for _, y, _ in points if math.isfinite(y)]
    if metric == "accuracy":
        axes.set_ylim(-3, 103)
    elif spans_decades(values):
        axes.set_yscale("log")
    return figure, axes


def _lines(series: Mapping[str, Sequence[Point]], scale: float) -> tuple["Figure", "Axes"]:
    """Every series with its error bars."""
    if not any(series.values()):
        raise ArgumentError("a plot must have at least one point, got none.")
    figure = new_figure()
    axes: Axes = figure.subplots()
    for i, (label, points) in enumerate(series.items()):
        x, y, errors = ([p[k] for p in sorted(points)] for k in range(3))
        bars = [scale * e if math.isfinite(e) else 0.0 for e in errors]
        drawn = line(i) | ({"yerr": bars, "capsize": 3} if any(bars) else {})
        axes.errorbar(x, [scale * v for v in y], label=label, **drawn)
    axes.grid(alpha=0.3)
    return figure, axes


def _legend(figure: "Figure", axes: "Axes") -> None:
    """The series first, then what they are compared with; below the plot where there are many."""
    handles, labels = axes.get_legend_handles_labels()
    series = [i for i, handle in enumerate(handles) if not hasattr(handle, "get_xdata")]
    order = series + [i for i in range(len(handles)) if i not in series]
    entries = [handles[i] for i in order], [labels[i] for i in order]
    if len(order) > _MOST_INSIDE:
        figure.set_figheight(figure.get_figheight() + _ENTRY_HEIGHT * math.ceil(len(order) / 2))
        figure.legend(*entries, loc="outside lower center", ncols=2)
    else:
        axes.legend(*entries)


def _length_axis(axes: "Axes", series: Mapping[str, Sequence[Point]]) -> None:
    """Lengths as logarithms to base 2, a tick where something was measured."""
    ticks = _thinned(series)
    long = max(ticks) >= 10_000 and all(math.log2(t).is_integer() for t in ticks)
    words = [f"$2^{{{math.log2(t):.0f}}}$" if long else f"{t:,.0f}" for t in ticks]
    log_axis(axes, ticks, words)
    axes.set_xlabel("length (steps)")


def log_axis(axes: "Axes", ticks: Sequence[float], words: Sequence[str]) -> None:
    """Logarithms to base 2 along x, with these ticks and no others between them."""
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, words)
    axes.xaxis.set_minor_locator(NullLocator())


def _thinned(series: Mapping[str, Sequence[Point]]) -> list[float]:
    """The x at which there are points, every second or third where there are many."""
    found = sorted({x for points in series.values() for x, _, _ in points})
    return found[:: -(-len(found) // _MOST_TICKS)]
