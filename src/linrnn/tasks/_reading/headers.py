"""The first row of a table with a sequence in each row: names, numbers of columns, or data."""

from collections.abc import Sequence
from pathlib import Path

from linrnn._options.numbers import is_name
from linrnn.errors import DataError
from linrnn.tasks._reading.frame import is_unnamed

Rows = list[tuple[str, list[str]]]
"""Cells, each row with the place where it stands."""

_FEWEST = (3, 5)
"""Numbers in a row that are those of columns if none is a name: from 0; from 1, which is rarer."""


def without_names(
    path: Path, rows: Rows, labelled: bool, label_first: bool
) -> tuple[list[str], Rows]:
    """The names in the first row, if it is of names alone, and the rows that hold data.

    Args:
        path: for messages.
        rows: all of them.
        labelled: whether each holds what is asked.
        label_first: where it does.

    Raises:
        DataError: the first row is the numbers of columns, as pandas writes those without names, or
            a column without a name holds something.
    """
    if not rows:
        return [], rows
    (place, first), later_rows = rows[0], rows[1:]
    filled = [cell for cell in first if cell.strip()]
    if filled and all(map(is_name, filled)):
        check_names(path, first, later_rows)
        return first, later_rows
    if later_rows and _counts_columns(first, later_rows, labelled, label_first):
        shown = ",".join(first)
        raise DataError(
            f"{path}: the first row must be data or names, got {shown!r:.60} in {place}, which "
            "looks like the numbers that pandas gives to columns without names. Write the table "
            "with header=False and index=False, or name its columns; if it is data, put a row of "
            "names above it."
        )
    return [], rows


def check_names(path: Path, names: Sequence[str], rows: Rows) -> None:
    """Raise `DataError` if a column without a name holds something: it is often a count of rows."""
    for column, name in enumerate(names):
        if not is_unnamed(name):
            continue
        for place, cells in rows:
            if column < len(cells) and cells[column].strip():
                raise DataError(
                    f"{path}: each column must have a name, got {name!r} in the first row and "
                    f"{cells[column]!r:.60} in {place}. Is it the count of rows that pandas "
                    "writes? Write the table with index=False."
                )


def _counts_columns(first: list[str], later_rows: Rows, labelled: bool, label_first: bool) -> bool:
    """Whether a row is 0, 1, 2, ... or 1, 2, 3, ..., perhaps with a name at either end.

    One is data if its label is that of other rows too, or if no two rows share a label, as in a
    file of a few rows.
    """
    cells = [cell.strip() for cell in first]
    if any(len(row) != len(cells) for _, row in later_rows):
        return False
    at = 0 if label_first else -1
    label, labels = cells[at], [row[at].strip() for _, row in later_rows]
    if (labelled or is_name(label)) and label in labels:
        return False
    if is_name(label) and len(set(labels)) == len(labels) and any(map(is_name, labels)):
        return False
    core = cells[int(is_name(cells[0]) or _above_count(cells[0], later_rows)) :]
    core = core[: len(core) - int(bool(core) and is_name(core[-1]))]
    for start, fewest in enumerate(_FEWEST):
        enough = len(core) >= (1 if len(core) < len(cells) else fewest + int(not labelled))
        if enough and core == [str(start + i) for i in range(len(core))]:
            return True
    return False


def _above_count(cell: str, later_rows: Rows) -> bool:
    """Whether the first cell of a row may stand above a count of rows: nowhere is that missing."""
    return is_unnamed(cell) and all(row[0].strip() for _, row in later_rows)
