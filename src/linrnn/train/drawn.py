"""A figure as a table: every point of its lines, bars and images."""

import csv
import io
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEAD = ("panel", "series", "x", "y", "error", "value")
_UNNAMED = "_child"  # begins the label that matplotlib gives to what has none

Point = tuple[str, Any, Any, Any, Any]
"""Series, x, y, error and value; None where there is none."""


def drawn(figure: "Figure") -> bytes:
    """The numbers of a figure as CSV, in the order in which they were drawn.

    ``panel`` is the title of the axes, or their number. ``series`` is the label of a line, whether
    a legend shows it or not: a label that begins with "_" is in no legend. ``error`` is half the
    length of an error bar. A line across the whole panel has no x, or no y. ``value`` is that of a
    cell of an image, whose column and row are x and y; pictures, which have no label, are left out.

    Returns:
        Numbers with six digits; cells are empty where there is none. No bytes for pictures alone.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for number, axes in enumerate(figure.axes, 1):
        panel = axes.get_title() or str(number)
        for series, *numbers in _points(axes):
            if not text.tell():
                writer.writerow(HEAD)
            writer.writerow((panel, series, *map(_text, numbers)))
    return text.getvalue().encode()


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return "" if math.isnan(value) else f"{value:.6g}"


def _points(axes: "Axes") -> Iterator[Point]:
    from matplotlib.container import BarContainer, ErrorbarContainer

    parts: set[int] = set()  # of error bars: neither lines nor bars of their own
    errors: dict[int, list[float]] = {}
    names: dict[int, str] = {}
    for container in axes.containers:
        if isinstance(container, ErrorbarContainer):
            line, caps, bars = container.lines
            parts |= {id(part) for part in (*caps, *bars)}
            if line is not None:
                names[id(line)] = str(container.get_label())
                errors[id(line)] = [e for bar in bars for e in _half(bar)]
        elif isinstance(container, BarContainer):
            yield from _bars(container)
    for index, line in enumerate(axes.lines):
        if id(line) not in parts and not _is_frame(axes, line):
            name = _name(names.get(id(line), str(line.get_label())), f"line {index + 1}")
            yield from _line(axes, line, name, errors.get(id(line), []))
    for index, collection in enumerate(axes.collections):
        if id(collection) not in parts:
            yield from _collection(
                collection, _name(str(collection.get_label()), f"points {index + 1}")
            )
    for image in axes.images:
        yield from _image(image)


def _is_frame(axes: "Axes", line: Any) -> bool:
    """Whether a line is like an axis: without a name, and without data."""
    return line.get_transform() != axes.transData and str(line.get_label()).startswith(_UNNAMED)


def _name(label: str, else_: str) -> str:
    return else_ if label.startswith(_UNNAMED) else label.removeprefix("_")


def _half(bars: Any) -> list[float]:
    """Half the length of each error bar, upright or not."""
    return [float(np.abs(bar[-1] - bar[0]).max()) / 2 for bar in bars.get_segments()]


def _line(axes: "Axes", line: Any, name: str, errors: list[float]) -> Iterator[Point]:
    x, y = np.atleast_1d(line.get_xdata()), np.atleast_1d(line.get_ydata())
    if line.get_transform() == axes.get_yaxis_transform(which="grid"):
        yield name, None, float(y[0]), None, None
    elif line.get_transform() == axes.get_xaxis_transform(which="grid"):
        yield name, float(x[0]), None, None, None
    else:
        bars = errors or [math.nan] * len(x)
        for a, b, error in zip(x, y, bars, strict=True):
            yield name, float(a), float(b), error or None, None


def _bars(container: Any) -> Iterator[Point]:
    name = str(container.get_label()).removeprefix("_")
    bar = container.errorbar
    errors = [e for part in bar.lines[2] for e in _half(part)] if bar else []
    for i, patch in enumerate(container.patches):
        error = errors[i] if errors else None
        yield name, patch.get_x() + patch.get_width() / 2, patch.get_height(), error or None, None


def _collection(collection: Any, name: str) -> Iterator[Point]:
    """Points of a scatter, or the outline of an area."""
    offsets = np.ma.getdata(collection.get_offsets())
    areas = [path.vertices for path in collection.get_paths()]
    for points in [offsets] if len(offsets) and np.any(offsets) else areas:
        yield from ((name, float(x), float(y), None, None) for x, y in points)


def _image(image: Any) -> Iterator[Point]:
    cells = np.asarray(image.get_array())
    name = str(image.get_label())
    if cells.ndim != 2 or name.startswith(_UNNAMED) or not name:
        return
    for row, column in np.ndindex(cells.shape):
        yield name, float(column), float(row), None, float(cells[row, column])
