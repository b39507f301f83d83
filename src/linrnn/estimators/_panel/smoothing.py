"""Exponential smoothing of many series at once; parameters by a grid that is then refined."""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from linrnn.estimators._panel.batch import Batch
from linrnn.estimators._panel.seasonal import over_time, season_of

_NUMBERS = 400_000
"""Numbers of states that are computed at once, so that they stay in a processor's cache."""
_ROUNDS = 4
_STEP = 0.9  # of the first refinement, on the logit scale
_SHRINK = 0.6
_SEEN = 100
"""Values that are read at most, the last ones; or ten seasons."""
_RANGES = ((1e-3, 0.999), (1e-3, 0.999), (1e-3, 0.999), (0.8, 0.98))
"""Ranges of the rates of level, trend and season, as shares of the largest, and of damping."""


class Form(NamedTuple):
    """A model of exponential smoothing."""

    trend: bool = False
    damped: bool = False
    season: str = "none"
    """Or "add", "multiply"."""

    @property
    def free(self) -> tuple[int, ...]:
        """Which of the parameters it has."""
        has = (True, self.trend, self.season != "none", self.damped)
        return tuple(j for j in range(4) if has[j])

    def size(self, season: int) -> int:
        """Numbers that are fitted: parameters, first states, and the variance."""
        return len(self.free) + 2 + self.trend + (season - 1) * (self.season != "none")


class Smoothed(NamedTuple):
    """The fit of each row; NaN where the form cannot be fitted."""

    forecast: np.ndarray
    """(rows, horizon)."""
    squares: np.ndarray
    """(rows,): the sum of squared errors one step ahead."""


class _Start(NamedTuple):
    """States before the first step."""

    level: np.ndarray
    trend: np.ndarray
    season: np.ndarray
    """(rows, season)."""


