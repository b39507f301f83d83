"""How wide bands must be, from what forecasts of the past got wrong."""

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from linrnn.estimators._panel.batch import Batch, means
from linrnn.estimators._panel.selection import Trial, mixed, scores_of, weights_of

_RECENT = 24
_FLOOR = 0.5
"""Least scale of recent changes, as a share of the root mean square of all."""
_PRIOR = 8.0
"""Errors that those of all series count for in the size of those of one."""
_FAR = 1e6
_CORRECTION = 0.5
"""Share of the conformal correction for few errors. On single series 1 gave bands of 80 % that
held 83 to 88 %, 0 bands that held 72 to 82 %."""
_FEW = 4
"""Values of which a row has too few changes to say how much it changes."""
_UNJUDGED = 1 / 3
"""First share of the origins, whose errors do not count in bands: too little was judged before
them, so their means of methods are worse than today's. Where all counted, bands of 80 % of 14
monthly series covered 84 % from twelve origins, now 82 %. The mean distance of single series from
80 % fell from 6.9 to 5.7 there, and for yearly, quarterly and hourly series too."""
USUAL = 0.8
"""Share of the errors that are not large, where it is counted how many say something new."""
_FEWEST_ORIGINS = 4
_FIRST = frozenset({"comb", "ets", "theta", "damped trend"})
"""Their mean stands for the forecast at origins that nothing was judged before."""


class Bands(NamedTuple):
    """Sizes of errors, and the quantiles that all series share."""

    size: np.ndarray
    """(series,): the root mean square of an error one step ahead, in units of the spread."""
    growth: np.ndarray
    """(horizon,): by how much errors are larger further ahead; the first is 1."""
    pooled: np.ndarray
    """(cells,), rising: absolute errors over size and growth."""
    independent: float
    """How many of the cells say something new: series that move together count once."""

    def at(self, coverage: float) -> np.ndarray:
        """Half widths (series, horizon) in units of the spread."""
        return np.asarray(self.width(coverage) * self.size[:, None] * self.growth)

    def width(self, coverage: float) -> float:
        """The half width in units of size and growth."""
        level = min(1.0, coverage * (1 + _CORRECTION / max(self.independent, 1.0)))
        width = float(np.quantile(self.pooled, level)) if len(self.pooled) else 1.0
        # few errors show no tail: that of a normal distribution is no thinner
        return max(width, _normal(coverage) * _median_scale(self.pooled))


def _normal(coverage: float) -> float:
    """The half width of a band of the standard normal distribution."""
    return NormalDist().inv_cdf((1 + coverage) / 2)


def _median_scale(pooled: np.ndarray) -> float:
    return float(np.median(pooled)) * 1.4826 if len(pooled) else 1.0


def spread_of(batch: Batch) -> np.ndarray:
    """(rows,): the root mean square of the last changes, half that of all at least."""
    steps = batch.y.shape[1]
    if steps < 2:
        return np.where(batch.last != 0, np.abs(batch.last), 1.0)
    squares = np.diff(batch.y, axis=1) ** 2
    inside = batch.mask[:, 1:]
    every = np.sqrt(means(batch, squares, inside))
    latest = inside & (np.arange(1, steps) >= batch.n[:, None] - _RECENT)
    recent = np.sqrt(means(batch, squares, latest))
    spread = np.maximum(recent, _FLOOR * every)
    level = np.abs(means(batch, batch.y))
    return np.where(spread > 1e-9 * level, spread, np.where(level > 0, level, 1.0))


def share_of_level(batch: Batch) -> float | None:
    """How much series change, as a share of their level: the median; None without a long one."""
    spread, level = spread_of(batch), np.abs(means(batch, batch.y))
    long = (batch.n > _FEW) & (level > 0)
    return float(np.median(spread[long] / level[long])) if long.any() else None


def spread_among(batch: Batch, share: float | None) -> np.ndarray:
    """(rows,): as `spread_of`; rows of few changes lean on how much the others change.

    Args:
        batch: the rows.
        share: of `share_of_level`: a row of one value has changed by nothing yet.
    """
    spread, level = spread_of(batch), np.abs(means(batch, batch.y))
    if share is None:
        return spread
    changes = batch.n - 1
    squares = changes * spread**2 + _FEW * (share * level) ** 2
    leaning = np.sqrt(squares / (changes + _FEW))
    return np.where((batch.n > _FEW) | (level == 0), spread, leaning)


