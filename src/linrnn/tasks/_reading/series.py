"""Sets of labelled sequences, one in each row of a user's file.

They are .ts, .tsv and .arff of the UEA and UCR archives, .npz, .csv and .parquet.

SciPy reads .arff. Of .ts aeon 1.6 reads ``(0.0,1.5),(2.0,-2.5)`` as the values 0, 1.5, 2, 2.5,
sktime 1.2 takes stamps that fall, and both a class that was not announced; aeon brings 585 MB and
holds NumPy below 2.4 (by numba), sktime brings 410 MB, and both hold pandas below 3.1.
"""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from linrnn._files.door import what_is
from linrnn._options.numbers import like_number, number
from linrnn.errors import DataError, MissingExtraError
from linrnn.tasks._reading.files import read_packed
from linrnn.tasks._reading.frame import FILL, is_missing, open_frame
from linrnn.tasks._reading.headers import check_names, without_names
from linrnn.tasks._reading.numpy import DAMAGED, ObjectsError, open_numpy
from linrnn.tasks._reading.rows import Lines, filled_lines, numbers_of, split_row, split_rows
from linrnn.tasks._reading.stamps import Kind
from linrnn.tasks._reading.ts_stamps import Stamped, merge, split_pairs

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_COLON = re.compile(r":(?![^(]*\))")  # outside of parentheses
SUFFIXES = (".ts", ".npz", ".csv", ".tsv", ".arff", ".parquet")


class Series(NamedTuple):
    """Sequences, each (time, channels), and what is asked about each, as it was written."""

    x: list[np.ndarray]
    y: list[str]
    gaps: list[np.ndarray] | None = None
    """Time between the steps (time - 1,) of each, in the unit of the stamps, if there are some."""
    ids: list[str] | None = None
    """How the file calls each, where it does."""
    stamps: Kind | None = None
    """How the stamps are written, if there are some."""
    columns: tuple[str, ...] = ()
    """Names of the channels, where a row of the file is a step."""
    label: str = ""
    """How the file calls what is asked, where a row is a sequence and it has names."""


class Layout(NamedTuple):
    """How a .csv file is laid out."""

    channels: int
    label_first: bool
    labelled: bool = True
    """Whether there must be labels; without, a .csv row has none, other files may."""
    missing: bool = False
    """Whether values may be missing; they are NaN."""
    label: str = ""
    """Without labels: what the training file called them; a column of that name is not read."""
    width: int = 0
    """Without labels: numbers of each sequence of the training, if all had as many, else 0."""


def read_series(path: Path, layout: Layout) -> dict[str, Series]:
    """The parts of a file: "train" and "test" where it says so, else "train" alone.

    Raises:
        DataError: the file is missing, damaged, of another kind, empty, or has sequences of
            different channels, or numbers that are missing or not finite.
    """
    kind = Path(path.name.removesuffix(".gz").removesuffix(".xz")).suffix.lower()
    if kind not in SUFFIXES:
        raise DataError(
            f"{path}: the file name must end in one of {', '.join(SUFFIXES)} (text also packed: "
            f".gz, .xz), got {path.suffix!r}."
        )
    if not path.is_file():
        raise DataError(f"{path}: the data file must exist, got {what_is(path)}. Check the path.")
    if kind == ".npz":
        parts = _read_npz(path, layout.labelled)
    elif kind == ".parquet":
        frame = open_frame(path)
        rows = zip(*map(frame.cells, frame.names), strict=True)
        placed = [(frame.place(i), list(row)) for i, row in enumerate(rows)]
        check_names(path, frame.names, placed)
        parts = {"train": _of_rows(path, placed, layout, frame.names)}
    elif kind == ".arff":
        parts = {"train": _parse_arff(path, layout)}
    else:
        # a tab at the beginning of a line ends an empty cell
        lines = filled_lines(path, read_packed(path, "text"))
        parse = {".ts": _parse_ts, ".csv": _parse_csv, ".tsv": _parse_tsv}[kind]
        parts = {"train": parse(path, lines, layout)}
    for series in parts.values():
        check_series(path, series, layout.missing)
    return parts


def read_pair(path: Path, labels: str, missing: bool) -> Series:
    """Sequences of a .npy, x as that of a .npz, and what is asked about each in another.

    Raises:
        DataError: one of them is missing, damaged, or does not fit.
    """
    if not labels:
        raise DataError(
            f"{path}: a .npy holds x alone; its labels must be in another, got none. Say "
            "--task.labels FILE, or save both with numpy.savez(path, x=..., y=...)."
        )
    arrays = {"x": _read_npy(path), "y": _read_npy(Path(labels).expanduser())}
    series = _of_arrays(path, arrays, "")
    check_series(path, series, missing)
    return series