def smooth(batch: Batch, form: Form, season: int, horizon: int) -> Smoothed:
    r"""Fit a form to each row by least squares.

    Equation:
        mu_t = l_{t-1} + phi b_{t-1},  e_t = y_t - mu_t - s_{t-m}     (or y_t - mu_t s_{t-m})
        l_t = mu_t + alpha e_t
        b_t = phi b_{t-1} + alpha beta e_t
        s_t = s_{t-m} + (1 - alpha) gamma e_t

    Where the season multiplies, the error is divided by it in level and trend, and by the level in
    the season. First states are those of a line through the beginning, less its season.
    """
    batch = batch.latest(max(_SEEN, 10 * season), season)
    forecast = np.full((len(batch.n), horizon), np.nan)
    squares = np.full(len(batch.n), np.nan)
    order = np.argsort(-batch.n, kind="stable")
    can = batch.n[order] >= (2 * season if form.season != "none" else 1)
    if form.season == "multiply":
        can &= np.where(batch.mask, batch.y, 1.0).min(1)[order] > 0
    grid = _grid(form)
    states = len(grid) * (3 + season * (form.season != "none"))
    for rows in _chunks(order[can], max(1, _NUMBERS // states)):
        part = batch.take(rows)
        start = _start(part, form, season)
        best, best_squares = _refined(part, form, season, start, grid)
        _, ahead = _run(part, form, season, start, best[:, None], horizon)
        forecast[rows], squares[rows] = ahead[:, 0], best_squares
    return Smoothed(forecast, squares)


def _chunks(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for k in range(0, len(rows), size):
        yield rows[k : k + size]


def _grid(form: Form) -> np.ndarray:
    """(sets, 4): level, trend, season, damping."""
    values = (
        (0.05, 0.2, 0.5, 0.8, 0.98),
        (0.03, 0.3) if form.trend else (0.0,),
        (0.05, 0.4) if form.season != "none" else (0.0,),
        (0.85, 0.95) if form.damped else (1.0,),
    )
    return np.array(list(product(*values)))


def _start(batch: Batch, form: Form, season: int) -> _Start:
    y, neutral = batch.y, 1.0 if form.season == "multiply" else 0.0
    effects = np.full((len(batch.n), season), neutral)
    if form.season != "none":
        effects = season_of(batch, season, form.season == "multiply")
        tiled = over_time(effects, y.shape[1])
        y = y / np.where(tiled > 0, tiled, 1.0) if form.season == "multiply" else y - tiled
    # a line through the beginning
    first = max(10, 2 * season if form.season != "none" else 0)
    y, mask = y[:, :first], batch.mask[:, :first]
    count = np.maximum(mask.sum(1), 1)
    steps = np.arange(1, y.shape[1] + 1) * mask
    centre, mean = steps.sum(1) / count, (y * mask).sum(1) / count
    moved = (steps - centre[:, None]) * mask
    slope = (moved * y).sum(1) / np.maximum((moved**2).sum(1), 1e-300)
    slope = np.where(count > 1, slope, 0.0)
    if not form.trend:
        return _Start(mean - slope * np.maximum(centre - 1, 0), np.zeros_like(mean), effects)
    return _Start(mean - slope * centre, slope, effects)


def _refined(
    batch: Batch, form: Form, season: int, start: _Start, grid: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(rows, 4) parameters and (rows,) their sums of squares."""
    tried = np.broadcast_to(grid, (len(batch.n), *grid.shape))
    rows = np.arange(len(batch.n))
    errors, _ = _run(batch, form, season, start, tried, 0)
    best, best_errors = tried[rows, errors.argmin(1)], errors.min(1)
    step = _STEP
    for _ in range(_ROUNDS):
        tried = np.stack([_moved(best, j, way * step) for j in form.free for way in (-1, 1)], 1)
        errors, _ = _run(batch, form, season, start, tried, 0)
        winner = errors.argmin(1)
        better = errors[rows, winner] < best_errors
        best = np.where(better[:, None], tried[rows, winner], best)
        best_errors = np.where(better, errors[rows, winner], best_errors)
        step *= _SHRINK
    return best, best_errors


def _moved(parameters: np.ndarray, j: int, step: float) -> np.ndarray:
    low, high = _RANGES[j]
    share = ((parameters[:, j] - low) / (high - low)).clip(1e-4, 1 - 1e-4)
    logit = np.log(share / (1 - share)) + step
    moved = parameters.copy()
    moved[:, j] = low + (high - low) / (1 + np.exp(-logit))
    return moved


def _run(
    batch: Batch, form: Form, season: int, start: _Start, parameters: np.ndarray, horizon: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sums of squares (rows, sets), and forecasts (rows, sets, horizon); longest rows first."""
    sets = parameters.shape[1]
    alpha, phi = parameters[..., 0], parameters[..., 3]
    trend_gain, season_gain = alpha * parameters[..., 1], (1 - alpha) * parameters[..., 2]
    level, trend = (np.repeat(x[:, None], sets, 1) for x in (start.level, start.trend))
    effects = np.repeat(start.season.T[..., None], sets, 2)  # (season, rows, sets)
    squares = np.zeros_like(level)
    alive = (batch.n[:, None] > np.arange(batch.y.shape[1])).sum(0)
    y = np.ascontiguousarray(batch.y.T)
    with np.errstate(all="ignore"):
        for t, k in enumerate(alive):
            middle = level[:k] + phi[:k] * trend[:k] if form.trend else level[:k]
            effect = effects[t % season, :k]
            if form.season == "multiply":
                error = y[t, :k, None] - middle * effect
                to_level = error / effect
                effects[t % season, :k] = effect + season_gain[:k] * error / middle
            else:
                error = to_level = y[t, :k, None] - middle
                if form.season == "add":
                    error = to_level = error - effect
                    effects[t % season, :k] = effect + season_gain[:k] * error
            squares[:k] += error**2
            level[:k] = middle + alpha[:k] * to_level
            if form.trend:
                trend[:k] = phi[:k] * trend[:k] + trend_gain[:k] * to_level
        squares = np.where(np.isfinite(squares), squares, np.inf)
        return squares, _ahead(batch, form, (level, trend, effects), phi, horizon)


def _ahead(
    batch: Batch,
    form: Form,
    states: tuple[np.ndarray, np.ndarray, np.ndarray],
    phi: np.ndarray,
    horizon: int,
) -> np.ndarray:
    level, trend, effects = states
    rows, ahead, total = np.arange(len(batch.n)), [], np.zeros_like(phi)
    for h in range(horizon):
        total = total + phi ** (h + 1)
        middle = level + total * trend if form.trend else level
        effect = effects[(batch.n + h) % len(effects), rows]
        if form.season == "multiply":
            middle = middle * effect
        elif form.season == "add":
            middle = middle + effect
        ahead.append(middle)
    return np.stack(ahead, -1) if ahead else np.empty((*phi.shape, 0))
