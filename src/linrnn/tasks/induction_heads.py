"""Induction heads: what followed the special token the last time."""

from dataclasses import dataclass
from string import ascii_lowercase
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.base import Published, Splits, Task
from linrnn.tasks._kinds.drawing import (
    GeneratedOptions,
    check_options,
    integers,
    spell,
    splits,
    to_tensors,
)
from linrnn.tasks._kinds.generated import Uniform

_MAMBA = "Gu and Dao 2023, arXiv:2312.00752, table of induction heads"
_ICL = (
    "Akyürek et al. 2024, arXiv:2401.12973: another generator, whose chance is 0.05; compare "
    "the order only"
)


@dataclass(frozen=True, kw_only=True)
class InductionHeadsOptions(GeneratedOptions):
    """Options of the task `induction_heads`."""

    length: int = 256
    """Steps of a sequence, the last special token among them."""
    vocabulary: int = 16
    """Symbols; the last one is the special token."""
    train_size: int = 65_536
    """Training sequences; an epoch is one pass through them."""


class InductionHeads(Task):
    """Say which token followed the special one, when the special one comes again.

    Random tokens; at a random place the special one and its successor; at the end the special
    one again, and its successor is the target. Trained on one length, tested on much longer ones.
    Guessing has 1 in 15 right, for the special token itself is never the answer.

    Length, vocabulary and size of an epoch (8,192 batches of 8) are those of the Mamba paper,
    which drew new sequences in every epoch.

    Args:
        options: `InductionHeadsOptions`.

    Raises:
        ArgumentError: a length or a vocabulary below 3, a size below 1, a negative data_seed.
    """

    Options: ClassVar[type] = InductionHeadsOptions
    summary: ClassVar[str] = "recall what followed the special token, at any length"
    encoder: ClassVar[Literal["linear", "tokens"]] = "tokens"
    pools: ClassVar[tuple[str, ...]] = ("last",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(model="Mamba, 74K parameters, length 256 to 1,048,576", value=1.0, source=_MAMBA),
        Published(model="H3, 153K parameters, length 256", value=1.0, source=_MAMBA),
        Published(model="H3, 153K parameters, length 1,024", value=0.395, source=_MAMBA),
        Published(model="H3, 153K parameters, length 16,384", value=0.059, source=_MAMBA),
        Published(model="attention with RoPE, 137K, length 1,024", value=0.313, source=_MAMBA),
        Published(model="attention with xPos, 137K, length 1,024", value=0.676, source=_MAMBA),
        Published(model="Hyena, length 1,024", value=0.441, source=_MAMBA),
        Published(model="LRU", value=0.048, source=_ICL),
        Published(model="S4D", value=0.088, source=_ICL),
        Published(model="H3", value=1.0, source=_ICL),
    )

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        check_options("InductionHeads", self.options)
        for name in ("length", "vocabulary"):
            if getattr(self.options, name) < 3:
                got = getattr(self.options, name)
                raise ArgumentError(f"InductionHeads: {name} must be at least 3, got {got}.")
        self.sequence_length = self.options.length
        self.d_input = self.d_output = self.options.vocabulary
        self.chance = 1 / (self.options.vocabulary - 1)

    def datasets(self) -> Splits:
        """Splits of x (time,) and target (): see `Task.datasets`."""
        return splits(self.options, self._draw)

    def example(self) -> str:
        """A short sequence in letters; the special token is a star."""
        if self.options.length > 32:
            return f"shortened to 32 steps\n{self.at_length(32).example()}"
        x, target = self.datasets().train[0]
        special = self.options.vocabulary - 1
        letters = ascii_lowercase if special <= 26 else range(special)
        symbols = [*map(str, letters[:special]), "*"]
        return f"input {spell(x.tolist(), symbols.__getitem__)}\ntarget {symbols[target]}"

    def _draw(self, uniform: Uniform) -> tuple[Tensor, ...]:
        length, special = self.options.length, self.options.vocabulary - 1
        x = integers(uniform(length), 0, special)  # (B, T)
        place = integers(uniform(1), 0, length - 2)  # its successor is not the last token
        np.put_along_axis(x, place, special, 1)
        x[:, -1] = special
        return to_tensors(x, np.take_along_axis(x, place + 1, 1)[:, 0])
