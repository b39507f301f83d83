"""The copy problem, backward."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.base import Splits, Task
from linrnn.tasks._kinds.drawing import (
    GeneratedOptions,
    check_options,
    integers,
    recall,
    spell_recall,
    splits,
    to_tensors,
)
from linrnn.tasks._kinds.generated import Uniform


@dataclass(frozen=True, kw_only=True)
class ReverseOptions(GeneratedOptions):
    """Options of the task `reverse`."""

    length: int = 10
    """Tokens to give back in reverse order."""
    delay: int = 100
    """Blank steps after the tokens."""
    vocabulary: int = 10
    """Symbols: a blank, a marker, and the others are tokens."""


class Reverse(Task):
    """Give the tokens back, the last one first.

    A sequence is random tokens, blanks, and as many markers as tokens. At each marker one token
    is the target, in reverse order; the other steps are not scored. Sizes are the defaults of the
    generator in S4's public code.

    Args:
        options: `ReverseOptions`.

    Raises:
        ArgumentError: a size below 1, a negative delay or data_seed, a vocabulary below 3.
    """

    Options: ClassVar[type] = ReverseOptions
    summary: ClassVar[str] = "give tokens back in reverse order"
    encoder: ClassVar[Literal["linear", "tokens"]] = "tokens"
    pools: ClassVar[tuple[str, ...]] = ("none",)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        options = self.options
        check_options("Reverse", options, "length")
        for name, smallest in (("delay", 0), ("vocabulary", 3)):
            if getattr(options, name) < smallest:
                got = getattr(options, name)
                raise ArgumentError(f"Reverse: {name} must be at least {smallest}, got {got}.")
        self.sequence_length = options.delay + 2 * options.length
        self.d_input = self.d_output = options.vocabulary
        self.chance = 1 / (options.vocabulary - 2)

    def datasets(self) -> Splits:
        """Splits of x (time,) and target (time,): see `Task.datasets`."""
        return splits(self.options, self._draw)

    def example(self) -> str:
        """Blanks are dots, markers question marks, steps that are not scored dashes."""
        x, target = self.datasets().train[0]
        return spell_recall(x, target, self.options.vocabulary - 1)

    def _draw(self, uniform: Uniform) -> tuple[Tensor, ...]:
        options = self.options
        tokens = integers(uniform(options.length), 1, options.vocabulary - 1)
        last_first = np.broadcast_to(np.arange(options.length)[::-1], tokens.shape)
        steps = options.length + options.delay
        return to_tensors(*recall(tokens, last_first, steps, options.vocabulary - 1))
