"""A ridge on the last values of a series: the linear model that a bank is compared with."""

from typing import NamedTuple

import torch
from torch import Tensor

from linrnn.compute.moments import Moments
from linrnn.estimators.read_out import choose
from linrnn.estimators.rows import targets

_BLOCK = 1024


class Means(NamedTuple):
    """Mean errors of forecasts, over windows, steps ahead and channels."""

    mse: float
    mae: float


def lag_ridge(
    series: Tensor, ends: tuple[int, int, int], horizon: int, *, lags: int, every: int
) -> Means:
    """Errors in the test part of ``yhat_{t+h} = y_t + W_h (y_{t-1} - y_t, ..)``, lags - 1 of them.

    One ridge for all channels, fitted to the training part, its penalty chosen on the validation
    part, as a forecaster's is.

    Args:
        series: (time, channels) float64.
        ends: of the parts for training, validation and testing.
        horizon: steps ahead.
        lags: steps read.
        every: each so-manieth window of training and validation is used.
    """
    channels = series.shape[1]
    parts = ((lags - 1, ends[0] - horizon), (ends[0] - 1, ends[1] - horizon))
    sums = []
    for first, end in parts:
        moments = Moments.empty(1, lags - 1, 0, horizon)
        for steps in torch.arange(first, end, every).split(_BLOCK):
            moments.add(_features(series, steps, lags), targets(series, steps, horizon), None)
        sums.append(moments)
    read_out = choose(sums[0], sums[1], ()).solve(sums[0])
    squared = absolute = 0.0
    steps = torch.arange(ends[1] - 1, ends[2] - horizon)
    for block in steps.split(_BLOCK):
        actual = targets(series[: ends[2]], block, horizon)
        errors = actual - read_out.changes(_features(series, block, lags), None)
        squared += float(errors.square().sum())
        absolute += float(errors.abs().sum())
    n = len(steps) * channels * horizon
    return Means(squared / n, absolute / n)


def _features(series: Tensor, steps: Tensor, lags: int) -> Tensor:
    """(channels, rows, lags - 1): values before those of some steps, less these."""
    windows = series.unfold(0, lags, 1)[steps - lags + 1]  # (R, C, lags)
    return (windows[..., :-1] - windows[..., -1:]).transpose(0, 1)  # (C, R, lags - 1)
