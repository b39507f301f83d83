"""Long tables in files: which columns are which, and rows whose value is still to come."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from linrnn._options.numbers import whole
from linrnn.errors import ArgumentError, DataError, show
from linrnn.estimators._panel.calendar import as_stamps
from linrnn.tasks import column_names

if TYPE_CHECKING:
    from linrnn.tasks import Frame

NIXTLA = ("unique_id", "ds", "y")


class Roles(NamedTuple):
    """Names of columns."""

    id: tuple[str, ...]
    time: str
    value: str
    known: tuple[str, ...] = ()
    past: tuple[str, ...] = ()
    static: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.id, self.time, self.value, *self.known, *self.past, *self.static)


class Table(NamedTuple):
    """A file that was read."""

    rows: Any
    """A DataFrame of the rows up to the last value of each series: ids, times, value, inputs."""
    later: Any
    """One of the rows after these, without the value: inputs that are known ahead."""
    static: Any
    """One with a row for each series, or None."""
    unread: tuple[str, ...]
    """Columns that nobody named."""


def is_long(path: Path) -> bool:
    """Whether a file has the columns that mark a table of many series: unique_id, ds and y.

    Raises:
        DataError: it cannot be read as a table.
    """
    return set(NIXTLA) <= set(column_names(path))


def roles_of(
    frame: "Frame",
    id: Sequence[str] = (),
    time: str = "",
    value: str = "",
    known: Sequence[str] = (),
    past: Sequence[str] = (),
    static: Sequence[str] = (),
) -> Roles:
    """Complete the names of columns, of which some may be left out.

    Raises:
        DataError: the file cannot be used, or has several columns that may be the value.
        UnknownNameError: no such column.
        ArgumentError: one column for two ends.
    """
    ids, time = tuple(id) or ("unique_id",), time or "ds"
    inputs = (*known, *past, *static)
    frame.check_has([*ids, time, *inputs])
    if not value:
        left = [n for n in frame.with_numbers() if n not in (*ids, time, *inputs)]
        if "y" not in left and len(left) != 1:
            raise DataError(
                f"{frame.where}: one column must be left for the value, got "
                f"{', '.join(left)[:80] or 'none'}. Name it: --task.value COLUMN."
            )
        value = "y" if "y" in left else left[0]
    frame.check_has([value])
    roles = Roles(ids, time, value, tuple(known), tuple(past), tuple(static))
    twice = [name for k, name in enumerate(roles.names) if name in roles.names[:k]]
    if twice:
        raise ArgumentError(
            "train: task.id, time, value, known, past and static must name different columns, got "
            f"{show(twice[0])} twice."
        )
    return roles


def read_table(frame: "Frame", roles: Roles, *, value: bool = True) -> Table:
    """Read the columns of a file.

    Args:
        frame: of `linrnn.tasks.open_frame`.
        roles: of its columns.
        value: whether there must be values. Without any, all rows are later ones; where one series
            has a value, each must.

    Raises:
        DataError: a cell that is no number, a series without any value, a static column that
            changes.
        UnknownNameError: no such column.
    """
    import pandas as pd

    valued = value or roles.value in frame.names
    frame.check_has([n for n in roles.names if valued or n not in (roles.value, *roles.past)])
    table = pd.DataFrame({name: _plain(frame, name) for name in (*roles.id, roles.time)})
    _check_filled(frame, roles)
    table[roles.time] = as_stamps(frame.where, f"column {roles.time!r}", table[roles.time])
    inputs = [n for n in (*roles.known, *roles.past) if n in frame.names]
    numbers = frame.values(inputs, missing=True)
    for k, name in enumerate(inputs):
        table[name] = numbers[:, k]
    unread = tuple(n for n in frame.names if n not in roles.names)
    if not valued:
        return Table(table.iloc[:0], table, None, unread)
    table[roles.value] = frame.values([roles.value], missing=True)[:, 0]
    _check_once(frame, table, roles)
    observed = _up_to_the_last_value(table, roles)
    if value or observed.any():
        _check_valued(frame, table, observed, roles)
    static = _static(frame, table, roles) if roles.static else None
    later = table[~observed].drop(columns=[roles.value, *roles.past])
    return Table(table[observed], later, static, unread)


def _plain(frame: "Frame", name: str) -> Any:
    """A column as whole numbers where all cells are, else as text."""
    cells = frame.cells(name)
    numbers = [whole(cell) for cell in cells]
    if cells and all(number is not None for number in numbers):
        try:
            return np.array(numbers, dtype=np.int64)
        except OverflowError:
            pass
    return np.array(cells, dtype=object)


def _check_filled(frame: "Frame", roles: Roles) -> None:
    for name in (*roles.id, roles.time):
        cells = frame.cells(name)
        if "" in cells:
            raise DataError(
                f"{frame.where}: column {name} must say something in every row, got an empty cell "
                f"in {frame.place(cells.index(''))}. Fill it, or leave the row out."
            )


def _check_once(frame: "Frame", table: Any, roles: Roles) -> None:
    """Each series has one row for a time."""
    columns = [*roles.id, roles.time]
    twice = table.duplicated(columns).to_numpy()
    if twice.any():
        row = int(np.flatnonzero(twice)[0])
        same = (table[columns] == table[columns].iloc[row]).all(axis=1).to_numpy()
        first = int(np.flatnonzero(same)[0])
        raise DataError(
            f"{frame.where}: a series must have one row for a time, got "
            f"{table[roles.time].iloc[row]} twice in {_series(table, roles, row)}, in "
            f"{frame.place(first)} and {frame.place(row)}. Remove one, or add up what belongs "
            "together."
        )


def _series(table: Any, roles: Roles, row: int) -> str:
    ids = [table[name].iloc[row] for name in roles.id]
    return "series " + ", ".join(map(str, ids))


def _up_to_the_last_value(table: Any, roles: Roles) -> np.ndarray:
    """(rows,): whether the row's series has a value at its time or later."""
    order = table[roles.time].argsort(kind="stable").to_numpy()
    rank = np.empty(len(table), dtype=np.int64)
    rank[order] = np.arange(len(table))
    codes = table.groupby(list(roles.id), sort=False).ngroup().to_numpy()
    last = np.full(codes.max() + 1, -1)
    valued = table[roles.value].notna().to_numpy()
    np.maximum.at(last, codes[valued], rank[valued])
    return np.asarray(rank <= last[codes])


