"""How much a series moves of late: the unit in which its forecasts are wrong."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from linrnn.ops import linear_scan

_MEMORY = 24.0
"""Steps, or two seasons where that is more."""
_FLOOR_SHARE = 0.1  # of the root mean square of all changes


@dataclass(frozen=True)
class Spread:
    r"""Root mean square of the changes of each channel, with an exponential memory.

    Equation:
        v_t = exp(-1 / m) v_{t-1} + (1 - exp(-1 / m)) (s_t - s_{t-1})^2      m = 24, or two seasons
        spread_t = max(sqrt(v_t), least)

    Where level or variance grow, so do changes, and errors divided by the spread stay alike.
    """

    decay: float
    least: Tensor
    """(channels,): a tenth of the root mean square of all changes; 1 where there were none."""
    square: Tensor
    """(channels,): v_t."""

    @classmethod
    def of(cls, series: Tensor, seasons: Sequence[float]) -> tuple["Spread", Tensor]:
        """After a series (time, channels), and at each of its steps, of the same shape."""
        memory = max(_MEMORY, 2 * max(seasons, default=0.0))
        squares = torch.diff(series, dim=0).square()
        root = squares.mean(0).sqrt()
        first = squares[: math.ceil(memory)].mean(0)
        start = cls(math.exp(-1 / memory), torch.where(root > 0, _FLOOR_SHARE * root, 1.0), first)
        spread, steps = start._read(squares)
        return spread, torch.cat([start.now[None], steps])

    @property
    def now(self) -> Tensor:
        """(channels,): the spread after the last step."""
        return torch.maximum(self.square.sqrt(), self.least)

    def read(self, series: Tensor) -> "Spread":
        """After the changes of a series (time, channels), whose first value was read before."""
        squares = torch.diff(series, dim=0).square()
        n = len(squares)
        weights = self.decay ** torch.arange(n - 1, -1, -1, dtype=squares.dtype, device="cpu")
        square = self.decay**n * self.square + (1 - self.decay) * (weights @ squares)
        return Spread(self.decay, self.least, square)

    def _read(self, squares: Tensor) -> tuple["Spread", Tensor]:
        if not len(squares):
            return self, squares
        decay = torch.tensor([self.decay], dtype=squares.dtype, device="cpu")
        drive = (1 - decay) * squares.T[..., None]  # (C, T, 1)
        means, last = linear_scan(decay, drive, self.square[:, None])
        steps = torch.maximum(means[..., 0].T.sqrt(), self.least)
        return replace(self, square=last[:, 0]), steps
