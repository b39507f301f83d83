"""Sequences from a table with a step in each row, and a column that says whose it is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from linrnn.errors import DataError
from linrnn.tasks._frame import Frame, is_missing
from linrnn.tasks._series import Series, as_single
from linrnn.tasks._stamps import check_rising, read_stamps


@dataclass(frozen=True, kw_only=True)
class LongLayout:
    """What the columns of a table are."""

    id: str
    """Which sequence a row belongs to."""
    target: str = ""
    """What is asked about the sequence, the same in all of its rows; empty: nothing is."""
    time: str = ""
    """When the step was; empty: they follow one another in equal steps."""
    columns: tuple[str, ...] = ()
    """What is read; none: all that are left, which must be numbers."""
    missing: bool = False
    """Whether values may be missing."""

    def without_target(self, frame: Frame) -> "LongLayout":
        """The same of a table in which what is asked may be there, and is not read."""
        special = (self.id, self.time, self.target)
        columns = self.columns or tuple(name for name in frame.names if name not in special)
        return replace(self, target="", columns=columns)


def read_long(frame: Frame, layout: LongLayout) -> Series:
    """The sequences of a table, in the order in which each begins.

    Rows of several sequences may alternate; those of one are in the order of time.

    Raises:
        UnknownNameError: no such column.
        DataError: a cell without an id, a target that changes within a sequence, stamps that do
            not rise, a column without numbers that was not named, or a value that is no number.
    """
    special = [name for name in (layout.id, layout.target, layout.time) if name]
    frame.check_has([*special, *layout.columns])
    names = list(layout.columns) or [name for name in frame.names if name not in special]
    _check_numbers(frame, layout, names)
    ids = frame.cells(layout.id)
    for row, cell in enumerate(ids):
        if is_missing(cell):
            raise DataError(
                f"{frame.where}: each row must say which sequence it belongs to, got {cell!r} in "
                f"{frame.place(row)}, column {layout.id}."
            )
    _, first, member = np.unique(np.array(ids), return_index=True, return_inverse=True)
    by_member = np.argsort(member, kind="stable")
    groups = np.split(by_member, np.cumsum(np.bincount(member))[:-1])
    groups = [groups[place] for place in np.argsort(first)]
    values = as_single(frame.values(names, missing=layout.missing))
    gaps: list[np.ndarray] | None = None
    if layout.time:
        at = read_stamps(frame, layout.time).at
        for rows in groups:
            check_rising(frame, layout.time, at[rows], rows)
        gaps = [np.diff(at[rows]) for rows in groups]
    return Series(
        [values[rows] for rows in groups],
        [_target(frame, layout, rows) for rows in groups],
        gaps,
        [ids[rows[0]] for rows in groups],
    )


def _check_numbers(frame: Frame, layout: LongLayout, names: Sequence[str]) -> None:
    """No column is left out unless somebody said so."""
    if not names:
        raise DataError(f"{frame.where}: there must be a column to read, got {frame.names}.")
    for name in () if layout.columns else names:
        # a column that nobody named is often the count of rows
        if not name or not frame.has_numbers(name):
            raise DataError(
                f"{frame.where}: each column but those of --task.id, --task.time and "
                f"--task.target must have a name and hold numbers, got {name!r:.60} with "
                f"{frame.cells(name)[0]!r:.60}. Name those that are to be read: --task.columns."
            )


def _target(frame: Frame, layout: LongLayout, rows: np.ndarray) -> str:
    if not layout.target:
        return ""
    cells = frame.cells(layout.target)
    for row in rows.tolist():
        if is_missing(cells[row]) or cells[row] != cells[int(rows[0])]:
            raise DataError(
                f"{frame.where}: what is asked must be the same in each row of a sequence, got "
                f"{cells[row]!r:.60} in {frame.place(row)}, column {layout.target}, and "
                f"{cells[int(rows[0])]!r:.60} in {frame.place(int(rows[0]))}."
            )
    return cells[int(rows[0])]
