"""Tables of many series, in long form or another, read into rows and written back."""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from linrnn.errors import ArgumentError, ArgumentTypeError, LinrnnError, ShapeError, show
from linrnn.estimators._cells import are_objects, of_column
from linrnn.estimators._inputs import as_numbers, check_names
from linrnn.estimators._panel.batch import Batch
from linrnn.estimators._panel.calendar import Grid, as_stamps, grid_of, kind_of

Form = Literal["long", "multiindex", "wide", "series", "array"]
_FIX = (
    "missing='ffill' holds the last value over gaps; resample the table, or leave the series out."
)


@dataclass(frozen=True)
class Names:
    """Names of the columns."""

    id: tuple[str, ...]
    time: str
    value: str
    single: Any = None
    """Name of the series, where there is one only."""


class Rows(NamedTuple):
    """A table as columns, in the order it came."""

    form: Form
    ids: Any
    """An index of as many rows: of values, or of tuples of several id columns."""
    stamps: Any
    values: np.ndarray
    others: dict[str, np.ndarray]
    """Further columns, numbers."""
    names: Names


@dataclass(frozen=True)
class Panel:
    """Series that were read."""

    keys: Any
    """(series,): an index of ids, sorted, or in the order of the columns of a wide table."""
    batch: Batch
    """Each series over its power of 2, so that squares of no value overflow."""
    powers: np.ndarray
    """(series,): exponents of 2."""
    ends: np.ndarray
    """(series,): places on the grid of their last values."""
    grid: Grid
    form: Form
    names: Names
    others: dict[str, np.ndarray] = field(default_factory=dict)
    """By column, (series, time)."""

    def table(self, columns: dict[str, np.ndarray], steps: int) -> Any:
        """Answers (series, steps) by column name, at the times after the last, in the form read."""
        import pandas as pd

        large = np.finfo(np.float64).max
        with np.errstate(over="ignore", under="ignore"):
            columns = {
                name: np.ldexp(values, self.powers[:, None]).clip(-large, large)
                for name, values in columns.items()
            }
        if self.form == "array":
            values = np.stack(list(columns.values()), -1)  # (series, steps, columns)
            return values[0].squeeze(-1) if values.shape[2] == 1 else values[0]
        times = self._times(steps)
        if self.form in ("series", "wide") and len(columns) == 1:
            return self._like(times[0], next(iter(columns.values())))
        frame = {
            name: np.asarray(self.keys.get_level_values(k)).repeat(steps)
            for k, name in enumerate(self.names.id)
        }
        frame[self.names.time] = times[0].append(list(times[1:]))
        frame |= {name: values.ravel() for name, values in columns.items()}
        table = pd.DataFrame(frame)
        if self.form == "series":
            return table.drop(columns=list(self.names.id)).set_index(self.names.time)
        if self.form == "multiindex":
            return table.set_index([*self.names.id, self.names.time])
        return table

    def _times(self, steps: int) -> list[Any]:
        later = {int(end): self.grid.times(int(end) + 1, steps) for end in np.unique(self.ends)}
        return [later[int(end)] for end in self.ends]

    def _like(self, times: Any, values: np.ndarray) -> Any:
        import pandas as pd

        times = times.rename(None if self.names.time == "ds" else self.names.time)
        if self.form == "series":
            return pd.Series(values[0], times, name=self.names.single)
        return pd.DataFrame(values.T, times, columns=self.keys.rename(None))


