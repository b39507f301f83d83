"""A ridge regression from the last values of a channel to those that follow."""

from typing import NamedTuple

import numpy as np

from linrnn.estimators._ridge import ridges

PENALTIES = np.logspace(-4, 0, 9).tolist()
"""Per row, of values in units of their deviation."""
_BLOCKS = 5
_FEWEST = 6  # rows that a regression is fitted to


class WindowRidge(NamedTuple):
    """A map of windows, of each channel apart."""

    weight: np.ndarray
    """(channels, steps, horizon); the last step of a window comes last."""
    bias: np.ndarray
    """(channels, horizon)."""

    def forecasts(self, values: np.ndarray, origins: np.ndarray) -> np.ndarray:
        """(origins, channels, horizon): what follows the steps ``origins`` of values (time, C)."""
        windows = _windows(values, self.weight.shape[1])[origins - self.weight.shape[1] + 1]
        return np.asarray(np.einsum("ocs,csh->och", windows, self.weight) + self.bias)


def fit_windows(values: np.ndarray, steps: int, horizon: int) -> WindowRidge | None:
    """The ridge with the penalty that is best in five blocks of rows, each left out once.

    Rows of which a value lies in a block do not help to forecast it.

    Args:
        values: (time, channels).
        steps: of a window.
        horizon: steps ahead.

    Returns:
        None where too few rows are left.
    """
    n = len(values) - steps - horizon + 1
    if n * (_BLOCKS - 1) // _BLOCKS - 2 * horizon < _FEWEST:
        return None
    windows = _windows(values, steps)[:n]  # (rows, channels, steps)
    ahead = np.lib.stride_tricks.sliding_window_view(values[steps:], horizon, axis=0)
    weights, biases = [], []
    for c in range(values.shape[1]):
        spread = float(values[:, c].std()) or 1.0
        x, y = windows[:, c] / spread, ahead[:, c] / spread
        penalty = _chosen(x, y, horizon)
        (weight,), x_mean, y_mean = _ridges(x, y, [penalty])
        weights.append(weight)
        biases.append((y_mean - x_mean @ weight) * spread)
    return WindowRidge(np.stack(weights), np.stack(biases))


def _windows(values: np.ndarray, steps: int) -> np.ndarray:
    """(windows, channels, steps) of values (time, channels)."""
    return np.lib.stride_tricks.sliding_window_view(values, steps, axis=0)


def _chosen(x: np.ndarray, y: np.ndarray, gap: int) -> float:
    n, errors = len(x), np.zeros(len(PENALTIES))
    for k in range(_BLOCKS):
        first, end = n * k // _BLOCKS, n * (k + 1) // _BLOCKS
        rest = np.r_[0 : max(0, first - gap), min(n, end + gap) : n]
        weights, x_mean, y_mean = _ridges(x[rest], y[rest], PENALTIES)
        forecasts = (x[first:end] - x_mean) @ weights + y_mean  # (penalties, rows, horizon)
        errors += ((forecasts - y[first:end]) ** 2).sum((1, 2))
    return float(PENALTIES[int(errors.argmin())])


def _ridges(
    x: np.ndarray, y: np.ndarray, penalties: list[float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coefficients for each penalty, and the means of both sides."""
    x_mean, y_mean = x.mean(0), y.mean(0)
    weights = ridges(x - x_mean, y - y_mean, [penalty * len(x) for penalty in penalties])
    return weights, x_mean, y_mean
