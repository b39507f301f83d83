"""The parity of all bits so far."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from linrnn.tasks._kinds.word_problem import WordOptions, WordProblem, cyclic


@dataclass(frozen=True, kw_only=True)
class ParityOptions(WordOptions):
    """Options of the task `parity`."""


class Parity(WordProblem):
    """Say after every bit whether the ones so far are an odd number.

    The smallest state to track: a diagonal recurrence solves it with an eigenvalue of -1, and one
    whose eigenvalues are positive cannot at any length (Grazzi et al. 2024, arXiv:2411.12537).

    Args:
        options: `ParityOptions`.

    Raises:
        ArgumentError: a size below 1, a negative data_seed.
    """

    Options: ClassVar[type] = ParityOptions
    summary: ClassVar[str] = "the parity of all bits so far, after every bit"

    def _table(self) -> np.ndarray:
        return cyclic(2)
