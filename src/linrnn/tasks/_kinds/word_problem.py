"""Word problems of groups: the product of all that was read, after every step."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from linrnn.tasks._kinds.base import Splits, Task
from linrnn.tasks._kinds.drawing import (
    GeneratedOptions,
    check_options,
    integers,
    spell,
    splits,
    to_tensors,
)
from linrnn.tasks._kinds.generated import Uniform


@dataclass(frozen=True, kw_only=True)
class WordOptions(GeneratedOptions):
    """Options of every word problem."""

    length: int = 128
    """Elements of a word."""
    train_size: int = 65_536
    """Training words; an epoch is one pass through them."""


class WordProblem(Task):
    """Say after every element of a random word what the product of all elements so far is.

    What has to be kept is one element, however long the word; what it takes is a recurrence that
    can permute its states. A subclass says in `_table` what the product of two elements is.
    """

    encoder: ClassVar[Literal["linear", "tokens"]] = "tokens"
    pools: ClassVar[tuple[str, ...]] = ("none",)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._check()
        self.sequence_length = self.options.length
        self._products = self._table()
        self.d_input = self.d_output = len(self._products)
        self.chance = 1 / self.d_output

    def datasets(self) -> Splits:
        """Splits of x (time,) and target (time,): see `Task.datasets`."""
        return splits(self.options, self._draw)

    def example(self) -> str:
        """The first elements of a word, by their numbers, and the products."""
        x, target = self.datasets().train[0]
        shortened = "the first 16 steps\n" if len(x) > 16 else ""
        lines = (spell(v[:16].tolist()) for v in (x, target))
        return shortened + "input {}\ntarget {}".format(*lines)

    def _check(self) -> None:
        check_options(type(self).__name__, self.options, "length")

    def _table(self) -> np.ndarray:
        """(elements, elements): the number of the product of two, element 0 is the identity."""
        raise NotImplementedError

    def _draw(self, uniform: Uniform) -> tuple[Tensor, ...]:
        x = integers(uniform(self.options.length), 0, self.d_input)  # (examples, time)
        target, product = np.empty_like(x), np.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            product = self._products[product, x[:, t]]
            target[:, t] = product
        return to_tensors(x, target)


def cyclic(modulus: int) -> np.ndarray:
    """The table of sums modulo a number.

    Example:
        >>> cyclic(2).tolist()
        [[0, 1], [1, 0]]
    """
    number = np.arange(modulus)
    return (number[:, None] + number) % modulus