def read_rows(where: str, what: str, table: Any, names: Names, others: bool = True) -> Rows:
    """Read a table in any of the forms.

    Raises:
        ArgumentTypeError: no form that is known, or columns that hold no numbers.
        ArgumentError: columns that are not there.
        ShapeError: an array of more than one axis.
    """
    import pandas as pd

    if isinstance(table, pd.Series) and not isinstance(table.index, pd.MultiIndex):
        names = replace(names, single=table.name, time=str(table.index.name or names.time))
        return _indexed(where, what, table.to_frame(), names, "series")
    if isinstance(table, pd.Series):
        table = table.to_frame(table.name if table.name is not None else names.value)
    if isinstance(table, pd.DataFrame):
        if table.columns.nlevels > 1:
            raise ArgumentError(
                f"{where}: {what} must have one level of columns, got {table.columns.nlevels}. "
                f"Keep one: {what}.droplevel(0, axis=1)."
            )
        check_names(where, what, table)
        if isinstance(table.index, pd.MultiIndex):
            return _of_levels(where, what, table, names, others)
        if table.index.name is not None and {*names.id, names.time} <= {
            *table.columns,
            table.index.name,
        }:
            table = table.reset_index(drop=table.index.name in table.columns)
        if names.time in table.columns or not isinstance(
            table.index, (pd.DatetimeIndex, pd.PeriodIndex)
        ):
            return _long(where, what, table, names, "long", others)
        names = replace(names, time=str(table.index.name or names.time))
        return _indexed(where, what, table, names, "wide")
    try:
        array = np.asarray(as_numbers(where, what, table) if np.ndim(table) else None)
    except LinrnnError:
        raise
    except (ValueError, TypeError):  # rows of other lengths
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "biuf":
        raise ArgumentTypeError(
            f"{where}: {what} must be a table or a series of pandas, or an array of numbers, got "
            f"{show(table)}."
        )
    if array.ndim != 1:
        raise ShapeError(
            f"{where}: {what} must have one axis as an array, got shape {array.shape}. Name the "
            "columns of several series: pandas.DataFrame(..., index=dates)."
        )
    series = pd.Series(array.astype(np.float64), pd.RangeIndex(len(array)))
    return _indexed(where, what, series.to_frame(), names, "array")


def _of_levels(where: str, what: str, table: Any, names: Names, others: bool) -> Rows:
    """With an index of ids and times, as sktime has it; one column alone is the value.

    Times are the level of their name, else the last.
    """
    if names.time in table.index.names[:-1]:
        others_first = [name for name in table.index.names if name != names.time]
        table = table.reorder_levels([*others_first, names.time])
    levels = [
        str(name) if name is not None else default
        for name, default in zip(
            table.index.names,
            [f"level_{k}" for k in range(table.index.nlevels - 1)] + [names.time],
            strict=True,
        )
    ]
    columns = list(table.columns)
    value = columns[0] if others and len(columns) == 1 else names.value
    names = Names(tuple(levels[:-1]), levels[-1], str(value))
    flat = table.set_axis(table.index.set_names(levels)).reset_index()
    return _long(where, what, flat, names, "multiindex", others)


def _indexed(where: str, what: str, table: Any, names: Names, form: Form) -> Rows:
    """A column for each series; it begins at its first number and ends at its last."""
    import pandas as pd

    if not table.shape[1]:
        raise ArgumentError(f"{where}: {what} must hold a series, got a table without columns.")
    table = table.set_axis(as_stamps(where, f"the index of {what}", table.index)).sort_index()
    ids, stamps, values = [], [], []
    for name, column in table.items():
        numbers = _numbers(where, f"column {show(name)} of {what}", column)
        numbered = np.flatnonzero(~np.isnan(numbers))
        if not len(numbered):
            raise ArgumentError(
                f"{where}: every series of {what} must hold a number, got none in {show(name)}."
            )
        part = slice(int(numbered[0]), int(numbered[-1]) + 1)
        ids += [name] * (part.stop - part.start)
        stamps.append(table.index[part])
        values.append(numbers[part])
    index = stamps[0].append(stamps[1:])
    keys = pd.Index(ids, name=names.id[0], dtype=object if form != "wide" else None)
    return Rows(form, keys, index, np.concatenate(values), {}, names)


def _long(where: str, what: str, table: Any, names: Names, form: Form, others: bool) -> Rows:
    import pandas as pd

    needed = [*names.id, names.time, *((names.value,) if others else ())]
    lacking = [name for name in needed if name not in table.columns]
    if lacking:
        one = ""
        if lacking == [names.id[0]]:
            one = f" For a single series, add {show(names.id[0])} with the same text in every row."
        raise ArgumentError(
            f"{where}: {what} must have the columns {show(needed)}, got {show(list(table.columns))}"
            f" without {show(lacking[0])}. id=, time= and value= name them.{one}"
        )
    if not len(table):
        raise ArgumentError(f"{where}: {what} must have rows, got none.")
    several = [table[name] for name in names.id]
    for name, column in zip(names.id, several, strict=True):
        if are_objects(column.dtype):
            _check_hashable(where, f"column {name!r} of {what}", column)
    ids = pd.MultiIndex.from_arrays(several) if len(several) > 1 else pd.Index(several[0])
    for name in names.id:
        if table[name].isna().any():
            row = int(np.flatnonzero(table[name].isna().to_numpy())[0])
            raise ArgumentError(
                f"{where}: column {name!r} of {what} must name a series in every row, got none in "
                f"row {row}."
            )
    values = np.full(len(table), np.nan)
    if others:
        values = _numbers(where, f"column {names.value!r} of {what}", table[names.value])
    further = {
        str(name): _numbers(where, f"column {show(name)} of {what}", table[name])
        for name in table.columns
        if name not in needed and name != names.value
    }
    stamps = as_stamps(where, f"column {names.time!r} of {what}", table[names.time])
    return Rows(form, ids, stamps, values, further, names)


