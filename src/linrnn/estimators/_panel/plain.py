"""Forecasts without parameters, and those of counts that are mostly 0."""

import numpy as np

from linrnn.estimators._panel.batch import Batch, means

_RATES = (0.02, 0.05, 0.1, 0.2, 0.3)


def naive(batch: Batch, season: int, horizon: int) -> np.ndarray:
    """(rows, horizon): the last value."""
    del season
    return np.repeat(batch.last[:, None], horizon, 1)


def seasonal_naive(batch: Batch, season: int, horizon: int) -> np.ndarray:
    """The value a season before; NaN in rows that are shorter than one."""
    back = batch.n[:, None] - season + np.arange(horizon) % season
    return np.where(back >= 0, np.take_along_axis(batch.y, back.clip(0), 1), np.nan)


def drift(batch: Batch, season: int, horizon: int) -> np.ndarray:
    """The line through the first value and the last."""
    del season
    slope = (batch.last - batch.y[:, 0]) / np.maximum(batch.n - 1, 1)
    return np.asarray(batch.last[:, None] + slope[:, None] * np.arange(1, horizon + 1))


def mean(batch: Batch, season: int, horizon: int) -> np.ndarray:
    """The mean of all values."""
    del season
    return np.repeat(means(batch, batch.y)[:, None], horizon, 1)


def croston(batch: Batch, season: int, horizon: int) -> np.ndarray:
    """Size of a demand over the steps between two (Croston 1972), NaN where there are no zeros."""
    del season
    return _intermittent(batch, horizon, unbiased=False)


def sba(batch: Batch, season: int, horizon: int) -> np.ndarray:
    """Croston's forecast less its bias (Syntetos and Boylan 2005)."""
    del season
    return _intermittent(batch, horizon, unbiased=True)


def tsb(batch: Batch, season: int, horizon: int) -> np.ndarray:
    """Size of a demand times its probability, which falls without one (Teunter et al. 2011)."""
    del season
    best, lowest = np.full(len(batch.n), np.nan), np.full(len(batch.n), np.inf)
    sparse = _sparse(batch)
    for rate in _RATES:
        share = means(batch, batch.y > 0)
        size = _mean_demand(batch)
        squares = np.zeros(len(batch.n))
        for t in range(batch.y.shape[1]):
            y, alive = batch.y[:, t], t < batch.n
            squares += np.where(alive, (y - share * size) ** 2, 0)
            size = np.where(alive & (y > 0), size + rate * (y - size), size)
            share = np.where(alive, share + rate * ((y > 0) - share), share)
        better = sparse & (squares < lowest)
        best, lowest = (
            np.where(better, share * size, best),
            np.where(better, squares, lowest),
        )
    return np.repeat(best[:, None], horizon, 1)


def _sparse(batch: Batch) -> np.ndarray:
    """(rows,): no value is negative, a tenth at least is 0, and not all."""
    zeros = means(batch, batch.y == 0)
    return np.asarray((batch.y.min(1) >= 0) & (zeros >= 0.1) & (zeros < 1) & (batch.n > 2))


def _mean_demand(batch: Batch) -> np.ndarray:
    return means(batch, batch.y, batch.mask & (batch.y > 0))


def _intermittent(batch: Batch, horizon: int, *, unbiased: bool) -> np.ndarray:
    best, lowest = np.full(len(batch.n), np.nan), np.full(len(batch.n), np.inf)
    sparse = _sparse(batch)
    for rate in _RATES:
        bias = 1 - rate / 2 if unbiased else 1.0
        size = _mean_demand(batch)
        gap = 1 / np.maximum(means(batch, batch.y > 0), 1e-9)
        since, squares = np.ones(len(batch.n)), np.zeros(len(batch.n))
        for t in range(batch.y.shape[1]):
            y, alive = batch.y[:, t], t < batch.n
            squares += np.where(alive, (y - bias * size / gap) ** 2, 0)
            demand = alive & (y > 0)
            size = np.where(demand, size + rate * (y - size), size)
            gap = np.where(demand, gap + rate * (since - gap), gap)
            since = np.where(demand, 1.0, since + 1)
        better = sparse & (squares < lowest)
        forecast = bias * size / gap
        best, lowest = (
            np.where(better, forecast, best),
            np.where(better, squares, lowest),
        )
    return np.repeat(best[:, None], horizon, 1)
