"""The copy problem."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor, nn

from linrnn.errors import ArgumentError, check_in
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
class CopyOptions(GeneratedOptions):
    """Options of the task `copy`."""

    length: int = 1000
    """Blank steps between the tokens and the marker."""
    n_tokens: int = 10
    """Tokens to copy."""
    vocabulary: int = 10
    """Symbols: a blank, a marker, and the others are tokens."""
    markers: Literal["one", "all"] = "one"
    """one: a single marker, then blanks, and a loss on every step.
    all: a marker and a loss at each step that asks for a token, and no loss elsewhere."""
    train_size: int = 51_200
    """Training sequences; an epoch is one pass through them."""


class Copy(Task):
    """Repeat the tokens that were read long ago.

    A sequence is 10 random tokens, `length` blanks, a marker and 9 blanks, or 10 markers; from
    the first marker on, the tokens are the targets, one a step. There are two conventions. With
    ``markers="one"`` (Arjovsky, Shah and Bengio 2016) every step has a target, before the marker
    a blank, and a model without memory reaches the loss ``10 ln 8 / (length + 20)``. With
    ``markers="all"`` (the generator of S4's public code) the rest of the steps is not scored, and
    such a model stays at ln 8. The accuracy is that of the tokens in both.

    The default length and batches of 128, 400 of which are an epoch here, are those expRNN
    (Lezcano-Casado and Martinez-Rubio 2019) was tested on.

    Args:
        options: `CopyOptions`.

    Raises:
        ArgumentError: a size below 1, a vocabulary below 3, a negative data_seed.
        UnknownNameError: another value of markers.
    """

    Options: ClassVar[type] = CopyOptions
    summary: ClassVar[str] = "repeat ten tokens after a long silence"
    encoder: ClassVar[Literal["linear", "tokens"]] = "tokens"
    pools: ClassVar[tuple[str, ...]] = ("none",)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        options = self.options
        check_options("Copy", options, "length", "n_tokens")
        check_in("Copy", "markers", options.markers, ("one", "all"))
        if options.vocabulary < 3:
            raise ArgumentError(
                f"Copy: vocabulary must be at least 3, got {options.vocabulary}. "
                "A blank and a marker are among the symbols."
            )
        self.sequence_length = options.length + 2 * options.n_tokens
        self.d_input = self.d_output = options.vocabulary
        self.chance = 1 / (options.vocabulary - 2)

    def datasets(self) -> Splits:
        """Splits of x (time,) and target (time,): see `Task.datasets`."""
        return splits(self.options, self._draw)

    def loss(self, y: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy, over all steps or those that ask for a token."""
        if self.options.markers == "all":
            return super().loss(y, target)
        return nn.functional.cross_entropy(y.flatten(0, 1), target.flatten())

    def scores(self, y: Tensor, target: Tensor) -> Tensor:
        """The part of the tokens that is right."""
        n_tokens = self.options.n_tokens
        return super().scores(y[:, -n_tokens:], target[:, -n_tokens:])

    def example(self) -> str:
        """Blanks are dots, markers question marks."""
        x, target = self.datasets().train[0]
        return spell_recall(x, target, self.options.vocabulary - 1)

    def _draw(self, uniform: Uniform) -> tuple[Tensor, ...]:
        options = self.options
        marker = options.vocabulary - 1
        tokens = integers(uniform(options.n_tokens), 1, marker)
        first = np.broadcast_to(np.arange(options.n_tokens), tokens.shape)
        x, target = recall(tokens, first, options.n_tokens + options.length, marker)
        if options.markers == "one":
            x[:, x.shape[1] - options.n_tokens + 1 :] = 0
            target[:, : -options.n_tokens] = 0
        return to_tensors(x, target)