def _read_npy(path: Path) -> np.ndarray:
    if not path.is_file():
        raise DataError(f"{path}: the data file must exist, got {what_is(path)}. Check the path.")
    try:
        loaded = open_numpy(path)
    except DAMAGED as error:
        fix = f" {_as_plain(error.name)}" if isinstance(error, ObjectsError) else ""
        raise DataError(f"{path}: the file must be a complete .npy, got: {error}.{fix}") from error
    if not isinstance(loaded, np.ndarray):
        loaded.close()
        raise DataError(f"{path}: the file must be a .npy, got an archive of several arrays.")
    return loaded


def check_series(path: Path | str, series: Series, missing: bool) -> None:
    """Raise `DataError` for none, one without a step, other channels, or what is not finite."""
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
        bad = np.argwhere(np.isinf(x) if missing else ~np.isfinite(x))
        if len(bad):
            step, channel = bad[0]
            raise DataError(
                f"{path}: values must be finite, got {x[step, channel]} in sequence {place}, "
                f"step {step + 1}, channel {channel + 1}. Remove or fill such values, or "
                "train with --task.missing mask or ffill if they are missing."
            )


def _parse_ts(path: Path, lines: Lines, layout: Layout) -> Series:
    """Dimensions are separated by colons, values by commas; what is asked comes last.

    With time stamps a value is ``(time,value)``.
    """
    stripped = [(n, line.strip()) for n, line in zip(*lines, strict=True)]
    placed = [(n, line) for n, line in stripped if not line.startswith("#")]
    start = next((i for i, (_, v) in enumerate(placed) if v.lower() == "@data"), None)
    if start is None:
        raise DataError(f"{path}: the file must have a line '@data', got none. Is it truncated?")
    words = [line.split() for _, line in placed[:start]]
    header = {w[0].lower(): w[1:] for w in words}
    stamped = (header.get("@timestamps") or ["false"])[0].lower() == "true"
    labels = header.get("@classlabel") or header.get("@targetlabel") or ["false"]
    has_labels = labels[0].lower() == "true"
    if layout.labelled and not has_labels:
        raise DataError(f"{path}: the file must have class or target labels, got none.")
    x, y, stamps = [], [], []
    for place, line in placed[start + 1 :]:
        # a date may have colons, and stands in parentheses
        parts = _COLON.split(line)
        *dimensions, label = parts if has_labels else [*parts, ""]
        if layout.labelled and labels[1:] and label.strip() not in labels[1:]:
            raise DataError(
                f"{path}: a label must be one of {', '.join(labels[1:])}, got "
                f"{label.strip()[:40]!r} in line {place}. Is it truncated?"
            )
        if stamped and dimensions:
            pairs = [split_pairs(path, place, values) for values in dimensions]
            stamps.append(
                [
                    Stamped(place, at, _numbers(path, f"line {place}", values, layout.missing))
                    for at, values in pairs
                ]
            )
        else:
            x.append(_stacked(path, place, dimensions, layout.missing))
        y.append(label.strip())
    if stamped and stamps:
        x, gaps, kind = merge(path, stamps, layout.missing)
        return Series(x, y, gaps, stamps=kind)
    return Series(x, y)


def _stacked(path: Path, place: int, dimensions: list[str], missing: bool) -> np.ndarray:
    """A sequence (time, dimensions) of a line."""
    columns = [_numbers(path, f"line {place}", values.split(","), missing) for values in dimensions]
    if not columns or len({len(column) for column in columns}) > 1:
        raise DataError(
            f"{path}: the dimensions of a sequence must be equally long, got "
            f"{[len(column) for column in columns]} in line {place}. Is it truncated?"
        )
    return np.stack(columns, 1)


def _parse_csv(path: Path, lines: Lines, layout: Layout) -> Series:
    """A row is a sequence, step after step, and what is asked.

    A first row that is of names alone is passed over.
    """
    cells = split_rows(path, lines)
    rows = [(f"line {place}", row) for place, row in zip(lines.places, cells, strict=True)]
    names, rows = without_names(path, rows, layout.labelled, layout.label_first)
    return _of_rows(path, rows, layout, names)


def _parse_tsv(path: Path, lines: Lines, layout: Layout) -> Series:
    """The same with tabulators, as the UCR archive has it: NaN at the end is padding."""
    rows = []
    for place, line in zip(*lines, strict=True):
        cells = [cell.strip() for cell in split_row(path, place, line, "\t")]
        first = [cells.pop()] if layout.labelled and not layout.label_first else []
        while cells and cells[-1].lower() == "nan":
            cells.pop()
        rows.append((f"line {place}", cells + first))
    names, rows = without_names(path, rows, layout.labelled, layout.label_first)
    return _of_rows(path, rows, layout, names)


