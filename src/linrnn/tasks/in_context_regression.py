"""Linear regression in context: answers of a function that only its examples show."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from linrnn.tasks._kinds.base import Splits, Task
from linrnn.tasks._kinds.drawing import (
    GeneratedOptions,
    Regression,
    check_options,
    normal,
    splits,
    to_tensors,
)
from linrnn.tasks._kinds.generated import Uniform


@dataclass(frozen=True, kw_only=True)
class InContextRegressionOptions(GeneratedOptions):
    """Options of the task `in_context_regression`."""

    rank: int = 4
    """Numbers of an input, and weights of the function."""


class InContextRegression(Regression, Task):
    """Give the values of a linear function at new inputs, after examples of it.

    Every sequence has different weights, normal with variance 1 / rank. Twice as many examples as
    weights come first, an input and its value at each step; then as many questions as weights, an
    input each, with a zero for the value and a one behind it. The error is that of the questions.
    Zero for every answer has 1, the variance of the values. Least squares has 0. The task is that
    of Garg et al. 2022, arXiv:2208.01066.

    Args:
        options: `InContextRegressionOptions`.

    Raises:
        ArgumentError: a rank or size below 1, a negative data_seed.
    """

    Options: ClassVar[type] = InContextRegressionOptions
    summary: ClassVar[str] = "values of a linear function that examples show"
    pools: ClassVar[tuple[str, ...]] = ("none",)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        check_options("InContextRegression", self.options, "rank")
        self.sequence_length = 3 * self.options.rank
        self.d_input, self.d_output = self.options.rank + 2, 1
        self.chance = 1.0

    def datasets(self) -> Splits:
        """Splits of x (time, rank + 2) and target (time, 1): see `Task.datasets`."""
        return splits(self.options, self._draw)

    def loss(self, y: Tensor, target: Tensor) -> Tensor:
        """The mean squared error of the questions."""
        rank = self.options.rank
        return super().loss(y[:, -rank:], target[:, -rank:])

    def scores(self, y: Tensor, target: Tensor) -> Tensor:
        """The mean squared error of each example's questions."""
        rank = self.options.rank
        return super().scores(y[:, -rank:], target[:, -rank:])

    def example(self) -> str:
        """The first step, and the first question."""
        x, target = self.datasets().train[0]
        first = 2 * self.options.rank
        inputs = (" ".join(f"{number:.2f}" for number in x[t].tolist()) for t in (0, first))
        values = (f"{float(target[t]):.2f}" for t in (0, first))
        return f"input {' ... '.join(inputs)}\ntarget {' ... '.join(values)}"

    def _draw(self, uniform: Uniform) -> tuple[Tensor, ...]:
        rank, steps = self.options.rank, self.sequence_length
        weights = normal(uniform, rank) / np.sqrt(rank)  # (examples, rank)
        inputs = normal(uniform, steps * rank).reshape(-1, steps, rank)
        values = np.einsum("btr,br->bt", inputs, weights)
        is_question = np.arange(steps) >= 2 * rank
        shown = np.where(is_question, 0.0, values)
        flags = np.broadcast_to(is_question.astype(float), values.shape)
        x = np.concatenate([inputs, shown[..., None], flags[..., None]], -1)
        return to_tensors(x, values[..., None])