def _check_valued(frame: "Frame", table: Any, observed: np.ndarray, roles: Roles) -> None:
    """Each series has a value."""
    ids = list(roles.id)
    silent = table[~observed].merge(
        table[observed][ids].drop_duplicates(), "left", ids, indicator=True
    )
    silent = silent[silent["_merge"] == "left_only"]
    if len(silent):
        raise DataError(
            f"{frame.where}: every series must have a value in column {roles.value}, got none of "
            f"{show(tuple(silent.iloc[0][ids]) if len(ids) > 1 else silent.iloc[0][ids[0]])}. Fill "
            "one in, or leave its rows out."
        )


def _static(frame: "Frame", table: Any, roles: Roles) -> Any:
    """A row for each series of columns that do not change in one."""
    ids = list(roles.id)
    fixed = table[ids].copy()
    for name in roles.static:
        if frame.has_numbers(name):
            fixed[name] = frame.values([name])[:, 0]
        else:
            fixed[name] = np.array(frame.cells(name), dtype=object)
    distinct = fixed.drop_duplicates()
    twice = distinct[distinct.duplicated(ids)]
    if len(twice):
        series = tuple(twice.iloc[0][ids]) if len(ids) > 1 else twice.iloc[0][ids[0]]
        rows = distinct[(distinct[ids] == twice.iloc[0][ids]).all(axis=1)]
        name = next(n for n in roles.static if rows[n].nunique() > 1)
        raise DataError(
            f"{frame.where}: column {name} must stay the same in a series, got "
            f"{show(rows[name].iloc[0])} and {show(rows[name].iloc[1])} in {show(series)}. What "
            "changes is --task.known or --task.past."
        )
    return distinct
