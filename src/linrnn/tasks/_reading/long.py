"""Sequences from a table with a step in each row, and a column that says whose it is."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linrnn.errors import DataError
from linrnn.tasks._reading.frame import Frame, is_missing, is_unnamed
from linrnn.tasks._reading.series import Series, bounded
from linrnn.tasks._reading.stamps import Kind, check_rising, read_stamps


@dataclass(frozen=True, kw_only=True)
class LongLayout:
    """The role of each column of a table with a step a row."""

    id: str
    """Column that tells which sequence a row belongs to."""
    target: str = ""
    """The sequence's target, the same in all of its rows; empty: there is none."""
    time: str = ""
    """Column of the time of a step; empty: the steps are equal."""
    columns: tuple[str, ...] = ()
    """Columns of the inputs; none: all remaining ones, which must be numbers."""
    missing: bool = False
    """Whether values may be missing."""

    def check_like_training(self, frame: Frame, columns: Sequence[str]) -> None:
        """Raise `DataError` unless a table has the columns of the training; it may have others."""
        required = [name for name in (self.id, self.time, *columns, self.target) if name]
        absent = [name for name in required if name not in frame.names]
        if absent:
            raise DataError(
                f"{frame.where}: the table must have the columns {', '.join(required)}, as in "
                f"training, got {', '.join(frame.names)}, without {absent[0]}."
            )


def read_long(frame: Frame, layout: LongLayout, stamps: Kind | None = None) -> Series:
    """The sequences of a table, in the order in which each begins.

    Rows of several sequences may alternate; those of one are in the order of time.

    Args:
        frame: the table.
        layout: what its columns are.
        stamps: how its times are written; None finds out.

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
    values = bounded(frame.values(names, missing=layout.missing))
    series = Series(
        [values[rows] for rows in groups],
        [_target(frame, layout, rows) for rows in groups],
        ids=[ids[rows[0]] for rows in groups],
        columns=tuple(names),
    )
    if not layout.time:
        return series
    times = read_stamps(frame, layout.time, stamps)
    for rows in groups:
        check_rising(frame, layout.time, times.at[rows], rows)
    gaps = [np.diff(times.at[rows]) for rows in groups]
    return series._replace(gaps=gaps, stamps=times.kind)


def _check_numbers(frame: Frame, layout: LongLayout, names: Sequence[str]) -> None:
    """Raise unless every column that the options leave to be read has a name and numbers."""
    if not names:
        raise DataError(f"{frame.where}: there must be a column to read, got {frame.names}.")
    for name in () if layout.columns else names:
        # a column that nobody named is often the count of rows
        if is_unnamed(name) or not frame.has_numbers(name):
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
        if is_missing(cells[row]):
            raise DataError(
                f"{frame.where}: each row of a sequence must have its label, got a missing value, "
                f"{cells[row]!r:.60}, in {frame.place(row)}, column {layout.target}. Fill it in, "
                "or remove the sequence."
            )
        if cells[row] != cells[int(rows[0])]:
            raise DataError(
                f"{frame.where}: all rows of a sequence must have the same label, got "
                f"{cells[row]!r:.60} in {frame.place(row)}, column {layout.target}, and "
                f"{cells[int(rows[0])]!r:.60} in {frame.place(int(rows[0]))}."
            )
    return cells[int(rows[0])]
