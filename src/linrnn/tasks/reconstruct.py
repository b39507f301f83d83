"""The last part of a signal, to be given back at once."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.base import Splits
from linrnn.tasks._kinds.drawing import splits, to_tensors
from linrnn.tasks._kinds.generated import Uniform
from linrnn.tasks._kinds.white_signal import SignalOptions, SignalTask


@dataclass(frozen=True, kw_only=True)
class ReconstructOptions(SignalOptions):
    """Options of the task `reconstruct`."""

    window: int = 1000
    """How many of the last values are the target."""


class Reconstruct(SignalTask):
    """Give the last 1,000 values of a signal back, all at once, after 4,000 steps.

    u is normal, band-limited and begins at 0; the target is its end, oldest value first. So it asks
    what a memory holds of its window, by a linear map. Length, window and frequency are those of
    S4's public configuration, the numbers of sequences those of its delay.

    Args:
        options: `ReconstructOptions`.

    Raises:
        ArgumentError: a size below 1, a window above the length, a frequency outside
            (1/length, 0.5), a negative data_seed.
    """

    Options: ClassVar[type] = ReconstructOptions
    summary: ClassVar[str] = "give the last 1,000 values of a continuous signal back at once"
    pools: ClassVar[tuple[str, ...]] = ("last",)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options, "window")
        length, window = self.options.length, self.options.window
        if window > length:
            raise ArgumentError(
                f"Reconstruct: window must be at most length={length}, got {window}."
            )
        self.d_output = window
        self.chance = self._measure_chance(self._draw)

    def datasets(self) -> Splits:
        """Splits of x (time, 1) and target (window,): see `Task.datasets`."""
        return splits(self.options, self._draw)

    def example(self) -> str:
        """Ten values of each."""
        x, target = self.datasets().train[0]
        inputs = x[:: max(1, len(x) // 10), 0].tolist()
        targets = target[:: max(1, len(target) // 10)].tolist()
        return (
            f"input, at tenths of it, {' '.join(f'{v:.2f}' for v in inputs[:10])}\n"
            f"target at its tenths {' '.join(f'{v:.2f}' for v in targets[:10])}"
        )

    def _draw(self, uniform: Uniform) -> tuple[Tensor, ...]:
        u = self._signal(uniform)
        return to_tensors(u[..., None], u[:, -self.options.window :])