def honest_errors(trial: Trial) -> np.ndarray:
    """(series, origins, horizon): of the mean that each origin would have chosen by then."""
    steps = np.arange(1, trial.errors.shape[3] + 1)
    offsets = trial.offsets
    result = np.full(trial.errors.shape[1:], np.nan)
    first = np.array([name in _FIRST for name in trial.names])
    for j, offset in enumerate(offsets):
        errors = trial.errors[:, :, j]  # (contestants, series, horizon)
        can = ~np.isnan(errors[..., 0])
        came = (offsets[:, None] - steps >= offset)[None, None]  # (1, 1, origins, horizon)
        weights = np.zeros(can.shape)
        if came.any():
            weights = weights_of(scores_of(trial, came), can)
        unjudged = weights.sum(0) == 0
        equal = can & first[:, None]
        equal = np.where(equal.any(0), equal, can)
        equal = equal / np.maximum(equal.sum(0), 1)
        weights = np.where(unjudged, equal, weights)
        forecast_exists = (~np.isnan(errors)).any(0)
        result[:, j] = np.where(forecast_exists, mixed(errors, weights), np.nan)
    return result


def calibrate(batch: Batch, trial: Trial, horizon: int) -> Bands:
    """Bands of a back-test, in units of `spread_of`."""
    if not len(trial.names) or not len(trial.offsets):
        growth = np.sqrt(np.arange(1, horizon + 1))
        return Bands(np.ones(len(batch.n)), growth, np.empty(0), 1.0)
    spread = np.stack([_spread_at(batch, int(offset)) for offset in trial.offsets], 1)
    size = np.abs(honest_errors(trial)) * (trial.scale / spread)[..., None]
    first = int(_UNJUDGED * len(trial.offsets))
    size[:, :first] = np.nan  # a series that has these origins has the later ones too
    size = np.minimum(size, _FAR)  # whose squares do not overflow
    judged = ~np.isnan(size)
    growth = _growth(size, judged)
    unit = np.where(judged, size / growth, 0.0)
    count = judged.sum((1, 2)) / max(1.0, math.sqrt(horizon))
    every = (unit**2).sum() / max(int(judged.sum()), 1)
    own_power = (unit**2).sum((1, 2)) / np.maximum(judged.sum((1, 2)), 1)
    power = (count * own_power + _PRIOR * every) / (count + _PRIOR)
    root = np.sqrt(np.maximum(power, 1e-24))
    relative = unit / root[:, None, None]
    reach = judged.any(2).sum(1)
    windows = trial.offsets[first] / math.sqrt(horizon) * float((reach > 0).sum())
    windows = min(windows, _told_apart(relative, judged, trial.offsets))
    return Bands(root, growth, np.sort(relative[judged]), float(max(windows, 1.0)))


def _told_apart(relative: np.ndarray, judged: np.ndarray, offsets: np.ndarray) -> float:
    r"""How many errors say something new, by how much the shares of large ones vary over time.

    Equation:
        n = p (1 - p) / Var(mean of p_j),   Var(mean of p_j) = Var(p_j) overlap / origins

    with ``p_j`` the share of errors at origin ``j`` beyond the quantile ``1 - p`` of all. Series
    that move together are wrong together: the shares of seven macroeconomic series vary like those
    of one or two. Windows of origins that are less than a horizon apart overlap.

    Args:
        relative: (series, origins, horizon), errors in units of their size.
        judged: where there are any.
        offsets: of the origins.
    """
    use = judged.any((0, 2))
    if use.sum() < _FEWEST_ORIGINS:
        return math.inf
    beyond = judged & (relative > np.quantile(relative[judged], USUAL))
    shares = beyond.sum((0, 2))[use] / judged.sum((0, 2))[use]
    apart = float(np.ptp(offsets[use])) / (len(shares) - 1)
    overlap = max(1.0, relative.shape[2] / apart)
    variance = float(shares.var()) * overlap / len(shares)
    return USUAL * (1 - USUAL) / variance if variance > 0 else math.inf


def _spread_at(batch: Batch, offset: int) -> np.ndarray:
    n = np.maximum(batch.n - offset, 1)
    return spread_of(Batch(np.where(np.arange(batch.y.shape[1]) < n[:, None], batch.y, 0.0), n))


def _growth(size: np.ndarray, judged: np.ndarray) -> np.ndarray:
    """(horizon,): a power of the steps ahead, between constant and a line, through all errors."""
    count = judged.sum((0, 1))
    mean = np.where(judged, size, 0).sum((0, 1)) / np.maximum(count, 1)
    steps = np.arange(1, size.shape[2] + 1)
    use = (count > 0) & (mean > 0)
    power = 0.5
    if use.sum() > 1:
        x, y, w = np.log(steps[use]), np.log(mean[use]), count[use].astype(float)
        x, y = x - np.average(x, weights=w), y - np.average(y, weights=w)
        power = float((w * x * y).sum() / max(float((w * x * x).sum()), 1e-12))
    return np.asarray(steps ** float(np.clip(power, 0.0, 1.0)))
