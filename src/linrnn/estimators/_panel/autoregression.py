"""Autoregressions of many series at once, their order by an information criterion."""

import numpy as np

from linrnn.estimators._panel.batch import Batch
from linrnn.estimators._panel.theta import without_season

_ORDERS = (1, 2, 3, 4, 6, 9, 12)
_PENALTY = 1e-3


def autoregression(batch: Batch, season: int, horizon: int) -> np.ndarray:
    """An autoregression of the values about their mean."""
    return _adjusted(batch, season, horizon, differences=False)


def integrated(batch: Batch, season: int, horizon: int, *, multiply: bool = True) -> np.ndarray:
    """An autoregression of the changes about their mean."""
    return _adjusted(batch, season, horizon, differences=True, multiply=multiply)


def _adjusted(
    batch: Batch, season: int, horizon: int, *, differences: bool, multiply: bool = True
) -> np.ndarray:
    adjusted, factor, term = without_season(batch, season, horizon, multiply=multiply)
    forecast = _forecast(adjusted, horizon, differences=differences)
    return np.asarray(forecast * factor + term)


def _forecast(batch: Batch, horizon: int, *, differences: bool) -> np.ndarray:
    forecast = np.full((len(batch.n), horizon), np.nan)
    rows = np.flatnonzero(batch.n >= 6)
    if not len(rows):
        return forecast
    part = batch.take(rows)
    y = part.backwards()
    n = part.n
    if differences:
        y, n = np.diff(y, axis=1), n - 1
    inside = np.arange(y.shape[1]) >= y.shape[1] - n[:, None]
    centre = (y * inside).sum(1) / n
    z = (y - centre[:, None]) * inside
    z = _iterated(z, n, _coefficients(z, n), horizon) + centre[:, None]
    forecast[rows] = part.last[:, None] + z.cumsum(1) if differences else z
    return forecast


def _coefficients(z: np.ndarray, n: np.ndarray) -> np.ndarray:
    """(rows, orders): of rows that end together, by least squares, forwards and backwards.

    Both directions obey the same equation, which halves the variance of short rows.
    """
    max_order = min(max(_ORDERS), z.shape[1] - 2)
    best = np.zeros((len(z), max_order))
    best_score = np.full(len(z), np.inf)
    power = np.maximum((z**2).sum(1), 1e-300)
    for order in (p for p in _ORDERS if p <= max_order):
        enough = n >= 2 * order + 4
        if not enough.any():
            break
        windows = np.lib.stride_tricks.sliding_window_view(z, order + 1, axis=1)
        complete = np.arange(windows.shape[1]) >= z.shape[1] - n[:, None]
        windows = windows * complete[..., None]
        products = np.einsum("rti,rtj->rij", windows, windows)
        products = products + products[:, ::-1, ::-1]
        inner, outer = products[:, :order, :order][:, ::-1, ::-1], products[:, :order, order]
        inner = inner + (_PENALTY * power)[:, None, None] * np.eye(order)
        lags = np.linalg.solve(inner, outer[:, ::-1, None])[..., 0]  # lag 1 first
        residual = np.maximum(products[:, order, order] - (outer[:, ::-1] * lags).sum(1), 1e-300)
        count = 2.0 * np.maximum(n - order, 1)
        k = order + 2
        score = n * np.log(residual / count + 1e-12 * power / n) + 2 * k * n / np.maximum(
            n - k - 1, 1
        )
        better = enough & (score < best_score)
        best[:, :order] = np.where(better[:, None], lags, best[:, :order])
        best[:, order:] = np.where(better[:, None], 0.0, best[:, order:])
        best_score = np.where(better, score, best_score)
    return best


def _iterated(z: np.ndarray, n: np.ndarray, coefficients: np.ndarray, horizon: int) -> np.ndarray:
    order = coefficients.shape[1]
    lags = [z[:, -k] for k in range(1, order + 1)]  # the latest first
    limit = 3 * np.abs(z).max(1)
    ahead = []
    for _ in range(horizon):
        following = sum(coefficients[:, k] * lags[k] for k in range(order)) + np.zeros(len(n))
        # an autoregression that explodes is held
        following = np.clip(following, -limit, limit)
        ahead.append(following)
        lags = [following, *lags[:-1]]
    return np.stack(ahead, 1)
