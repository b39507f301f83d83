"""Classical decomposition: what each step of a season adds, or multiplies by."""

import numpy as np

from linrnn.estimators._panel.batch import Batch, means


def moving_average(batch: Batch, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Centred means (rows, time) over ``width`` steps, and where they are whole.

    With an even width the two ends count half, as it is usual.
    """
    weights = np.ones(width) if width % 2 else np.r_[0.5, np.ones(width - 1), 0.5]
    half, steps = len(weights) // 2, batch.y.shape[1]
    complete = (np.arange(steps) >= half) & (np.arange(steps) < batch.n[:, None] - half)
    if steps < len(weights):
        return np.zeros_like(batch.y), np.zeros_like(complete)
    windows = np.lib.stride_tricks.sliding_window_view(batch.y, len(weights), axis=1)
    middle = np.zeros_like(batch.y)
    middle[:, half : steps - half] = windows @ (weights / width)
    return middle, complete


def season_of(batch: Batch, season: int, multiply: bool = False) -> np.ndarray:
    """(rows, season): of the steps 0, 1, ... of each row; their mean is 0, or 1 if they multiply.

    It takes two whole seasons; rows that are shorter have none.
    """
    middle, complete = moving_average(batch, season)
    if multiply:
        complete = complete & (middle > 0)
        detrended = batch.y / np.where(complete, middle, 1.0)
    else:
        detrended = batch.y - middle
    neutral = 1.0 if multiply else 0.0
    effects = np.full((len(batch.n), season), neutral)
    for phase in range(season):
        counted = complete[:, phase::season]
        mean = means(batch, detrended[:, phase::season], counted)
        effects[:, phase] = np.where(counted.any(1), mean, neutral)
    average = effects.mean(1, keepdims=True)
    effects = effects / np.where(average > 0, average, 1.0) if multiply else effects - average
    enough = (batch.n >= 2 * season)[:, None]
    return np.where(enough, effects, neutral)


def over_time(effects: np.ndarray, steps: int) -> np.ndarray:
    """(rows, steps) from effects (rows, season)."""
    return np.tile(effects, (1, -(-steps // effects.shape[1])))[:, :steps]


def ahead(effects: np.ndarray, n: np.ndarray, horizon: int) -> np.ndarray:
    """(rows, horizon): effects of the steps that follow ``n`` of each row."""
    places = (n[:, None] + np.arange(horizon)) % effects.shape[1]
    return np.take_along_axis(effects, places, 1)
