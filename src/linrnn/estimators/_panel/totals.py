"""Totals of groups of series, and forecasts of all series that add up."""

from dataclasses import replace
from typing import Any

import numpy as np

from linrnn.errors import ArgumentError, show
from linrnn.estimators._panel.batch import Batch
from linrnn.estimators._panel.long_form import Panel

ALL = "(all)"
"""Stands in the id columns of a total for every value."""
_TINY = 1e-12


def with_totals(where: str, panel: Panel) -> Panel:
    """A panel with the total of each group of series, and of all, behind its series.

    A group has the same ids in the first columns, one at least and not all; the others are `ALL`. A
    total begins with the first of its series, and a series counts for 0 before its start. Further
    columns of a total are the means over those that are there.

    Raises:
        ArgumentError: series that end at different times, ids that are no text or are `ALL`.
    """
    _check(where, panel)
    keys = [_levels(key) for key in panel.keys]
    groups: dict[tuple[str, ...], list[int]] = {}
    for depth in range(len(keys[0])):
        for place, key in enumerate(keys):
            groups.setdefault(key[:depth] + (ALL,) * (len(key) - depth), []).append(place)
    rows, n = panel.batch.y.shape[1], panel.batch.n
    starts = n.max() - n  # steps after the first of all
    y = _moved(panel.batch.y, starts)
    moved = {name: _moved(x, starts) for name, x in panel.others.items()}
    inside = np.arange(rows) >= starts[:, None]
    totals = np.zeros((len(groups), rows))
    powers = np.zeros(len(groups), dtype=np.int64)
    lengths = np.zeros(len(groups), dtype=n.dtype)
    further = {name: np.zeros((len(groups), rows)) for name in moved}
    for k, places in enumerate(groups.values()):
        largest = int(panel.powers[places].max())
        total = np.ldexp(y[places], (panel.powers[places] - largest)[:, None]).sum(0)
        more = int(np.frexp(np.abs(total).max())[1])
        totals[k], powers[k] = np.ldexp(total, -more), largest + more
        lengths[k] = n[places].max()
        count = np.maximum(inside[places].sum(0), 1)
        for name, x in moved.items():
            further[name][k] = (x[places] / count).sum(0)
    back = lengths - lengths.max()
    batch = Batch(
        np.concatenate([panel.batch.y, _moved(totals, back)]), np.concatenate([n, lengths])
    )
    return replace(
        panel,
        keys=_joined(panel.keys, list(groups)),
        batch=batch,
        powers=np.concatenate([panel.powers, powers]),
        ends=np.concatenate([panel.ends, np.full(len(groups), panel.ends[0])]),
        others={
            name: np.concatenate([x, _moved(further[name], back)])
            for name, x in panel.others.items()
        },
    )


def parts_of(panel: Panel) -> Panel:
    """The series of a panel that are no totals."""
    n = members(panel.keys).shape[1]
    return replace(
        panel,
        keys=panel.keys[:n],
        batch=Batch(panel.batch.y[:n], panel.batch.n[:n]),
        powers=panel.powers[:n],
        ends=panel.ends[:n],
        others={name: x[:n] for name, x in panel.others.items()},
    )


def members(keys: Any) -> np.ndarray:
    """(totals, series) of 0 and 1: which series each total is the sum of."""
    levels = [_levels(key) for key in keys]
    parts = [key for key in levels if key[-1] != ALL]
    sums = levels[len(parts) :]
    rows = np.ones((len(sums), len(parts)))
    for depth in range(len(levels[0])):
        of_parts = np.array([key[depth] for key in parts], dtype=object)
        of_sums = np.array([key[depth] for key in sums], dtype=object)[:, None]
        rows *= (of_sums == ALL) | (of_sums == of_parts)
    return rows


def with_means(panel: Panel, later: np.ndarray) -> np.ndarray:
    """Inputs (series, steps, columns) of parts, and behind them their means for totals."""
    of = members(panel.keys)
    return np.concatenate([later, np.einsum("mn,nsk->msk", of / of.sum(1, keepdims=True), later)])


def agreed(panel: Panel, values: np.ndarray, errors: np.ndarray) -> np.ndarray:
    r"""Forecasts (series, steps) that add up, the nearest to those given in units of their errors.

    Equation:
        b = b_0 + V A' (U + A V A')^-1 (t_0 - A b_0),   t = A b

    ``b_0`` and ``t_0`` are forecasts of parts and of totals, V and U the squares of their errors as
    diagonal matrices, A says which parts a total has. Parts that never were negative stay so.

    Args:
        panel: with totals behind the parts.
        values: (series, steps), each series over its power of 2.
        errors: (series,), likewise.

    Reference:
        Wickramasuriya, Athanasopoulos and Hyndman 2019, JASA 114(526), with a diagonal covariance.
    """
    of = members(panel.keys)
    n = of.shape[1]
    unit = panel.powers - panel.powers.max()
    values = np.ldexp(values, unit[:, None])
    variance = np.ldexp(errors, unit) ** 2
    parts, sums = values[:n], values[n:]
    mixed = np.diag(variance[n:]) + (of * variance[:n]) @ of.T
    mixed += np.eye(len(mixed)) * (_TINY * mixed.max() or 1.0)
    parts = parts + variance[:n, None] * (of.T @ np.linalg.solve(mixed, sums - of @ parts))
    low = np.where(panel.batch.mask, panel.batch.y, np.inf).min(1)[:n]
    parts = np.where((low >= 0)[:, None], np.maximum(parts, 0.0), parts)
    return np.asarray(np.ldexp(np.concatenate([parts, of @ parts]), -unit[:, None]))


def _check(where: str, panel: Panel) -> None:
    if len(set(panel.ends.tolist())) > 1:
        early, late = (int(x) for x in (panel.ends.argmin(), panel.ends.argmax()))
        early_end, late_end = (panel.grid.times(int(panel.ends[k]), 1)[0] for k in (early, late))
        raise ArgumentError(
            f"{where}: series must end at the same time for totals, got {early_end} for "
            f"{show(panel.keys[early])} and {late_end} for {show(panel.keys[late])}. Cut the "
            "longer ones, or fill the shorter ones with 0."
        )
    for key in panel.keys:
        odd = [part for part in _levels(key) if not isinstance(part, str) or part == ALL]
        if odd:
            raise ArgumentError(
                f"{where}: ids must be text other than {ALL!r} for totals, got {show(odd[0])}. "
                "Turn them into text: table[id].astype(str)."
            )


def _levels(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def _moved(x: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Rows (rows, time) moved by some steps each, later or earlier; 0 where nothing was."""
    places = np.arange(x.shape[1]) - steps[:, None]
    inside = (places >= 0) & (places < x.shape[1])
    return np.where(inside, np.take_along_axis(x, places.clip(0, x.shape[1] - 1), 1), 0.0)


def _joined(keys: Any, totals: list[tuple[str, ...]]) -> Any:
    import pandas as pd

    if isinstance(keys, pd.MultiIndex):
        return keys.append(pd.MultiIndex.from_tuples(totals, names=keys.names))
    return keys.append(pd.Index([total[0] for total in totals], name=keys.name, dtype=keys.dtype))
