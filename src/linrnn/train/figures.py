"""Figures that can be read in grey, saved as PNG, as SVG and as the numbers in them."""

import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from linrnn._options.numbers import counted
from linrnn.errors import ArgumentError, MissingExtraError
from linrnn.train.checkpoint import write_atomically
from linrnn.train.drawn import drawn
from linrnn.train.folder import PLOT_ENDINGS
from linrnn.train.styles import styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = tuple[float, float, float]
"""x, mean, and the standard error of the mean: NaN where there is none."""

_MOST_TICKS = 12
_ENTRY_HEIGHT = 0.25  # inches of a line of a legend below the plot
_LEGEND_WIDTH = 90  # letters that a line of a legend has room for
_FAR = 10.0  # interquartile ranges beyond the middle half: further out is not drawn
_FEW = 12  # points of which no quartiles are taken
_POSITION, _LOSS = "position in the window (tokens)", "loss (nats per token)"


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


def save(figure: "Figure", path: Path) -> list[Path]:
    """Write a figure as ``path.png`` and ``path.svg``, and its numbers as ``path.drawn.csv``.

    Each file is there whole or not at all. The same figure gives the same bytes: the files hold
    neither a date nor a random name. See `linrnn.train.drawn.drawn` for the columns of the
    numbers.

    Args:
        figure: to write.
        path: without an ending.

    Returns:
        What was written, the numbers last; pictures alone have none.
    """
    from matplotlib import rc_context

    _settle(figure)
    png, svg, numbers = PLOT_ENDINGS
    files: list[Path] = []
    for ending, metadata in ((png, {}), (svg, {"Date": None})):
        data = io.BytesIO()
        with rc_context({"svg.hashsalt": "linrnn"}):
            figure.savefig(data, format=ending, dpi=130, metadata=metadata)
        files.append(path.with_name(f"{path.name}.{ending}"))
        write_atomically(files[-1], data.getvalue())
    table = drawn(figure)
    if table:
        files.append(path.with_name(f"{path.name}.{numbers}"))
        write_atomically(files[-1], table)
    return files


def _settle(figure: "Figure") -> None:
    """Lay a figure out once and for all, in places of few digits.

    The solver behind the layout takes its constraints in the order of objects in memory. So places
    of several axes differed in their last digits, and with them names in an SVG.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (round(x, 6) for x in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))


def over_seeds(counts: Iterable[int]) -> str:
    """Word how many seeds the means of a figure are over, and that one is no mean.

    Args:
        counts: of seeds, of each row that is drawn.

    Example:
        >>> over_seeds([3, 3]), over_seeds([1]), over_seeds([1, 3])
        ('mean over 3 seeds', 'one seed', 'mean over 1 to 3 seeds')
    """
    every = sorted(set(counts)) or [1]
    if every == [1]:
        return "one seed"
    number = f"{every[0]}" if len(every) == 1 else f"{every[0]} to {every[-1]}"
    return f"mean over {number} seeds"


def metric_scale(metric: str) -> tuple[float, str]:
    """The factor by which a task's metric is shown, and its unit in parentheses.

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
    legend_below(figure, axes)
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
        label = f"trained on {counted(trained, 'step')}"
        axes.axvline(trained, color="0.35", linestyle=(0, (5, 2)), linewidth=1, label=label)
    axes.set(title=title)
    legend_below(figure, axes)
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
    figure, axes = _lines(series, 1.0)
    _position_axis(axes)
    if trained is not None:
        label = f"trained on {counted(trained, 'token')}"
        axes.axvline(trained, color="0.35", linestyle=(0, (5, 2)), linewidth=1, label=label)
    axes.set(xlabel=_POSITION, ylabel=_LOSS, title=title)
    legend_below(figure, axes)
    return figure


def losses_against_position(
    panels: Mapping[tuple[str, str], Mapping[str, Sequence[Point]]], *, title: str = ""
) -> "Figure":
    """Panels of `loss_against_position` that share both axes, and the look of each label.

    Args:
        panels: series by what the panels of a row have in common, and those of a column. A panel
            of the grid that is not among them, or has no series, stays empty.
        title: above all; should say what the standard errors are over.

    Raises:
        ArgumentError: there is nothing to draw.
    """
    if not any(points for series in panels.values() for points in series.values()):
        raise ArgumentError("a plot must have at least one point, got none.")
    rows, columns = (list(dict.fromkeys(place)) for place in zip(*panels, strict=True))
    figure = new_figure(0.8 + 3.2 * len(columns), 0.8 + 2.7 * len(rows))
    grid = figure.subplots(len(rows), len(columns), sharex=True, sharey=True, squeeze=False)
    looks = styles(list(dict.fromkeys(label for series in panels.values() for label in series)))
    for (row, column), series in panels.items():
        axes = grid[rows.index(row)][columns.index(column)]
        draw_lines(axes, series, 1.0, looks)
        axes.set_title(f"{column}, {row}")
    for row_of_axes in grid:
        row_of_axes[0].set_ylabel(_LOSS)
    for axes in grid[-1]:
        axes.set_xlabel(_POSITION)
    _position_axis(grid[0][0])
    figure.suptitle(title)
    legend_below(figure, *grid.flat)
    return figure


