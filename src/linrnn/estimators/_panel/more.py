"""Series that go on, and of which only the last values are kept."""

from dataclasses import replace

import numpy as np

from linrnn.errors import ArgumentError, show
from linrnn.estimators._panel.batch import Batch
from linrnn.estimators._panel.long_form import Panel, Rows, cells_of, checked_places


def extended(
    panel: Panel,
    rows: Rows | None,
    longest: int | None,
    *,
    where: str = "",
    missing: str = "error",
) -> Panel:
    """A panel with further rows, each series cut to its last ``longest`` values.

    Raises:
        ArgumentError: times that do not go on where a series ended; another form or other columns.
    """
    if rows is not None:
        panel = _joined(panel, rows, where, missing)
    if longest is None or int(panel.batch.n.max()) <= longest:
        return panel
    n = np.minimum(panel.batch.n, longest)
    places = (panel.batch.n - n)[:, None] + np.arange(int(n.max()))
    places = places.clip(max=panel.batch.y.shape[1] - 1)
    mask = np.arange(places.shape[1]) < n[:, None]
    columns = {
        name: np.where(mask, np.take_along_axis(values, places, 1), 0.0)
        for name, values in {panel.names.value: panel.batch.y, **panel.others}.items()
    }
    y = columns.pop(panel.names.value)
    return replace(panel, batch=Batch(y, n), others=columns)


def _joined(panel: Panel, rows: Rows, where: str, missing: str) -> Panel:
    import pandas as pd

    rows = _continued(panel, rows, where)
    _check_form(panel, rows, where)
    fresh = pd.Index(pd.unique(rows.ids)).set_names(panel.keys.names)
    fresh = fresh[panel.keys.get_indexer(fresh) < 0]
    keys = panel.keys.append(fresh) if len(fresh) else panel.keys
    codes = keys.get_indexer(rows.ids)
    places = checked_places(where, rows, codes, keys, panel.grid, missing)
    old = len(panel.keys)
    starts, ends = np.full(len(keys), -1), np.full(len(keys), -1)
    starts[:old], ends[:old] = panel.ends - panel.batch.n + 1, panel.ends
    order = np.argsort(codes, kind="stable")
    first = np.unique(codes[order], return_index=True)
    for code, k in zip(first[0], first[1], strict=True):
        place = int(places[order[k]])
        if code >= old:
            starts[code] = place
        elif place <= ends[code] or (place > ends[code] + 1 and missing == "error"):
            expected = panel.grid.times(int(ends[code]) + 1, 1)[0]
            raise ArgumentError(
                f"{where}: each series must go on where it ended, with {expected}, got "
                f"{rows.stamps[order[k]]} of series {show(keys[code])}."
            )
    np.maximum.at(ends, codes, places)
    n = ends - starts + 1
    values = {panel.names.value: panel.batch.y, **panel.others}
    columns = {}
    for name, column in {panel.names.value: rows.values, **rows.others}.items():
        cells = np.full((len(keys), int(n.max())), np.nan)
        mask = panel.batch.mask
        cells[:old, : mask.shape[1]] = np.where(mask, values[name], np.nan)
        cells[codes, places - starts[codes]] = column
        columns[name] = cells_of(where, name, cells, n, keys, panel.grid, starts, missing)
    y = columns.pop(panel.names.value)
    return replace(panel, keys=keys, batch=Batch(y, n), ends=ends, others=columns)


def _continued(panel: Panel, rows: Rows, where: str) -> Rows:
    """An array has no times: it begins after the last one."""
    if panel.form != "array":
        return rows
    import pandas as pd

    first = int(panel.ends[0]) + 1
    return rows._replace(
        stamps=pd.Index(np.arange(first, first + len(rows.values))),
        ids=pd.Index([panel.keys[0]] * len(rows.values), dtype=object),
    )


def _check_form(panel: Panel, rows: Rows, where: str) -> None:
    if rows.form != panel.form:
        raise ArgumentError(
            f"{where}: y must come in the form of fit, {panel.form}, got {rows.form}."
        )
    if panel.form == "series" and rows.ids[0] != panel.keys[0]:
        raise ArgumentError(
            f"{where}: y must be the series {show(panel.keys[0])}, got {show(rows.ids[0])}."
        )
    lacking = [name for name in panel.others if name not in rows.others]
    if lacking:
        raise ArgumentError(
            f"{where}: y must have the columns of fit, got {show(list(rows.others))} without "
            f"{show(lacking[0])}."
        )