def _of_rows(
    path: Path, rows: Sequence[tuple[str, list[str]]], layout: Layout, names: Sequence[str]
) -> Series:
    """Each with its place: steps one after another, and what is asked; empty ends are left out.

    Args:
        path: for messages.
        rows: cells without blanks around them, with their places.
        layout: of them.
        names: of the columns, where the file has some.
    """
    x, y = [], []
    place_of = _place_of_label(layout, names)
    for place, cells in rows:
        label, values = "", list(cells)
        # a row without its label is as wide as those of the training were without theirs
        cut = layout.labelled or len(cells) != layout.width
        if place_of is not None and cells and cut:
            label, values = _cut(cells, place_of)
        while values and not values[-1]:
            values.pop()
        if not layout.labelled:
            if place_of is None:
                _check_no_label(path, place, values, layout)
            label = ""
        if len(values) % layout.channels or (layout.labelled and not label):
            about = "a label and " if layout.labelled else ""
            raise DataError(
                f"{path}: a row must hold {about}steps of {layout.channels} numbers, got "
                f"{len(values)} numbers{about and f' and the label {label!r}'} in {place}."
            )
        try:
            numbers = _numbers(path, place, values, layout.missing)
        except DataError:
            _check_no_text_column(path, rows, place_of, names)
            raise
        x.append(numbers.reshape(-1, layout.channels))  # (time, channels)
        y.append(label)
    if not layout.labelled and place_of is None:
        check_width(str(path), layout.width, [row.size for row in x])
    at = 0 if layout.label_first else -1
    return Series(x, y, label=names[at].strip() if layout.labelled and names else "")


def _check_no_text_column(
    path: Path, rows: Sequence[tuple[str, list[str]]], label: int | None, names: Sequence[str]
) -> None:
    """Raise `DataError` for a column that holds no number in any row, but for the label's.

    Args:
        path: for the message.
        rows: cells with their places.
        label: index of the column of labels, from the end where it is negative.
        names: of the columns, where the file has some.
    """
    width = min(len(cells) for _, cells in rows)
    labels = None if label is None else label % len(rows[0][1])
    for column in range(width):
        cells = [row[column].strip() for _, row in rows]
        if column == labels or any(map(like_number, cells)) or all(map(is_missing, cells)):
            continue
        place = next(place for (place, _), cell in zip(rows, cells, strict=True) if cell)
        cell = next(filter(None, cells))
        name = repr(names[column].strip()) if names else "NAME"
        header = "" if names else "name the columns in a first line and "
        role = f"this column identifies the sequence, {header}pass --task.id {name}"
        if _DATE.match(cell):
            role = (
                f"this column has its time, {header}pass --task.time {name}, --task.id NAME, the "
                "column that identifies the sequence,"
            )
        raise DataError(
            f"{path}: each row must hold the numbers of one sequence, got text in column "
            f"{column + 1} ({cell!r:.60} in {place}). If each row is one step and {role} and "
            "--task.target NAME, the column of labels. Otherwise remove the column."
        )


def _place_of_label(layout: Layout, names: Sequence[str]) -> int | None:
    """In which cell of a row there is what is asked, from the end where that is its last."""
    if layout.labelled:
        return 0 if layout.label_first else -1
    columns = [name.strip() for name in names]
    if not layout.label or layout.label not in columns:
        return None
    # rows may end early, so the last column is that of the last cell
    place = columns.index(layout.label)
    return -1 if place == len(columns) - 1 else place


def _check_no_label(path: Path, place: str, values: Sequence[str], layout: Layout) -> None:
    """Raise `DataError` for a row with a word where what is asked stood in training."""
    cell = values[0 if layout.label_first else -1] if values else ""
    if cell and not like_number(cell) and not is_missing(cell):
        raise DataError(
            f"{path}: a row to predict must hold only numbers, got {cell!r:.60} in "
            f"{place}, where the target was in training. Remove it, or give the columns "
            "the names they had in training."
        )


def check_width(where: str, width: int, widths: Sequence[int]) -> None:
    """Raise `DataError` for rows that all have one number more than all of the training.

    Args:
        where: for the message.
        width: numbers of each row of the training; 0: they differ.
        widths: numbers of each row to predict.
    """
    if width and set(widths) == {width + 1}:
        raise DataError(
            f"{where}: a row to predict must hold {width} numbers, as all in training, got "
            f"{width + 1} in each. Cut off the target, or a count of the rows; if they are one "
            "step longer, give them as an array, in .npz or in .ts."
        )


