"""The sum of all numbers so far, modulo a number."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.word_problem import WordOptions, WordProblem, cyclic


@dataclass(frozen=True, kw_only=True)
class ModularSumsOptions(WordOptions):
    """Options of the task `modular_sums`."""

    modulus: int = 5
    """Numbers are 0 to modulus - 1, and so are their sums."""


class ModularSums(WordProblem):
    """Say after every number what the sum of all so far is, modulo 5.

    A counter that goes round: it takes eigenvalues that are roots of unity, or a state that a
    matrix permutes. With modulus 2 it is the task `parity`.

    Args:
        options: `ModularSumsOptions`.

    Raises:
        ArgumentError: a size below 1, a modulus below 2, a negative data_seed.
    """

    Options: ClassVar[type] = ModularSumsOptions
    summary: ClassVar[str] = "the sum of all numbers so far modulo 5, after every number"

    def _check(self) -> None:
        super()._check()
        if self.options.modulus < 2:
            raise ArgumentError(
                f"ModularSums: modulus must be at least 2, got {self.options.modulus}."
            )

    def _table(self) -> np.ndarray:
        return cyclic(self.options.modulus)
