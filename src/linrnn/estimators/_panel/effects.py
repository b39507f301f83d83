"""Effects of inputs that are known ahead on the values of each series."""

import numpy as np

from linrnn.estimators._panel.batch import Batch, means
from linrnn.estimators._panel.seasonal import moving_average

_WINDOW = 13
_PRIOR = 2.0
"""Steps, of the variance of an input, that the effect over all series counts for."""


def effects_of(batch: Batch, known: np.ndarray, season: int, groups: np.ndarray) -> np.ndarray:
    """(rows, columns): regressions of values on inputs, both without trend and season.

    Each row leans on the regression of all rows of its group, which have the same unit: that of
    their mean absolute deviation. Two rows of one group may have other effects.

    Args:
        batch: values.
        known: (rows, time or more, columns).
        season: in steps; 1 is none.
        groups: (rows,), of rows that may know of each other.
    """
    columns = known.shape[2]
    y = _without_trend(batch, season)
    size = np.maximum(means(batch, np.abs(y)), 1e-300)
    y = y / size[:, None]
    x = np.stack(
        [
            _without_trend(batch.mapped(known[:, : batch.y.shape[1], k]), season)
            for k in range(columns)
        ],
        2,
    )
    products = np.einsum("rti,rtj->rij", x, x)
    along = np.einsum("rti,rt->ri", x, y)
    coefficients = np.zeros((len(y), columns))
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        total, steps = products[rows].sum(0), float(batch.n[rows].sum())
        ridge = np.diag(np.maximum(1e-3 * total.diagonal(), 1e-12))
        shared = np.linalg.solve(total + ridge, along[rows].sum(0))
        prior = _PRIOR * (total + 1e3 * ridge / max(len(rows), 1)) / max(steps, 1.0)
        prior = prior + 1e-9 * np.eye(columns)
        solved = np.linalg.solve(products[rows] + prior, (along[rows] + prior @ shared)[..., None])
        coefficients[rows] = solved[..., 0]
    return np.asarray(coefficients * size[:, None])


def _without_trend(batch: Batch, season: int) -> np.ndarray:
    """(rows, time): less a moving mean and the mean of each step of the season."""
    width = season if season > 2 else _WINDOW
    middle, complete = moving_average(batch, width)
    detrended = np.asarray(np.where(complete, batch.y - middle, 0.0))
    few = np.asarray(~complete.any(1))  # rows shorter than the window lose their mean alone
    centred = (batch.y - means(batch, batch.y)[:, None]) * batch.mask
    detrended = np.where(few[:, None], centred, detrended)
    if season > 1:
        counted = np.where(few[:, None], batch.mask, complete)
        for phase in range(season):
            part, present = detrended[:, phase::season], counted[:, phase::season]
            mean = (part * present).sum(1) / np.maximum(present.sum(1), 1)
            enough = present.sum(1) > 1
            detrended[:, phase::season] -= np.where(enough, mean, 0)[:, None] * present
    return detrended