def _parse_arff(path: Path, layout: Layout) -> Series:
    """A row is a sequence; what is asked is the last attribute, or the first."""
    try:
        from scipy.io import arff
    except ImportError as error:
        raise MissingExtraError("reading .arff", "scipy", "train") from error
    text = "\n".join(filled_lines(path, read_packed(path, "text")).texts)
    try:
        table, about = arff.loadarff(io.StringIO(text))
    except (arff.ArffError, ValueError, IndexError, NotImplementedError, StopIteration) as error:
        raise DataError(
            f"{path}: the file must be ARFF with numbers and classes, got: {error or 'none'}."
        ) from error
    rows = []
    for place, row in enumerate(table.tolist() if table.ndim else [table.tolist()], 1):
        cells = [cell.decode().strip() if isinstance(cell, bytes) else repr(cell) for cell in row]
        rows.append((f"row {place} of the data", cells))
    return _of_rows(path, rows, layout, about.names())


def _cut(cells: list[str], place: int) -> tuple[str, list[str]]:
    values = list(cells)
    return (values.pop(place), values) if place < len(values) else ("", values)


def _numbers(path: Path, place: str, cells: list[str], missing: bool) -> np.ndarray:
    """Cells as numbers; where they may be missing, such are NaN."""
    values = numbers_of(cells)
    for i in np.flatnonzero(np.isnan(values)).tolist():
        cell = cells[i]
        if number(cell) is None and not (missing and is_missing(cell)):
            fix = FILL if is_missing(cell) else "Correct it."
            raise DataError(
                f"{path}: values must be numbers, got {cell!r:.60} in {place}, value {i + 1}. {fix}"
            )
    return bounded(values)


def bounded(values: np.ndarray) -> np.ndarray:
    """Values as they are; what float32 cannot hold becomes infinite, which is refused later.

    They are rounded to float32 after their mean was taken off, so that little of them is lost:
    here they are of that type only where they were of it, or of a smaller one.
    """
    if np.can_cast(values.dtype, np.float32):
        return values.astype(np.float32)
    values = values.astype(np.float64)
    with np.errstate(over="ignore"):
        beyond = np.isinf(values.astype(np.float32))
    return np.where(beyond, np.copysign(np.inf, values), values)


def _read_npz(path: Path, labelled: bool) -> dict[str, Series]:
    """Arrays x, y and, if rows are padded, lengths; or each with _train and _test.

    Without labels: x, or a single array of any name, and lengths. X is x, as scikit-learn has it.
    """
    try:
        with open_numpy(path) as archive:
            # an x comes behind an X, so it is the one that counts
            arrays = {re.sub("^X", "x", name): archive[name] for name in sorted(archive.files)}
    except DAMAGED as error:
        fix = "Save it again with numpy.savez(path, x=..., y=...)."
        if isinstance(error, ObjectsError):
            fix = _as_plain(error.name)
        raise DataError(
            f"{path}: the file must be a complete .npz archive of numbers, got: {error}. {fix}"
        ) from error
    if not labelled:
        return {"train": _unlabelled(path, arrays)}
    if {"x_train", "y_train"} <= set(arrays):
        endings = {"train": "_train"} | ({"test": "_test"} if "x_test" in arrays else {})
    elif {"x", "y"} <= set(arrays):
        endings = {"train": ""}
    else:
        raise DataError(
            f"{path}: the archive must hold x and y, or x_train, y_train, x_test and y_test, got "
            f"{', '.join(arrays) or 'nothing'}."
        )
    return {part: _of_arrays(path, arrays, end) for part, end in endings.items()}


def _as_plain(name: str) -> str:
    """Advise on an array of objects: pandas gives out words, and mixtures, as such."""
    if name.startswith("y"):
        return f"Save what is asked as text: {name}.astype(str)."
    return f"Save {name or 'it'} as numbers, astype(float), or words as text, astype(str)."


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
        fix = f" Save text: y{end}.astype(str)." if y.dtype.kind in "SO" else ""
        raise DataError(
            f"{path}: y{end} must be numbers or words ({len(x)},), got {y.dtype} {y.shape}.{fix}"
        )
    if lengths is None:
        lengths = np.full(len(x), x.shape[1])
    fits = lengths.shape == y.shape and lengths.dtype.kind in "iu"
    if not fits or (len(x) and not (lengths.min() >= 1 and lengths.max() <= x.shape[1])):
        raise DataError(
            f"{path}: lengths{end} must be {len(x)} integers of 1 to {x.shape[1]}, got "
            f"{lengths.dtype} {lengths.shape}."
        )
    x = bounded(x).reshape(*x.shape[:2], *(x.shape[2:] or (1,)))  # (sequences, time, channels)
    rows = [row[:length] for row, length in zip(x, lengths, strict=True)]
    return Series(rows, [str(value) for value in y.tolist()])
