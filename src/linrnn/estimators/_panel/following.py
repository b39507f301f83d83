"""Later values of series that were fitted."""

from typing import Any

import numpy as np

from linrnn.errors import ArgumentError, show
from linrnn.estimators._panel.calendar import kind_of
from linrnn.estimators._panel.long_form import Panel, read_panel, read_rows


def follow(
    where: str, fitted: Panel, table: Any, freq: str | None, missing: str
) -> tuple[Panel, np.ndarray]:
    """Series of a table, and their numbers among those that were fitted.

    Raises:
        ArgumentError: a series that was not fitted, times of another kind or step.
    """
    rows = read_rows(where, "y", table, fitted.names)
    if kind_of(rows.stamps) != fitted.grid.kind:
        raise ArgumentError(
            f"{where}: times of y must be {fitted.grid.kind} as in fit, got {kind_of(rows.stamps)}."
        )
    if fitted.grid.kind == "dates":  # a table of two rows shows no step
        freq = fitted.grid.step.freqstr
    panel = read_panel(where, rows, freq, missing)
    if fitted.grid.kind == "numbers":
        few = int(panel.batch.n.max()) < 2
        if not few and panel.grid.step != fitted.grid.step:
            raise ArgumentError(
                f"{where}: times of y must go on in steps of {fitted.grid.step}, got "
                f"{panel.grid.step}."
            )
    places = fitted.keys.get_indexer(panel.keys)
    if (places < 0).any():
        raise ArgumentError(
            f"{where}: every series of y must be one that was fitted, got "
            f"{show(panel.keys[int(np.flatnonzero(places < 0)[0])])}. Fit the longer table."
        )
    return panel, places
