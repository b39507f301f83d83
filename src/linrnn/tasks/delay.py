"""A signal, to be given back some steps later."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from linrnn.tasks._kinds.base import Splits
from linrnn.tasks._kinds.drawing import splits, to_tensors
from linrnn.tasks._kinds.generated import Uniform
from linrnn.tasks._kinds.white_signal import SignalOptions, SignalTask, check_below_length


@dataclass(frozen=True, kw_only=True)
class DelayOptions(SignalOptions):
    """Options of the task `delay`."""

    lag: int = 1000
    """Steps between a value and the step that gives it back."""
    frequency: float = 0.25
    """The highest in the signal, in cycles per step; 0.5 is white noise."""


class Delay(SignalTask):
    """Give a signal back 1,000 steps later, at every step.

    ``y_t = u_(t - lag)``, and 0 before; u is normal, band-limited and begins at 0. A memory of
    order N holds the window of the lag as well as N numbers can; of the signal there are
    2 * frequency * lag. Sizes and frequency are those of S4's public configuration, whose errors
    are roots of ours.

    Args:
        options: `DelayOptions`.

    Raises:
        ArgumentError: a size below 1, a lag that is not below the length, a frequency outside
            (1/length, 0.5), a negative data_seed.
    """

    Options: ClassVar[type] = DelayOptions
    summary: ClassVar[str] = "give a continuous signal back many steps later"
    pools: ClassVar[tuple[str, ...]] = ("none",)

    d_output = 1

    def __init__(self, options: Any = None) -> None:
        super().__init__(options, "lag")
        check_below_length("Delay", self.options, "lag")
        self.chance = self._measure_chance(self._draw)

    def datasets(self) -> Splits:
        """Splits of x (time, 1) and target (time, 1): see `Task.datasets`."""
        return splits(self.options, self._draw)

    def example(self) -> str:
        """A few steps, and the same later."""
        x, target = (v[:, 0].tolist() for v in self.datasets().train[0])
        lag = self.options.lag
        return (
            f"input from step 0 {' '.join(f'{v:.2f}' for v in x[:10])} ...\n"
            f"target from step {lag} {' '.join(f'{v:.2f}' for v in target[lag : lag + 10])} ..."
        )

    def _draw(self, uniform: Uniform) -> tuple[Tensor, ...]:
        u, lag = self._signal(uniform), self.options.lag
        y = np.concatenate([np.zeros_like(u[:, :lag]), u[:, :-lag]], 1)
        return to_tensors(u[..., None], y[..., None])