def _check_hashable(where: str, what: str, column: Any) -> None:
    for row, cell in enumerate(column):
        if not isinstance(cell, Hashable):
            raise ArgumentTypeError(
                f"{where}: {what} must name a series by text or a number, got {show(cell)} in row "
                f"{row}."
            )


def _numbers(where: str, what: str, column: Any) -> np.ndarray:
    values = of_column(where, what, column)
    if np.isinf(values).any():
        raise ArgumentError(f"{where}: {what} must be finite, got infinity.")
    return values


def read_panel(where: str, rows: Rows, freq: str | None, missing: str) -> Panel:
    """Put rows on a grid, series by series; the order of the rows says nothing.

    Raises:
        ArgumentError: times off the grid, twice or with gaps; values missing; ids of two kinds.
    """
    codes, keys = _factorized(where, rows)
    grid = grid_of(where, rows.stamps, codes, freq)
    places = _places(where, rows, codes, keys, grid)
    _check_steps(where, rows, codes, keys, places, grid, missing)
    starts = np.full(len(keys), np.iinfo(np.int64).max)
    np.minimum.at(starts, codes, places)
    ends = np.full(len(keys), -1)
    np.maximum.at(ends, codes, places)
    n = ends - starts + 1
    columns = {}
    for name, column in {rows.names.value: rows.values, **rows.others}.items():
        cells = np.full((len(keys), int(n.max())), np.nan)
        cells[codes, places - starts[codes]] = column
        columns[name] = _cells(where, name, cells, n, keys, grid, starts, missing)
    y = columns.pop(rows.names.value)
    powers = np.frexp(np.abs(y).max(1))[1].astype(np.int64)
    batch = Batch(np.ldexp(y, -powers[:, None]), n)
    return Panel(keys, batch, powers, ends, grid, rows.form, rows.names, columns)


def _factorized(where: str, rows: Rows) -> tuple[np.ndarray, Any]:
    """(rows,) numbers of series, and their ids: sorted, but for columns of a wide table."""
    import pandas as pd

    table = rows.form in ("long", "multiindex")
    for k, name in enumerate(rows.names.id if table else ()):
        text = {isinstance(key, str) for key in rows.ids.get_level_values(k).unique()}
        if len(text) > 1:
            raise ArgumentError(
                f"{where}: column {name!r} must be all text or all numbers, got both. Turn it into "
                f"text: table[{name!r}].astype(str)."
            )
    ids = rows.ids
    if isinstance(ids, pd.CategoricalIndex):  # those without a row are no series
        ids = ids.astype(ids.categories.dtype)
    codes, keys = pd.factorize(ids, sort=table)
    return codes, keys.set_names(list(rows.names.id))


def _places(where: str, rows: Rows, codes: np.ndarray, keys: Any, grid: Grid) -> np.ndarray:
    places = grid.places(rows.stamps)
    if (places < 0).any():
        k = int(np.flatnonzero(places < 0)[0])
        raise ArgumentError(
            f"{where}: times must lie on one grid of steps of {grid.said}, got "
            f"{show(str(rows.stamps[k]))} of series {show(keys[codes[k]])}. Resample it, or pass "
            "freq=."
        )
    return places


def _check_steps(
    where: str,
    rows: Rows,
    codes: np.ndarray,
    keys: Any,
    places: np.ndarray,
    grid: Grid,
    missing: str,
) -> None:
    order = np.lexsort((places, codes))
    steps = np.diff(places[order])
    same = np.diff(codes[order]) == 0
    twice, gap = same & (steps == 0), same & (steps > 1)
    if twice.any():
        k = int(order[np.flatnonzero(twice)[0]])
        raise ArgumentError(
            f"{where}: a series must have one row for a time, got {rows.stamps[k]} twice in series "
            f"{show(keys[codes[k]])}. Drop one, or sum both: table.groupby([id, time]).sum()."
        )
    if gap.any() and missing == "error":
        k = int(np.flatnonzero(gap)[0])
        stamp, following = rows.stamps[order[k]], rows.stamps[order[k + 1]]
        raise ArgumentError(
            f"{where}: a series must go on in steps of {grid.said}, got a gap from {stamp} to "
            f"{following} in series {show(keys[codes[order[k]]])}. {_FIX}"
        )


