"""Sets of labelled sequences from a user's file: .ts of the UEA archive, .npz, .csv."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from linrnn._door import what_is
from linrnn._numbers import is_name, number
from linrnn.errors import DataError
from linrnn.tasks._files import read_packed
from linrnn.tasks._numpy import DAMAGED, open_numpy
from linrnn.tasks._table import filled_lines, split_row

SUFFIXES = (".ts", ".npz", ".csv")


class Series(NamedTuple):
    """Sequences, each (time, channels), and what is asked about each, as it was written."""

    x: list[np.ndarray]
    y: list[str]


class Layout(NamedTuple):
    """How a .csv file is laid out."""

    channels: int
    label_first: bool
    labelled: bool = True
    """Whether there must be labels; without, a .csv row has none, other files may."""


def read_series(path: Path, layout: Layout) -> dict[str, Series]:
    """The parts of a file: "train" and "test" where it says so, else "train" alone.

    Raises:
        DataError: the file is missing, damaged, of another kind, empty, or has sequences of
            different channels, or numbers that are missing or not finite.
    """
    kind = Path(path.name.removesuffix(".gz").removesuffix(".xz")).suffix.lower()
    if kind not in SUFFIXES:
        raise DataError(
            f"{path}: the file name must end in one of {', '.join(SUFFIXES)} (.csv and .ts also "
            f"packed: .gz, .xz), got {path.suffix!r}."
        )
    if not path.is_file():
        raise DataError(f"{path}: the data file must exist, got {what_is(path)}. Check the path.")
    if kind == ".npz":
        parts = _read_npz(path, layout.labelled)
    else:
        lines = [(n, line.strip()) for n, line in filled_lines(path, read_packed(path, "text"))]
        parse = _parse_ts if kind == ".ts" else _parse_csv
        series = parse(path, lines, layout)
        parts = {"train": series}
    for series in parts.values():
        _check(path, series)
    return parts


def _check(path: Path, series: Series) -> None:
    if not series.x:
        raise DataError(f"{path}: the file must hold at least one sequence, got none.")
    channels = series.x[0].shape[1]
    if not channels:
        raise DataError(f"{path}: a sequence must have a channel, got none in sequence 1.")
    for place, x in enumerate(series.x, 1):
        if not len(x):
            raise DataError(f"{path}: a sequence must have a step, got none in sequence {place}.")
        if x.shape[1] != channels:
            raise DataError(
                f"{path}: each sequence must have {channels} channels as the first, got "
                f"{x.shape[1]} in sequence {place}."
            )
        bad = np.argwhere(~np.isfinite(x))
        if len(bad):
            step, channel = bad[0]
            raise DataError(
                f"{path}: values must be finite, got {x[step, channel]} in sequence {place}, "
                f"step {step + 1}, channel {channel + 1}. Remove or fill such values."
            )


def _parse_ts(path: Path, lines: list[tuple[int, str]], layout: Layout) -> Series:
    """Dimensions are separated by colons, values by commas; what is asked comes last."""
    lines = [(n, line) for n, line in lines if not line.startswith("#")]
    start = next((i for i, (_, v) in enumerate(lines) if v.lower() == "@data"), None)
    if start is None:
        raise DataError(f"{path}: the file must have a line '@data', got none. Is it truncated?")
    words = [line.split() for _, line in lines[:start]]
    header = {w[0].lower(): w[1:] for w in words}
    if (header.get("@timestamps") or ["false"])[0].lower() == "true":
        raise DataError(f"{path}: a .ts file must be without time stamps, got some. Resample it.")
    labels = header.get("@classlabel") or header.get("@targetlabel") or ["false"]
    has_labels = labels[0].lower() == "true"
    if layout.labelled and not has_labels:
        raise DataError(f"{path}: the file must have class or target labels, got none.")
    x, y = [], []
    for place, line in lines[start + 1 :]:
        *dimensions, label = line.split(":") if has_labels else [*line.split(":"), ""]
        columns = [_numbers(path, place, values.split(",")) for values in dimensions]
        if not columns or len({len(column) for column in columns}) > 1:
            raise DataError(
                f"{path}: the dimensions of a sequence must be equally long, got "
                f"{[len(column) for column in columns]} in line {place}. Is it truncated?"
            )
        if layout.labelled and labels[1:] and label.strip() not in labels[1:]:
            raise DataError(
                f"{path}: a label must be one of {', '.join(labels[1:])}, got "
                f"{label.strip()[:40]!r} in line {place}. Is it truncated?"
            )
        x.append(np.stack(columns, 1))
        y.append(label.strip())
    return Series(x, y)


def _parse_csv(path: Path, lines: list[tuple[int, str]], layout: Layout) -> Series:
    """A row is a sequence, step after step, and what is asked; trailing empty cells are left out.

    A first row that is of names alone is passed over.
    """
    rows = [split_row(path, place, line) for place, line in lines]
    names = [cell for cell in rows[0] if cell.strip()] if rows else []
    if names and all(map(is_name, names)):
        lines, rows = lines[1:], rows[1:]
    x, y = [], []
    for (place, _), cells in zip(lines, rows, strict=True):
        cells = [cell.strip() for cell in cells]
        label, values = "", cells
        if layout.labelled:
            label, values = _cut(cells, 0 if layout.label_first else len(cells) - 1)
        while values and not values[-1]:
            values.pop()
        if len(values) % layout.channels or (layout.labelled and not label):
            about = "a label and " if layout.labelled else ""
            raise DataError(
                f"{path}: a row must hold {about}steps of {layout.channels} numbers, got "
                f"{len(values)} numbers{about and f' and the label {label!r}'} in line {place}."
            )
        x.append(_numbers(path, place, values).reshape(-1, layout.channels))
        y.append(label)
    return Series(x, y)


def _cut(cells: list[str], place: int) -> tuple[str, list[str]]:
    return cells[place], cells[:place] + cells[place + 1 :]


def _numbers(path: Path, line: int, cells: list[str]) -> np.ndarray:
    values = [number(cell) for cell in cells]
    if None in values:
        bad = cells[values.index(None)]
        raise DataError(
            f"{path}: values must be numbers, got {bad!r:.60} in line {line}. Fill what is missing."
        )
    return _single(np.array(values, np.float64))


def _single(values: np.ndarray) -> np.ndarray:
    """Values as float32; what that cannot hold becomes infinite, which is refused later."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _read_npz(path: Path, labelled: bool) -> dict[str, Series]:
    """Arrays x, y and, if rows are padded, lengths; or each with _train and _test.

    Without labels: x, or a single array of any name, and lengths.
    """
    try:
        with open_numpy(path) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except DAMAGED as error:
        raise DataError(
            f"{path}: the file must be a complete .npz archive of numbers, got: {error}. "
            "Save it again with numpy.savez(path, x=..., y=...)."
        ) from error
    if not labelled:
        return {"train": _unlabelled(path, arrays)}
    if {"x_train", "y_train"} <= set(arrays):
        found = {"train": "_train"} | ({"test": "_test"} if "x_test" in arrays else {})
    elif {"x", "y"} <= set(arrays):
        found = {"train": ""}
    else:
        raise DataError(
            f"{path}: the archive must hold x and y, or x_train, y_train, x_test and y_test, got "
            f"{', '.join(arrays) or 'nothing'}."
        )
    return {part: _of_arrays(path, arrays, end) for part, end in found.items()}


