"""Forecasts of every window of what came later, beside naive ones."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from linrnn.errors import ArgumentError
from linrnn.estimators._follower import Follower
from linrnn.estimators.rows import targets

_TOO_LARGE = (
    "RecurrentForecaster: squares of errors must be finite, got values of which they are not. "
    "Divide the series by a power of ten before fit."
)


class Errors(NamedTuple):
    """Errors of forecasts in the units of the series, means over windows, steps and channels."""

    mse: float
    mae: float


@dataclass
class _Sums:
    """Sums of errors of one kind of forecast, a number for each channel."""

    squared: Tensor
    absolute: Tensor
    counted: int = 0

    def add(self, residuals: Tensor) -> None:
        """(channels, rows, horizon)."""
        self.squared += residuals.square().sum((1, 2))
        self.absolute += residuals.abs().sum((1, 2))
        self.counted += residuals[0].numel()

    def errors(self, scale: Tensor) -> Errors:
        """In the units of the series."""
        mse = (self.squared * scale.square()).mean() / self.counted
        errors = Errors(float(mse), float((self.absolute * scale).mean() / self.counted))
        if not all(map(math.isfinite, errors)):
            raise ArgumentError(_TOO_LARGE)
        return errors


@dataclass
class Backtest:
    """Forecasts of windows that begin after each step of ``later``, and after the one before it.

    Args:
        follower: has read all before; it is not changed, and nothing is learnt.
        later: (time, channels), in units of the scale.
        horizon: steps ahead, at most those of the follower.
        season: in steps, of the seasonal naive forecast.
    """

    follower: Follower
    later: Tensor
    horizon: int
    sums: dict[str, _Sums] = field(default_factory=dict)

    def run(self) -> "Backtest":
        """Forecast all windows."""
        names = ("forecast", "seasonal naive", "last value", "mean")
        channels = self.later.shape[1]
        for name in names:
            none = torch.zeros(channels, dtype=torch.float64, device="cpu")
            self.sums[name] = _Sums(none, none.clone())
        series = torch.cat([self.follower.last[None], self.later])
        history = torch.cat([self.follower.recent[-self.follower.season :], self.later])
        middle = _windowed_mean(self.later, self.horizon)
        for steps, changes in self.follower.windows(self.later, self.horizon):
            came = targets(series, steps, self.horizon)
            last = series[steps].T[..., None]
            self.sums["forecast"].add(came - changes)
            self.sums["last value"].add(came)
            self.sums["seasonal naive"].add(came + last - self._seasons_before(history, steps))
            self.sums["mean"].add(came + last - middle[:, None, None])
        return self

    def _seasons_before(self, history: Tensor, steps: Tensor) -> Tensor:
        """Values (channels, rows, horizon) whole seasons before those to be forecast."""
        season = self.follower.season
        ahead = torch.arange(self.horizon, device="cpu") % season
        return history[steps[:, None] + ahead].permute(2, 0, 1)

    def r2(self) -> float:
        """Coefficient of determination, the mean of those of the channels."""
        errors, spread = self.sums["forecast"].squared, self.sums["mean"].squared
        if not bool((errors.isfinite() & spread.isfinite()).all()):
            raise ArgumentError(_TOO_LARGE)
        moves = spread > 0
        still = torch.where(errors > 0, 0.0, 1.0)  # as scikit-learn has it of a constant
        return float(torch.where(moves, 1 - errors / torch.where(moves, spread, 1), still).mean())


def _windowed_mean(later: Tensor, horizon: int) -> Tensor:
    """(channels,): the mean of the values in all windows, each as often as it is in one."""
    return later.unfold(0, horizon, 1).mean((0, 2))
