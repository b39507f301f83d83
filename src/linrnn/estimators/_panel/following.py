"""Choices of a fit, put to later values of some or all of its series."""

from typing import Any, NamedTuple

import numpy as np

from linrnn.errors import ArgumentError, show
from linrnn.estimators._panel.calendar import Grid, kind_of
from linrnn.estimators._panel.engine import Chosen
from linrnn.estimators._panel.known import Columns
from linrnn.estimators._panel.long_form import Names, Panel, read_panel, read_rows
from linrnn.estimators._panel.totals import with_totals


class Fit(NamedTuple):
    """Choices of a fit, the same whichever series are followed."""

    keys: Any
    """Ids of all series that were fitted, those of totals last."""
    names: Names
    grid: Grid
    columns: Columns
    chosen: Chosen
    n_parts: int
    """Series that are no totals."""

    @property
    def parts(self) -> Any:
        """Their ids."""
        return self.keys[: self.n_parts]

    @property
    def has_totals(self) -> bool:
        """Whether totals were fitted too."""
        return self.n_parts < len(self.keys)

    def of(self, places: np.ndarray) -> tuple[Columns, Chosen]:
        """Columns and choices of some of the series."""
        columns = self.columns._replace(static=self.columns.static[places])
        return columns, self.chosen.of(places)


def follow(
    where: str, fitted: Fit, table: Any, freq: str | None, missing: str
) -> tuple[Panel, np.ndarray]:
    """Series of a table with their totals, and their numbers among those that were fitted.

    Raises:
        ArgumentError: a series or a column that was not fitted, a series that a total needs, times
            of another kind or step.
    """
    panel = _read(where, fitted, table, freq, missing)
    strange = panel.keys[~panel.keys.isin(fitted.parts)]
    if len(strange):
        raise ArgumentError(
            f"{where}: every series of y must be one that was fitted, got {show(strange[0])}. Fit "
            "the longer table."
        )
    absent = fitted.parts[~fitted.parts.isin(panel.keys)]
    if fitted.has_totals and len(absent):
        raise ArgumentError(
            f"{where}: y must have every series of the fit for totals, got none of "
            f"{show(absent[0])}."
        )
    columns = (*fitted.columns.known, *fitted.columns.past)
    lacking = [name for name in columns if name not in panel.others]
    if lacking:
        raise ArgumentError(
            f"{where}: y must have the columns of the fit, got none named {show(lacking[0])}."
        )
    panel = with_totals(where, panel) if fitted.has_totals else panel
    return panel, np.asarray(fitted.keys.get_indexer(panel.keys))


def _read(where: str, fitted: Fit, table: Any, freq: str | None, missing: str) -> Panel:
    rows = read_rows(where, "y", table, fitted.names)
    if kind_of(rows.stamps) != fitted.grid.kind:
        raise ArgumentError(
            f"{where}: times of y must be {fitted.grid.kind} as in fit, got {kind_of(rows.stamps)}."
        )
    if fitted.grid.kind == "dates":  # a table of two rows shows no step
        freq = fitted.grid.step.freqstr
    panel = read_panel(where, rows, freq, missing)
    one_number = fitted.grid.kind == "numbers" and int(panel.batch.n.max()) < 2
    if not one_number and panel.grid.step != fitted.grid.step:
        raise ArgumentError(
            f"{where}: times of y must go on in steps of {fitted.grid.said}, got {panel.grid.said}."
        )
    return panel
