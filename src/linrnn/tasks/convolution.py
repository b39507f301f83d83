"""A long convolution, to be learned from its outputs."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.base import Splits, Task
from linrnn.tasks._kinds.drawing import (
    GeneratedOptions,
    Regression,
    check_options,
    splits,
    to_tensors,
)
from linrnn.tasks._kinds.generated import Generated, Uniform

_CHANCE_STEPS = 1 << 20  # steps at most that chance is measured on


@dataclass(frozen=True, kw_only=True)
class ConvolutionOptions(GeneratedOptions):
    """Options of the task `convolution`."""

    length: int = 100
    """Steps of a sequence."""
    largest: float = 10.0
    """Upper bound of the two numbers that make an input.
    Its frequencies are 0.05 of the one and 0.1 of the other, in radians a step."""
    train_size: int = 32
    """Training sequences; an epoch is one pass through them."""
    validation_size: int = 32
    """Validation sequences."""
    test_size: int = 512
    """Test sequences."""


class Convolution(Regression, Task):
    """Learn a convolution with a long kernel from 32 inputs and outputs.

    Input ``u_k = sin(0.05 a k) cos^2(0.05 c k)``, target ``y_t = sum_k h_k u_(t-k)`` at every step
    with ``h_k = 0.1 exp(-0.015 k) cos^2(0.04 k)``, which a linear recurrence of three modes
    computes exactly: the toy problem of the LRU paper's appendix E.2, where a linear RNN of 100
    units learns faster than one with tanh. The numbers a and c are uniform in [0, `largest`); how
    the paper chose them we do not know, so its curves and ours agree in their order only.
    The chance level is the error of always answering 0, over 256 sequences.

    Args:
        options: `ConvolutionOptions`.

    Raises:
        ArgumentError: a size below 1, a largest that is not above 0, a negative data_seed.

    Reference:
        Orvieto et al. 2023, arXiv:2303.06349, appendix E.2.
    """

    Options: ClassVar[type] = ConvolutionOptions
    summary: ClassVar[str] = "learn a long convolution from inputs and outputs"
    pools: ClassVar[tuple[str, ...]] = ("none",)

    d_input = 1
    d_output = 1

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        check_options("Convolution", self.options, "length")
        largest = self.options.largest
        if not 0 < largest < float("inf"):
            raise ArgumentError(f"Convolution: largest must be above 0, got {largest}.")
        self.sequence_length = self.options.length
        count = max(1, min(256, _CHANCE_STEPS // self.options.length))
        target = Generated(count, "train", self._draw, self.options.data_seed)[range(count)][1]
        self.chance = target.square().mean().item()

    def datasets(self) -> Splits:
        """Splits of x (time, 1) and target (time, 1): see `Task.datasets`."""
        return splits(self.options, self._draw)

    def example(self) -> str:
        """Every tenth step."""
        x, target = (v[::10, 0].tolist() for v in self.datasets().train[0])
        return (
            f"input, every tenth step {' '.join(f'{v:.2f}' for v in x)}\n"
            f"target {' '.join(f'{v:.2f}' for v in target)}"
        )

    def _draw(self, uniform: Uniform) -> tuple[Tensor, ...]:
        k = np.arange(self.options.length)
        a, c = np.split(self.options.largest * uniform(2), 2, axis=1)
        u = np.sin(0.05 * a * k) * np.cos(0.05 * c * k) ** 2  # (B, T)
        h = 0.1 * np.exp(-0.015 * k) * np.cos(0.04 * k) ** 2
        n = 2 * len(k)  # room for the whole product: nothing wraps around
        y = np.fft.irfft(np.fft.rfft(u, n) * np.fft.rfft(h, n), n)[:, : len(k)]
        return to_tensors(u[..., None], y[..., None])
