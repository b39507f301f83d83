"""Forgetting on a cue: repeat what came after it, and nothing that came before."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.base import Splits, Task
from linrnn.tasks._kinds.drawing import (
    GeneratedOptions,
    check_options,
    distinct,
    integers,
    recall,
    spell_recall,
    splits,
    to_tensors,
)
from linrnn.tasks._kinds.generated import Uniform


@dataclass(frozen=True, kw_only=True)
class ForgetOptions(GeneratedOptions):
    """Options of the task `forget`."""

    n_before: int = 8
    """Tokens before the cue, which are to be forgotten."""
    n_tokens: int = 4
    """Tokens after it, which are to be repeated."""
    vocabulary: int = 11
    """Symbols: 0 is a blank, the last but one the cue, the last asks, the others are tokens."""


class Forget(Task):
    """Repeat the tokens that came after a cue, however many came before.

    Tokens lie among as many blanks. The cue stands between those to be forgotten and those to be
    repeated, and markers ask for the latter in order. The places are random, so that age alone does
    not tell which are which.

    Args:
        options: `ForgetOptions`.

    Raises:
        ArgumentError: a number or size below 1, a vocabulary below 5, a negative data_seed.
    """

    length_option = "n_before"
    Options: ClassVar[type] = ForgetOptions
    summary: ClassVar[str] = "repeat what came after a cue, and forget what came before"
    encoder: ClassVar[Literal["linear", "tokens"]] = "tokens"
    pools: ClassVar[tuple[str, ...]] = ("none",)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        options = self.options
        check_options("Forget", options, "n_before", "n_tokens")
        if options.vocabulary < 5:
            raise ArgumentError(f"Forget: vocabulary must be at least 5, got {options.vocabulary}.")
        self._steps = 2 * (options.n_before + options.n_tokens + 1)
        self.sequence_length = self._steps + options.n_tokens
        self.d_input = self.d_output = options.vocabulary
        self.chance = 1 / (options.vocabulary - 3)

    def datasets(self) -> Splits:
        """Splits of x (time,) and target (time,): see `Task.datasets`."""
        return splits(self.options, self._draw)

    def example(self) -> str:
        """Blanks are dots, markers question marks, steps that are not scored dashes."""
        x, target = self.datasets().train[0]
        return spell_recall(x, target, self.options.vocabulary - 1)

    def _draw(self, uniform: Uniform) -> tuple[Tensor, ...]:
        options = self.options
        n = options.n_before + 1 + options.n_tokens
        places = np.sort(distinct(uniform, n, self._steps), 1)  # (examples, n)
        symbols = integers(uniform(n), 1, options.vocabulary - 2)
        symbols[:, options.n_before] = options.vocabulary - 2
        last = slice(options.n_before + 1, None)
        x, target = recall(symbols[:, last], places[:, last], self._steps, options.vocabulary - 1)
        np.put_along_axis(x, places, symbols, 1)
        return to_tensors(x, target)
