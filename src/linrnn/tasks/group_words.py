"""The product of all permutations so far: the word problem of a group."""

from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar, Literal

import numpy as np

from linrnn.errors import check_in
from linrnn.tasks._kinds.word_problem import WordOptions, WordProblem

GROUPS = {"S3": (3, False), "A4": (4, True), "S4": (4, False), "A5": (5, True), "S5": (5, False)}
"""By name: how many things are permuted, and whether by even permutations alone."""


@dataclass(frozen=True, kw_only=True)
class GroupWordsOptions(WordOptions):
    """Options of the task `group_words`."""

    group: Literal["S3", "A4", "S4", "A5", "S5"] = "S5"
    """Whose elements are read: all permutations of 3, 4 or 5 things (S), or the even ones (A)."""


class GroupWords(WordProblem):
    """Say after every permutation of five things what all so far make of them.

    The word problem of S5, and of A5, is complete for NC1: no model of constant depth whose
    recurrence is diagonal solves it at all lengths, if TC0 is not NC1 (Merrill, Petty and
    Sabharwal 2024, arXiv:2404.08819). S3, A4 and S4 are solvable groups, and lie between these and
    the sums of `modular_sums`. Permutations are numbered in the order of dictionaries; the identity
    is 0.

    Args:
        options: `GroupWordsOptions`.

    Raises:
        ArgumentError: a size below 1, a negative data_seed.
        UnknownNameError: a group that is none of those.
    """

    Options: ClassVar[type] = GroupWordsOptions
    summary: ClassVar[str] = "the product of all permutations so far, after every one (S5)"

    def _check(self) -> None:
        super()._check()
        check_in("GroupWords", "group", self.options.group, GROUPS)

    def _table(self) -> np.ndarray:
        size, even = GROUPS[self.options.group]
        elements = [p for p in permutations(range(size)) if not even or not odd(p)]
        number = {p: i for i, p in enumerate(elements)}
        # first the element before, then the one that is read
        return np.array([[number[tuple(b[i] for i in a)] for b in elements] for a in elements])


def odd(permutation: tuple[int, ...]) -> bool:
    """Whether an odd number of swaps makes it.

    Example:
        >>> odd((1, 0, 2)), odd((1, 2, 0))
        (True, False)
    """
    pairs = [(a, b) for i, a in enumerate(permutation) for b in permutation[i + 1 :]]
    return sum(a > b for a, b in pairs) % 2 == 1
