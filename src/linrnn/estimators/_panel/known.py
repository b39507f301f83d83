"""Which columns are known ahead, which are of the past, and what does not change."""

from typing import Any, NamedTuple

import numpy as np

from linrnn.errors import ArgumentError, ArgumentTypeError, show
from linrnn.estimators._cells import are_objects, of_column
from linrnn.estimators._inputs import check_names
from linrnn.estimators._panel.long_form import Panel
from linrnn.estimators._panel.ridge import Inputs

_MOST_CATEGORIES = 50


class Columns(NamedTuple):
    """The inputs of a forecaster."""

    known: tuple[str, ...]
    past: tuple[str, ...]
    static: np.ndarray
    """(series, columns), each with mean 0 and variance 1."""

    @classmethod
    def of(cls, where: str, known: tuple[str, ...], panel: Panel) -> "Columns":
        """Those of a panel.

        Raises:
            ArgumentError: one that is known ahead is not there.
        """
        lacking = [name for name in known if name not in panel.others]
        if lacking:
            raise ArgumentError(
                f"{where}: known must name columns of y, got {show(lacking[0])}, and y has "
                f"{show(list(panel.others))} besides id, time and value."
            )
        past = tuple(name for name in panel.others if name not in known)
        return cls(known, past, np.zeros((len(panel.keys), 0)))

    def for_all(self, rows: int) -> "Columns":
        """For further series, of which nothing is static."""
        more = np.zeros((rows - len(self.static), self.static.shape[1]))
        return self._replace(static=np.concatenate([self.static, more]))

    def inputs(self, panel: Panel, later: np.ndarray | None, horizon: int) -> Inputs | None:
        """Inputs of all series; ``later`` (series, steps, known columns) follows their ends.

        Steps that ``later`` does not reach have its last values.
        """
        if not (self.known or self.past or self.static.shape[1]):
            return None
        batch = panel.batch
        rows, steps = batch.y.shape
        known = np.zeros((rows, steps + horizon, len(self.known)))
        past = np.zeros((rows, steps, len(self.past)))
        for k, name in enumerate(self.past):
            past[..., k] = panel.others[name] / _unit(panel.others[name])
        units = [_unit(panel.others[name]) for name in self.known]
        for k, name in enumerate(self.known):
            known[:, :steps, k] = panel.others[name] / units[k]
        if later is not None:
            later = later / np.array(units)
            places = batch.n[:, None] + np.arange(horizon)
            ahead = np.minimum(np.arange(horizon), later.shape[1] - 1)
            known[np.arange(rows)[:, None], places] = later[:, ahead]
        return Inputs(known, past, self.static)


def _unit(values: np.ndarray) -> float:
    """The largest size, so that no square overflows or vanishes."""
    return float(np.abs(values).max()) or 1.0


def read_static(where: str, static: Any, panel: Panel) -> np.ndarray:
    """(series, columns): numbers scaled, and a column of 0 and 1 for each category.

    Raises:
        ArgumentError: no id, a series that is not there or twice, too many categories.
        ArgumentTypeError: dates, or other cells that are neither numbers nor words.
    """
    import pandas as pd

    if static is None:
        return np.zeros((len(panel.keys), 0))
    ids = list(panel.names.id)
    if isinstance(static, pd.DataFrame) and set(ids) <= set(static.index.names):
        static = static.reset_index()
    if not isinstance(static, pd.DataFrame) or any(name not in static.columns for name in ids):
        columns = getattr(static, "columns", None)
        said = show(static) if columns is None else f"the columns {show(list(columns))}"
        raise ArgumentError(
            f"{where}: static must be a DataFrame with the columns {show(ids)}, got {said}."
        )
    check_names(where, "static", static)
    table = static.set_index(ids if len(ids) > 1 else ids[0])
    if table.index.has_duplicates:
        twice = table.index[table.index.duplicated()][0]
        raise ArgumentError(
            f"{where}: static must have one row for a series, got {show(twice)} twice."
        )
    absent = panel.keys[~panel.keys.isin(table.index)]
    if len(absent):
        raise ArgumentError(
            f"{where}: static must have a row for each series, got none for {show(absent[0])}."
        )
    table = table.loc[panel.keys]
    for name in table.columns:
        if are_objects(table[name].dtype) and not table[name].map(type).eq(str).any():
            table[name] = of_column(where, f"column {show(name)} of static", table[name])
    words = [name for name in table.columns if table[name].dtype.kind not in "biuf"]
    for name in words:
        kind = table[name].dtype
        if not (are_objects(kind) or isinstance(kind, (pd.StringDtype, pd.CategoricalDtype))):
            raise ArgumentTypeError(
                f"{where}: a column of static must hold numbers or words, got {kind} in "
                f"{show(name)}. Of a date give a number, such as days since the first."
            )
        if table[name].nunique() > _MOST_CATEGORIES:
            raise ArgumentError(
                f"{where}: a column of static must have {_MOST_CATEGORIES} categories at most, got "
                f"{table[name].nunique()} in {name!r}. Leave it out."
            )
    numbers = pd.get_dummies(table, columns=words, dtype=float).to_numpy(dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise ArgumentError(f"{where}: static must hold finite numbers, got NaN or infinity.")
    deviation = numbers.std(0)
    numbers = (numbers - numbers.mean(0)) / np.where(deviation > 0, deviation, 1.0)
    return np.asarray(numbers[:, deviation > 0])
