"""Turns of rotary positions for sequences longer than those a model was trained on."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from linrnn.errors import ArgumentError, check_in, check_positive_int

KINDS = ("none", "linear", "ntk", "yarn", "llama3")
_FAST, _SLOW = 32.0, 1.0  # yarn: turns in ``trained`` steps, above and below which all is one rule
_HIGH, _LOW = 4.0, 1.0  # llama3: the same, for another rule in between


class RotaryScaling(NamedTuple):
    """How the turns of `linrnn.nn.rotary.rotate` are slowed down by ``factor``.

    * "none": they are not.
    * "linear": all by ``factor`` (Chen et al. 2023, arXiv:2306.15595).
    * "ntk": the base is multiplied by ``factor**(d / (d - 2))``, so that the slowest turn is
      slowed by ``factor`` and the fastest not at all.
    * "yarn": those that turn less than once in ``trained`` steps by ``factor``, those that do so
      more than 32 times not, with a ramp over the channels in between; and queries and keys are
      ``1 + 0.1 ln(factor)`` times as long (Peng et al. 2023, arXiv:2309.00071).
    * "llama3": the same with 1 and 4 times, a ramp over the frequencies, and no other length
      (Grattafiori et al. 2024, arXiv:2407.21783).

    Raises:
        UnknownNameError: another kind.
        ArgumentError: a factor below 1, no whole number of steps, or a base of at most 1 where
            the ramp of "yarn" needs its logarithm.
    """

    kind: str = "none"
    factor: float = 1.0
    trained: int = 8192
    """Steps of the sequences the turns were trained with."""
    base: float = 10_000.0
    """The ``base`` of `rotate`."""

    def check(self, where: str) -> None:
        """Raise unless all fits."""
        check_in(where, "scaling", self.kind, KINDS)
        check_positive_int(where, trained_length=self.trained)
        if not 1 <= self.factor < float("inf"):
            raise ArgumentError(
                f"{where}: factor must be finite and at least 1, got {self.factor}."
            )
        if self.kind == "yarn" and self.base <= 1:
            raise ArgumentError(
                f"{where}: base must be above 1 for scaling='yarn', got {self.base}."
            )

    def turns(self, turn: Tensor) -> Tensor:
        """The slower turns of ``turn``, in radians per step.

        Example:
            >>> RotaryScaling("linear", 4.0).turns(torch.tensor([1.0, 0.5]))
            tensor([0.2500, 0.1250])
        """
        unscaled: Tensor | float = 0.0  # 1 where a turn is not slowed
        if self.kind == "none":
            return turn
        if self.kind == "ntk":
            place = torch.arange(len(turn), dtype=turn.dtype, device=turn.device)
            return turn * self.factor ** -(place / max(len(turn) - 1, 1))
        if self.kind == "yarn":
            low, high = (self._channel(times, 2 * len(turn)) for times in (_FAST, _SLOW))
            low, high = max(math.floor(low), 0), min(math.ceil(high), 2 * len(turn) - 1)
            place = torch.arange(len(turn), dtype=turn.dtype, device=turn.device)
            unscaled = 1 - ((place - low) / (high - low or 0.001)).clamp(0, 1)
        if self.kind == "llama3":
            times = self.trained * turn / (2 * math.pi)
            unscaled = ((times - _LOW) / (_HIGH - _LOW)).clamp(0, 1)
        return turn * (unscaled + (1 - unscaled) / self.factor)

    @property
    def length(self) -> float:
        """How many times as long the turned channels of queries and keys are."""
        return 1 + 0.1 * math.log(self.factor) if self.kind == "yarn" else 1.0

    def _channel(self, times: float, channels: int) -> float:
        """The place among the pairs of the one that turns ``times`` times in ``trained`` steps."""
        ratio = self.trained / (times * 2 * math.pi)
        return channels * math.log(ratio) / (2 * math.log(self.base))