def _position_axis(axes: "Axes") -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())


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
    legend_below(figure, axes)
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
    draw_lines(axes, series, scale, styles(list(series)))
    return figure, axes


def draw_lines(
    axes: "Axes",
    series: Mapping[str, Sequence[Point]],
    scale: float,
    looks: Mapping[str, Mapping[str, Any]],
) -> None:
    """Each series as a line with the look of its label, and error bars where there are errors."""
    for label, points in series.items():
        x, y, errors = ([p[k] for p in sorted(points)] for k in range(3))
        bars = [scale * e if math.isfinite(e) else 0.0 for e in errors]
        look = {**looks[label], **({"yerr": bars, "capsize": 3} if any(bars) else {})}
        axes.errorbar(x, [scale * v for v in y], label=label, **look)
    axes.grid(alpha=0.3)


def legend_below(figure: "Figure", *axes: "Axes") -> None:
    """One legend for all axes, below them where it hides nothing, the figure made higher for it.

    The series come first, then the lines that they are compared with.
    """
    handles: dict[str, Any] = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    order = sorted(handles, key=lambda label: _is_reference(handles[label]))
    if not order:
        return
    longest = max(map(len, order)) + 8  # with the line before it
    room = _LEGEND_WIDTH * figure.get_figwidth() / 7.2
    columns = max(1, min(len(order), int(room / longest)))
    rows = math.ceil(len(order) / columns)
    figure.set_figheight(figure.get_figheight() + _ENTRY_HEIGHT * rows)
    figure.legend(
        [handles[label] for label in order], order, loc="outside lower center", ncols=columns
    )


def _is_reference(handle: Any) -> bool:
    """Whether it is a line without a marker, as chance is."""
    return hasattr(handle, "get_marker") and handle.get_marker() in ("None", "", None)


def clip_outliers(axes: "Axes", better: Literal["low", "high"] | None = None) -> None:
    """Leave out of sight what lies far beyond all else, and say so below the x axis.

    Far is more than 10 interquartile ranges above or below the middle half of all points, on the
    scale of the axis. The last thing to be done to axes that have their scale and their labels.

    Args:
        axes: of lines.
        better: on which side results are good: where few of many rows learn anything, what lies far
            out on it is what the picture is of, and stays.
    """
    lines = [x for x in axes.lines if x.get_transform() == axes.transData]
    drawn_at: Any = [y for x in lines for y in np.asarray(x.get_ydata())]
    values = sorted(float(y) for y in drawn_at if math.isfinite(y))
    log = axes.get_yscale() == "log"
    scaled = [math.log10(y) if log else y for y in values if y > 0 or not log]
    if len(scaled) < _FEW:
        return
    low, _, high = statistics.quantiles(scaled, n=4)
    reach = _FAR * (high - low)
    bottom = -math.inf if better == "low" else low - reach
    top = math.inf if better == "high" else high + reach
    near = [y for y in scaled if bottom <= y <= top]
    words = [
        f"{len(far)} point{'s' if len(far) > 1 else ''} {side} {_end(end, log)} not shown, "
        f"up to {_end(far[index], log)}"
        for side, far, end, index in (
            ("above", [y for y in scaled if y > top], near[-1], -1),
            ("below", [y for y in scaled if y < bottom], near[0], 0),
        )
        if far
    ]
    if not words or reach == 0:
        return
    margin = 0.05 * (near[-1] - near[0])
    ends = near[0] - margin, near[-1] + margin
    axes.set_ylim(*(10**end if log else end for end in ends))
    axes.set_xlabel("\n".join([axes.get_xlabel(), *words]))


def _end(value: float, log: bool) -> str:
    return f"{10**value if log else value:.3g}"


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
    ticks = sorted({x for points in series.values() for x, _, _ in points})
    return ticks[:: -(-len(ticks) // _MOST_TICKS)]