def _cells(
    where: str,
    name: str,
    cells: np.ndarray,
    n: np.ndarray,
    keys: Any,
    grid: Grid,
    starts: np.ndarray,
    missing: str,
) -> np.ndarray:
    """Without NaN: zeros behind the ends, and the last value over gaps with ``missing="ffill"``."""
    mask = np.arange(cells.shape[1]) < n[:, None]
    empty = np.isnan(cells) & mask
    if empty.any():
        k, t = (int(x[0]) for x in np.nonzero(empty))
        silent = np.flatnonzero(empty.sum(1) == n)
        if len(silent):
            raise ArgumentError(
                f"{where}: column {name!r} must hold a number at least once in each series, got "
                f"none in series {show(keys[silent[0]])}. One value is enough for a forecast."
            )
        if missing == "error" or t == 0:
            time = grid.times(int(starts[k]) + t, 1)[0]
            raise ArgumentError(
                f"{where}: column {name!r} must hold a number at every time of a series, got none "
                f"at {time} of series {show(keys[k])}. {_FIX}"
            )
        last = np.maximum.accumulate(np.where(empty, 0, np.arange(cells.shape[1])), 1)
        cells = np.take_along_axis(cells, last, 1)
    return np.where(mask, cells, 0.0)


def ahead_of(
    where: str, panel: Panel, rows: Rows, columns: tuple[str, ...], steps: int, fitted: Any
) -> np.ndarray:
    """Known inputs (series, steps, columns) at the times after the last of each series.

    Args:
        where: for messages.
        panel: the series that are forecast.
        rows: what is known ahead of these, and perhaps of other series that were fitted.
        columns: names of the inputs.
        steps: ahead.
        fitted: an index of all series of the fit.

    Raises:
        ArgumentError: a column, a series or a time is not there, or a series was not fitted.
    """
    lacking = [name for name in columns if name not in rows.others]
    if lacking:
        raise ArgumentError(
            f"{where}: X must have the columns {show(list(columns))}, got "
            f"{show(list(rows.others))} without {show(lacking[0])}."
        )
    if kind_of(rows.stamps) != panel.grid.kind:
        raise ArgumentError(
            f"{where}: column {rows.names.time!r} of X must hold {panel.grid.kind} as in fit, got "
            f"{kind_of(rows.stamps)}."
        )
    stamps = panel.grid.in_zone(where, f"column {rows.names.time!r} of X", rows.stamps)
    strange = np.flatnonzero(~rows.ids.isin(fitted))
    if len(strange):
        raise ArgumentError(
            f"{where}: every series of X must be one that was fitted, got "
            f"{show(rows.ids[int(strange[0])])}. Fit a table that has it, or leave its rows out."
        )
    codes = panel.keys.get_indexer(rows.ids)
    later = panel.grid.places(stamps) - panel.ends[codes] - 1
    use = np.flatnonzero((codes >= 0) & (later >= 0) & (later < steps))
    counts = np.zeros((len(panel.keys), steps), dtype=int)
    np.add.at(counts, (codes[use], later[use]), 1)
    if (counts > 1).any():
        k = next(int(row) for row in use if counts[codes[row], later[row]] > 1)
        raise ArgumentError(
            f"{where}: X must have one row for a time, got {rows.stamps[k]} twice in series "
            f"{show(panel.keys[codes[k]])}."
        )
    cells = np.full((len(panel.keys), steps, len(columns)), np.nan)
    for column, name in enumerate(columns):
        cells[codes[use], later[use], column] = rows.others[name][use]
    if np.isnan(cells).any():
        i, h, k = (int(x[0]) for x in np.nonzero(np.isnan(cells)))
        time = panel.grid.times(int(panel.ends[i]) + 1 + h, 1)[0]
        raise ArgumentError(
            f"{where}: X must have a number for the {steps} steps after the end of each series, "
            f"got none in {columns[k]!r} at {time} of series {show(panel.keys[i])}."
        )
    return cells
