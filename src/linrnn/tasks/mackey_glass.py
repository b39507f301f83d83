"""The Mackey-Glass equation, to be predicted."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from linrnn.tasks._kinds.base import Published, Splits, Task
from linrnn.tasks._kinds.drawing import (
    GeneratedOptions,
    Regression,
    check_options,
    splits,
    to_tensors,
)
from linrnn.tasks._kinds.generated import Uniform

_SUBSTEPS = 10  # Euler steps in one step of the series
_TAU = 17 * _SUBSTEPS  # the delay, in Euler steps
_DECAY = 1 - 0.1 / _SUBSTEPS  # the share of x after an Euler step
_GAIN = 0.2 / _SUBSTEPS
_WASHOUT = 100
_MEAN = -0.0662  # of the transformed series
_LMU = "Voelker, Kajic and Eliasmith, Legendre Memory Units, NeurIPS 2019, as its public code"


@dataclass(frozen=True, kw_only=True)
class MackeyGlassOptions(GeneratedOptions):
    """Options of the task `mackey_glass`."""

    length: int = 5000
    """Steps of a sequence."""
    ahead: int = 15
    """Steps between the newest value that is read and the one to predict."""
    train_size: int = 64
    """Training sequences; an epoch is one pass through them."""
    validation_size: int = 16
    """Validation sequences."""
    test_size: int = 64
    """Test sequences."""


class MackeyGlass(Regression, Task):
    """Predict a chaotic series 15 steps ahead, at every step.

    ``dx/dt = 0.2 x(t - 17) / (1 + x(t - 17)^10) - 0.1 x(t)``, solved by Euler's method with ten
    steps a unit from random histories close to 1.2; ``tanh(x - 1)`` less its mean is the series,
    after 100 steps that are left out. Always answering the mean has an error of 0.0468; repeating
    the newest value, 0.123 (an NRMSE of 1.62).

    Settings are those of the Legendre Memory Unit's public code, its later version with input and
    target the right way round. It has 64 sequences for training and 64 for testing; the 16 for
    validation are ours, and its mean is that of its data, ours a constant. The metric is the mean
    squared error: the NRMSE of its paper is the root of that over the standard deviation 0.216.

    Args:
        options: `MackeyGlassOptions`.

    Raises:
        ArgumentError: a size below 1, a negative data_seed.
    """

    Options: ClassVar[type] = MackeyGlassOptions
    summary: ClassVar[str] = "predict the chaotic Mackey-Glass series 15 steps ahead"
    pools: ClassVar[tuple[str, ...]] = ("none",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(model="LSTM, 4 layers of 25, 18K parameters", value=1.608e-4, source=_LMU),
        Published(model="LMU, 4 layers of 49, 18K parameters", value=1.107e-4, source=_LMU),
        Published(model="LMU and LSTM in turn, 18K parameters", value=9.33e-5, source=_LMU),
    )

    chance = 0.0468
    d_input = 1
    d_output = 1

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        check_options("MackeyGlass", self.options, "length", "ahead")
        self.sequence_length = self.options.length

    def datasets(self) -> Splits:
        """Splits of x (time, 1) and target (time, 1): see `Task.datasets`."""
        return splits(self.options, self._draw)

    def example(self) -> str:
        """Some values and those to predict."""
        x, target = (v[:8, 0].tolist() for v in self.datasets().train[0])
        return (
            f"input {' '.join(f'{v:.3f}' for v in x)} ...\n"
            f"target {' '.join(f'{v:.3f}' for v in target)} ..."
        )

    def _draw(self, uniform: Uniform) -> tuple[Tensor, ...]:
        length, ahead = self.options.length, self.options.ahead
        history = 1.2 + 0.2 * (uniform(_TAU) - 0.5)
        values = series(history, _WASHOUT + length + ahead)[:, _WASHOUT:, None] - _MEAN
        return to_tensors(values[:, :length], values[:, ahead:])


def series(history: np.ndarray, steps: int) -> np.ndarray:
    """The transformed solution (examples, steps) for histories (examples, 170) of Euler steps."""
    transformed: np.ndarray = np.tanh(_solution(history, steps) - 1)
    return transformed


def _solution(history: np.ndarray, steps: int, first: float = 1.2) -> np.ndarray:
    """The solution (examples, steps) that begins at ``first``.

    For as long as the delay, the delayed term is known and what is left is a linear recurrence
    with a constant decay, which a cumulative sum solves.
    """
    weights = _DECAY ** -np.arange(1, _TAU + 1)  # 0.99^-170 is 5.5: nothing is lost
    start, delayed = np.full((len(history), 1), first), history
    blocks = []
    for _ in range(-(-steps * _SUBSTEPS // _TAU)):
        fourth = np.square(np.square(delayed))
        force = _GAIN * delayed / (1 + np.square(fourth) * np.square(delayed))
        # the value before the first step of a block is the delayed one 170 steps later
        block = (start + np.cumsum(force * weights, 1)) / weights
        delayed = np.concatenate([start, block[:, :-1]], 1)
        start = block[:, -1:]
        blocks.append(block)
    every = np.concatenate(blocks, 1)[:, _SUBSTEPS - 1 : steps * _SUBSTEPS : _SUBSTEPS]
    return every


def series_one_by_one(count: int, steps: int, seed: int) -> np.ndarray:
    """The transformed solution (count, steps) as the public code of Legendre memory units draws it.

    Histories come from NumPy's generator of 2019, and each sequence begins with the last value of
    the one before in place of 1.2.

    Args:
        count: sequences.
        steps: of each, after those that are left out.
        seed: of the generator.
    """
    random = np.random.RandomState(seed)
    sequences = np.empty((count, steps))
    last = 1.2
    for i in range(count):
        history = 1.2 + 0.2 * (random.rand(1, _TAU) - 0.5)
        values = _solution(history, _WASHOUT + steps, last)
        last = values[0, -1]
        sequences[i] = np.tanh(values[0, _WASHOUT:] - 1)
    return sequences
