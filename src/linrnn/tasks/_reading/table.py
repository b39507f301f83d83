"""Read a user's table of numbers: .npy, .npz, .csv or .txt, one sequence a row."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from linrnn._files.door import read_bytes, what_is
from linrnn._options.numbers import is_name, number
from linrnn.errors import DataError
from linrnn.tasks._reading.numpy import DAMAGED, open_numpy
from linrnn.tasks._reading.rows import SEPARATORS, filled_lines, numbers_of, split_rows

SUFFIXES = (".csv", ".npy", ".npz", ".txt")


def read_table(path: Path, width: int, *, double: bool = False) -> Tensor:
    """The numbers of a file as float32 (rows, width); no file can run code.

    Args:
        path: a .npy or .npz (one array) of NumPy, or text with values separated by commas,
            semicolons, tabs or spaces; a first line of names is skipped.
        width: numbers expected in each row. Arrays of more axes are flattened row by row.
        double: give them as float64, for whoever takes something off before they are rounded.

    Raises:
        DataError: the file is missing, empty, truncated, not numeric, of another width, or holds
            NaN or infinity; names the first row and column at fault, counted from 1.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{path}: the file name must end in one of {', '.join(SUFFIXES)}, got {path.suffix!r}."
        )
    if not path.is_file():
        raise DataError(f"{path}: the data file must exist, got {what_is(path)}. Check the path.")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the data file must hold numbers, got an empty file.")
    text = path.suffix.lower() in (".csv", ".txt")
    table = _read_text(path, width) if text else _read_numpy(path)
    if table.ndim < 2 and table.size == width:
        table = table.reshape(1, width)
    rows = len(table) if table.ndim else 0
    if rows == 0:
        raise DataError(f"{path}: the data file must hold at least one row, got none.")
    table = table.reshape(rows, -1)
    if table.shape[1] != width:
        raise DataError(
            f"{path}: each row must hold {width} numbers, got {table.shape[1]} in row 1. "
            "One row is one sequence, step after step."
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes inf, which is refused
        values = torch.from_numpy(table.astype(np.float32))
    check_finite(values, str(path))
    return torch.from_numpy(table.astype(np.float64)) if double else values


def read_ids(path: Path, width: int, vocabulary: int) -> Tensor:
    """A file of token ids as integers (rows, width); see `read_table`.

    Raises:
        DataError: as `read_table`, or a number that is no integer of 0..vocabulary - 1.
    """
    rows = read_table(path, width)
    bad = ((rows != rows.floor()) | (rows < 0) | (rows >= vocabulary)).nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        raise DataError(
            f"{path}: token ids must be integers of 0..{vocabulary - 1}, got "
            f"{rows[row, column].item():g} in row {row + 1}, column {column + 1}."
        )
    return rows.long()


def check_finite(rows: Tensor, where: str) -> None:
    """Raise `DataError` naming the first row and column that hold NaN or infinity."""
    if not rows.is_floating_point():
        return
    bad = (~rows.isfinite()).nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        raise DataError(
            f"{where}: values must be finite, got {rows[row, column].item()} in row {row + 1}, "
            f"column {column + 1}. Remove or fill the {len(bad)} such values."
        )


def _read_numpy(path: Path) -> np.ndarray:
    try:
        loaded = open_numpy(path)
        if isinstance(loaded, np.ndarray):
            table = loaded
        else:
            with loaded:
                if len(loaded.files) != 1:
                    raise DataError(
                        f"{path}: the archive must hold one array, got {loaded.files}. "
                        "Save the rows alone: numpy.savez(path, rows)."
                    )
                table = loaded[loaded.files[0]]
    except DAMAGED as error:
        raise DataError(
            f"{path}: the file must be a complete NumPy array of numbers, got: {error}. "
            "Save it again with numpy.save(path, rows)."
        ) from error
    if table.dtype.kind not in "biuf":
        raise DataError(f"{path}: values must be real numbers, got dtype {table.dtype}.")
    return table


def _read_text(path: Path, width: int) -> np.ndarray:
    try:
        content = read_bytes(path, inside=None)
    except OSError as error:
        raise DataError(f"{path}: the file must be readable, got {error}.") from error
    lines = filled_lines(path, content)
    spaced = not any(separator in line for line in lines.texts[:2] for separator in SEPARATORS)
    cells = [line.split() for line in lines.texts] if spaced else split_rows(path, lines)
    placed = list(zip(lines.places, cells, strict=True))
    if placed and _is_header(placed[0][1]):
        placed = placed[1:]
    rows = [_parse_row(path, place, row, width) for place, row in placed]
    return np.array(rows, dtype=np.float64).reshape(len(rows), width)


def _is_header(cells: list[str]) -> bool:
    return all(map(is_name, cells))


def _parse_row(path: Path, line: int, cells: list[str], width: int) -> np.ndarray:
    row = numbers_of(cells)
    for column in np.flatnonzero(np.isnan(row)).tolist():
        if number(cells[column]) is None:
            raise DataError(
                f"{path}: values must be numbers, got {cells[column]!r} in line {line}, "
                f"column {column + 1}."
            )
    if len(row) != width:
        raise DataError(
            f"{path}: each row must hold {width} numbers, got {len(row)} in line {line}. "
            "One row is one sequence, step after step; is the file truncated?"
        )
    return row
