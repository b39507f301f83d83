"""A wave that is looked at now and then."""

from dataclasses import dataclass
from math import pi
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from linrnn.errors import ArgumentError, check_in
from linrnn.tasks._kinds.base import Splits, Task
from linrnn.tasks._kinds.drawing import (
    GeneratedOptions,
    Regression,
    check_options,
    check_readable,
    splits,
    to_tensors,
)
from linrnn.tasks._kinds.generated import Uniform

SHORTEST, LONGEST = 0.1, 2.1  # gaps, where a period takes 2 pi
FIRST = 5
"""Observations before the first that is asked about."""


@dataclass(frozen=True, kw_only=True)
class GapsOptions(GeneratedOptions):
    """Options of the task `gaps`."""

    length: int = 50
    """Observations of a series."""
    times: Literal["column", "dt", "none"] = "column"
    """Place of the time since the observation before.
    column: a second column of the input. dt: for layers that read `dt`. none: nowhere."""


class Gaps(Regression, Task):
    """Say how fast a wave rises, from its heights at irregular times.

    An undamped oscillator ``x'' = -x`` starts with an amplitude uniform in [0.5, 1.5) and any
    phase. Its height is observed after gaps uniform in [0.1, 2.1), a third of a period at most,
    and the target is its velocity at each observation but the first five. Two heights and the time
    between them give it: ``x'(t) = (x(t) cos d - x(t - d)) / sin d``. Always answering 0 has the
    error 13/24, the variance.

    Args:
        options: `GapsOptions`.

    Raises:
        ArgumentError: a length below 6, a size below 1, a negative data_seed.
        UnknownNameError: another value of times.
    """

    Options: ClassVar[type] = GapsOptions
    summary: ClassVar[str] = "how fast a wave rises, from its heights at irregular times"
    pools: ClassVar[tuple[str, ...]] = ("none",)

    chance = 13 / 24  # half the mean square of the amplitude
    d_output = 1

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        check_options("Gaps", self.options, "length")
        check_in("Gaps", "times", self.options.times, ("column", "dt", "none"))
        if self.options.length <= FIRST:
            raise ArgumentError(
                f"Gaps: length must be at least {FIRST + 1}, got {self.options.length}. The first "
                f"{FIRST} observations are not asked about."
            )
        self.sequence_length = self.options.length
        self.d_input = 2 if self.options.times == "column" else 1
        self.time_unit = 1.0 if self.options.times == "dt" else None

    def datasets(self) -> Splits:
        """Splits of x (time, d_input) and target (time, 1), and dt (time,) with ``times``.

        See `Task.datasets`.
        """
        return splits(self.options, self._draw)

    def loss(self, y: Tensor, target: Tensor) -> Tensor:
        """The mean squared error of what is asked about."""
        return super().loss(y[:, FIRST:], target[:, FIRST:])

    def scores(self, y: Tensor, target: Tensor) -> Tensor:
        """The mean squared error of each series."""
        return super().scores(y[:, FIRST:], target[:, FIRST:])

    def read(self, path: Path) -> Tensor:
        """Series from a user's file; of one with ``times="dt"`` a table cannot hold the times.

        Raises:
            ArgumentError: the task has ``times="dt"``.
        """
        check_readable("Gaps", self.options.times)
        return super().read(path)

    def example(self) -> str:
        """Some heights with the time before each, and the velocities."""
        x, target = type(self)(GapsOptions(length=FIRST + 3)).datasets().train[0]
        heights = (f"{height:+.2f} after {gap:.2f}" for height, gap in x.tolist())
        velocities = (f"{velocity:+.2f}" for velocity in target[FIRST:, 0].tolist())
        return f"input {', '.join(heights)}\ntarget of the last {', '.join(velocities)}"

    def _draw(self, uniform: Uniform) -> tuple[Tensor, ...]:
        gaps = SHORTEST + (LONGEST - SHORTEST) * uniform(self.options.length)
        amplitude, phase = 0.5 + uniform(1), 2 * pi * uniform(1)
        angle = phase + np.cumsum(gaps, 1)
        height, velocity = amplitude * np.sin(angle), amplitude * np.cos(angle)
        if self.options.times == "column":
            return to_tensors(np.stack([height, gaps], -1), velocity[..., None])
        timed = (gaps,) if self.options.times == "dt" else ()
        return to_tensors(height[..., None], velocity[..., None], *timed)
