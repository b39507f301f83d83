"""The theta method of many series at once."""

import numpy as np

from linrnn.estimators._panel.batch import Batch, is_seasonal
from linrnn.estimators._panel.seasonal import ahead, over_time, season_of

_THETAS = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
_ALPHAS = tuple(np.linspace(0.02, 0.98, 25).tolist())


def theta(batch: Batch, season: int, horizon: int) -> np.ndarray:
    r"""The mean of a line and of exponential smoothing (Assimakopoulos and Nikolopoulos 2000).

    In the form of Hyndman and Billah (2003): smoothing, with half the slope of the line as drift,
    after the season was taken out where a test finds one.
    """
    return _theta(batch, season, horizon, (2.0,))


def optimised_theta(
    batch: Batch, season: int, horizon: int, *, multiply: bool = True
) -> np.ndarray:
    """Theta with the weight of the line that errs least (Fiorucci et al. 2016)."""
    return _theta(batch, season, horizon, _THETAS, multiply=multiply)


def without_season(
    batch: Batch, season: int, horizon: int, *, multiply: bool = True
) -> tuple[Batch, np.ndarray, np.ndarray]:
    """The rows without their season, what multiplies and what adds to forecasts.

    The season is taken out where `is_seasonal` finds one. With ``multiply``, it is divided out
    where all values are positive. Logarithms want none of that: their sign depends on the unit.
    """
    shape = (len(batch.n), horizon)
    factor, term = np.ones(shape), np.zeros(shape)
    seasonal = is_seasonal(batch, season)
    if not seasonal.any():
        return batch, factor, term
    positive = multiply & (np.where(batch.mask, batch.y, 1.0).min(1) > 0)
    steps = batch.y.shape[1]
    by = np.where((seasonal & positive)[:, None], season_of(batch, season, True), 1.0)
    by = np.where(by > 0, by, 1.0)
    less = np.where((seasonal & ~positive)[:, None], season_of(batch, season), 0.0)
    adjusted = batch.mapped(batch.y / over_time(by, steps) - over_time(less, steps))
    return adjusted, ahead(by, batch.n, horizon), ahead(less, batch.n, horizon)


def _theta(
    batch: Batch, season: int, horizon: int, thetas: tuple[float, ...], *, multiply: bool = True
) -> np.ndarray:
    adjusted, factor, term = without_season(batch, season, horizon, multiply=multiply)
    mask, n = adjusted.mask, adjusted.n
    steps = np.arange(1, adjusted.y.shape[1] + 1)
    centre = (n + 1) / 2
    moved = (steps - centre[:, None]) * mask
    slope = (moved * adjusted.y).sum(1) / np.maximum((moved**2).sum(1), 1e-300)
    alphas = np.array(_ALPHAS)
    weights = 1 - 1 / np.array(thetas)
    level = np.repeat(adjusted.y[:, :1], len(alphas), 1)  # (rows, alphas)
    squares = np.zeros((*level.shape, len(thetas)))
    for t in range(1, adjusted.y.shape[1]):
        alive = (t < n)[:, None]
        y = adjusted.y[:, t, None]
        rising = (1 - (1 - alphas) ** t) / alphas  # (alphas,)
        push = slope[:, None, None] * rising[:, None] * weights  # (rows, alphas, thetas)
        squares += np.where(alive[..., None], ((y - level)[..., None] - push) ** 2, 0)
        level = np.where(alive, level + alphas * (y - level), level)
    flat = squares.reshape(len(n), -1).argmin(1)
    a, k = np.unravel_index(flat, squares.shape[1:])
    rising = (1 - (1 - alphas[a]) ** n) / alphas[a]
    h = np.arange(horizon)
    forecast = level[np.arange(len(n)), a][:, None] + (weights[k] * slope)[:, None] * (
        h + rising[:, None]
    )
    return np.asarray(forecast * factor + term)
