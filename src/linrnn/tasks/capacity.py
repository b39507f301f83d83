"""A signal at five delays at once: how much of a window a layer holds."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from linrnn.tasks._kinds.base import Splits
from linrnn.tasks._kinds.drawing import splits, to_tensors
from linrnn.tasks._kinds.generated import Uniform
from linrnn.tasks._kinds.white_signal import SignalOptions, SignalTask, check_below_length

DELAYS = 5


@dataclass(frozen=True, kw_only=True)
class CapacityOptions(SignalOptions):
    """Options of the task `capacity`."""

    length: int = 2500
    """Steps of a sequence."""
    window: int = 1000
    """The longest delay; the others are 0 and its first three quarters."""
    frequency: float = 0.01
    """The highest in the signal, in cycles per step: 10 in the window."""
    train_size: int = 100
    """Training sequences; an epoch is one pass through them."""
    validation_size: int = 100
    """Validation sequences."""
    test_size: int = 100
    """Test sequences."""


class Capacity(SignalTask):
    """Give a signal back at five delays, from none to 1,000 steps, at every step.

    Output i is ``u_(t - i window / 4)``, and 0 before; u is normal, band-limited and begins at its
    value closest to 0.
    The Legendre Memory Unit's paper asks it of windows of 100 to 100,000 steps, with frequencies
    up to 10 in the window and sequences of 2.5 windows, of memories that are not trained and of
    LSTMs; the sequences for validation are ours.

    Args:
        options: `CapacityOptions`.

    Raises:
        ArgumentError: a size below 1, a window that is not below the length, a frequency outside
            (1/length, 0.5), a negative data_seed.

    Reference:
        Voelker, Kajic and Eliasmith, "Legendre Memory Units", NeurIPS 2019, section 3.1.
    """

    Options: ClassVar[type] = CapacityOptions
    summary: ClassVar[str] = "give a continuous signal back at five delays at once"
    pools: ClassVar[tuple[str, ...]] = ("none",)

    d_output = DELAYS
    rolled = True

    def __init__(self, options: Any = None) -> None:
        super().__init__(options, "window")
        check_below_length("Capacity", self.options, "window")
        self.chance = self._measure_chance(self._draw)

    def datasets(self) -> Splits:
        """Splits of x (time, 1) and target (time, 5): see `Task.datasets`."""
        return splits(self.options, self._draw)

    def example(self) -> str:
        """The last input, and its target."""
        x, target = self.datasets().train[0]
        end = len(x) - 1
        values = " ".join(f"{v:.2f}" for v in target[end].tolist())
        return f"input at step {end}: {x[end].item():.2f}\ntarget there {values}"

    def _draw(self, uniform: Uniform) -> tuple[Tensor, ...]:
        u, window = self._signal(uniform), self.options.window
        time = np.arange(u.shape[1])[:, None] - np.linspace(0, window, DELAYS).astype(int)
        y = np.where(time >= 0, u[:, np.maximum(time, 0)], 0)  # (B, T, delays)
        return to_tensors(u[..., None], y)