def _unlabelled(path: Path, arrays: dict[str, np.ndarray]) -> Series:
    if len(arrays) == 1:
        arrays = {"x": next(iter(arrays.values()))}
    if "x" not in arrays:
        raise DataError(
            f"{path}: the archive must hold x, and lengths if rows are padded, got "
            f"{', '.join(arrays) or 'nothing'}."
        )
    return _of_arrays(path, arrays | {"y": np.zeros(arrays["x"].shape[:1])}, "")


def _of_arrays(path: Path, arrays: dict[str, np.ndarray], end: str) -> Series:
    x, y = arrays[f"x{end}"], arrays.get(f"y{end}", np.zeros(0))
    lengths = arrays.get(f"lengths{end}")
    if x.ndim not in (2, 3) or x.dtype.kind not in "biuf":
        raise DataError(
            f"{path}: x{end} must be real numbers (sequences, time) or (sequences, time, "
            f"channels), got {x.dtype} {x.shape}."
        )
    if y.shape != x.shape[:1] or y.dtype.kind not in "biufU":
        raise DataError(f"{path}: y{end} must be numbers or words ({len(x)},), got {y.shape}.")
    if lengths is None:
        lengths = np.full(len(x), x.shape[1])
    fits = lengths.shape == y.shape and lengths.dtype.kind in "iu"
    if not fits or (len(x) and not (lengths.min() >= 1 and lengths.max() <= x.shape[1])):
        raise DataError(
            f"{path}: lengths{end} must be {len(x)} integers of 1 to {x.shape[1]}, got "
            f"{lengths.dtype} {lengths.shape}."
        )
    x = _single(x).reshape(*x.shape[:2], *(x.shape[2:] or (1,)))
    rows = [row[:length] for row, length in zip(x, lengths, strict=True)]
    return Series(rows, [str(value) for value in y.tolist()])
