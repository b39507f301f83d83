"""Selective copying: tokens at random places among blanks."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.base import Published, Splits, Task
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

_MIN1 = "Feng et al. 2024, arXiv:2410.01201, Table 1"
_MIN2 = "Feng et al. 2024, arXiv:2410.01201, Table 2, after Gu and Dao 2023, arXiv:2312.00752"


@dataclass(frozen=True, kw_only=True)
class SelectiveCopyOptions(GeneratedOptions):
    """Options of the task `selective_copy`."""

    length: int = 4096
    """Blank steps among which the tokens lie."""
    n_tokens: int = 16
    """Tokens to copy."""
    vocabulary: int = 16
    """Symbols: a blank, a marker, and the others are tokens."""
    train_size: int = 256_000
    """Training sequences; an epoch is one pass through them."""


class SelectiveCopy(Task):
    """Repeat the tokens that lie at random places among blanks, in their order.

    A sequence has `length` blanks and 16 tokens in random places, then 16 markers; at each marker
    the next token is the target and nothing else is scored. What has to be remembered depends on
    what is read, so a recurrence whose decays do not depend on its input finds it hard.

    The papers below do not print their generator. This is the one in S4's public code with its
    option `variable`, to which the authors of Mamba point. With 16 symbols 14 are tokens. They
    trained on 400,000 batches of 64 new sequences; an epoch here is 4,000 such batches.

    Args:
        options: `SelectiveCopyOptions`.

    Raises:
        ArgumentError: a size below 1, a vocabulary below 3, a negative data_seed.
    """

    Options: ClassVar[type] = SelectiveCopyOptions
    summary: ClassVar[str] = "repeat the tokens scattered among blanks"
    encoder: ClassVar[Literal["linear", "tokens"]] = "tokens"
    pools: ClassVar[tuple[str, ...]] = ("none",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(model="minGRU, 1 layer", value=0.370, source=_MIN1),
        Published(model="minGRU, 2 layers", value=0.968, source=_MIN1),
        Published(model="minGRU, 3 layers", value=0.995, source=_MIN1),
        Published(model="minLSTM, 1 layer", value=0.376, source=_MIN1),
        Published(model="minLSTM, 2 layers", value=0.857, source=_MIN1),
        Published(model="minLSTM, 3 layers", value=0.960, source=_MIN1),
        Published(model="S4, no gate", value=0.183, source=_MIN2),
        Published(model="S4 in an H3 block", value=0.570, source=_MIN2),
        Published(model="S4 in a Mamba block", value=0.564, source=_MIN2),
        Published(model="Hyena in an H3 block", value=0.301, source=_MIN2),
        Published(model="Hyena in a Mamba block", value=0.284, source=_MIN2),
        Published(model="S6, no gate", value=0.970, source=_MIN2),
        Published(model="S6 in an H3 block", value=0.997, source=_MIN2),
        Published(model="S6 in a Mamba block (Mamba)", value=0.998, source=_MIN2),
    )

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        options = self.options
        check_options("SelectiveCopy", options, "length", "n_tokens")
        if options.vocabulary < 3:
            raise ArgumentError(
                f"SelectiveCopy: vocabulary must be at least 3, got {options.vocabulary}. "
                "A blank and a marker are among the symbols."
            )
        self.sequence_length = options.length + 2 * options.n_tokens
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
        steps, marker = options.length + options.n_tokens, options.vocabulary - 1
        tokens = integers(uniform(options.n_tokens), 1, marker)
        positions = np.sort(distinct(uniform, options.n_tokens, steps), 1)
        return to_tensors(*recall(tokens, positions, steps, marker))
