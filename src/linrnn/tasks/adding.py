"""The adding problem."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.base import Published, Splits, Task
from linrnn.tasks._kinds.drawing import (
    GeneratedOptions,
    Regression,
    check_options,
    integers,
    splits,
    to_tensors,
)
from linrnn.tasks._kinds.generated import Uniform

_LEM = "Rusch et al. 2022, arXiv:2110.04744, end of the training logs of its public code"


@dataclass(frozen=True, kw_only=True)
class AddingOptions(GeneratedOptions):
    """Options of the task `adding`."""

    length: int = 1000
    """Steps of a sequence."""
    train_size: int = 45_000
    """Training sequences; an epoch is one pass through them."""
    validation_size: int = 5_000
    """Validation sequences."""


class Adding(Regression, Task):
    """Add the two marked numbers of a sequence.

    Channel 1 holds numbers uniform in [0, 1). Channel 2 is 0 but for a 1 at a random place of the
    first half and another in the second. The target is the sum of the two marked numbers. Always
    answering 1, the mean, has the error 1/6, the variance.

    Length and training sizes are those of S4's public configuration (50,000 sequences, a tenth of
    them for validation).

    Args:
        options: `AddingOptions`.

    Raises:
        ArgumentError: a length below 2, a size below 1, a negative data_seed.
    """

    Options: ClassVar[type] = AddingOptions
    summary: ClassVar[str] = "add the two marked ones of many random numbers"
    pools: ClassVar[tuple[str, ...]] = ("last", "mean")
    published: ClassVar[tuple[Published, ...]] = (
        Published(model="LEM of 128 units, length 2,000", value=5.3e-5, source=_LEM),
        Published(model="LEM of 128 units, length 5,000", value=4.9e-5, source=_LEM),
        Published(model="LEM of 128 units, length 10,000", value=2.4e-5, source=_LEM),
    )

    chance = 1 / 6
    d_input = 2
    d_output = 1

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        check_options("Adding", self.options)
        if self.options.length < 2:
            raise ArgumentError(f"Adding: length must be at least 2, got {self.options.length}.")
        self.sequence_length = self.options.length

    def datasets(self) -> Splits:
        """Splits of x (time, 2) and target (1,): see `Task.datasets`."""
        return splits(self.options, self._draw)

    def example(self) -> str:
        """A short sequence; a star marks the numbers to add."""
        if self.options.length > 12:
            return f"shortened to 12 steps\n{self.at_length(12).example()}"
        x, target = self.datasets().train[0]
        words = [f"{value:.2f}" + "*" * int(mark) for value, mark in x.tolist()]
        return f"input {' '.join(words)}\ntarget {target.item():.2f}"

    def _draw(self, uniform: Uniform) -> tuple[Tensor, ...]:
        length = self.options.length
        values = uniform(length)
        first = integers(uniform(1), 0, length // 2)
        second = integers(uniform(1), length // 2, length)
        marks = np.zeros_like(values)
        np.put_along_axis(marks, np.concatenate([first, second], 1), 1.0, 1)
        x = np.stack([values, marks], -1)  # (B, T, 2)
        return to_tensors(x, (values * marks).sum(1, keepdims=True))
