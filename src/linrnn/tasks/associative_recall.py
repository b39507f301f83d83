"""Associative recall: the value that came with a key."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.base import IGNORE, Published, Splits, Task
from linrnn.tasks._kinds.drawing import (
    GeneratedOptions,
    check_options,
    integers,
    splits,
    to_tensors,
)
from linrnn.tasks._kinds.generated import Uniform

_ICL = (
    "Akyürek et al. 2024, arXiv:2401.12973: another generator, whose chance is 0.25; compare "
    "the order only"
)


@dataclass(frozen=True, kw_only=True)
class AssociativeRecallOptions(GeneratedOptions):
    """Options of the task `associative_recall`."""

    length: int = 40
    """Tokens before the question, key and value in turn."""
    vocabulary: int = 20
    """Symbols: the first half are keys, the second half values; one more asks the question."""
    every_step: bool = True
    """Train on predicting each next token; False: on the answer alone."""
    train_size: int = 5_000
    """Training sequences; an epoch is one pass through them."""
    validation_size: int = 500
    """Validation sequences."""
    test_size: int = 500
    """Test sequences."""


class AssociativeRecall(Task):
    """Say which value came with a key; every sequence pairs them anew.

    A map from keys to values is drawn for each sequence. Then come pairs of a key, drawn with
    replacement, and its value, a token that announces the question, and one of the keys that
    occurred. The answer is its value. Different keys may have the same value, and answering with
    the most frequent one of the sequence is right about 3 times in 10; guessing blindly 1 in 10.

    The loss is on all next tokens, the accuracy on the answer, as in the code of H3 and Hyena,
    from which the sizes are.

    Args:
        options: `AssociativeRecallOptions`.

    Raises:
        ArgumentError: a length or vocabulary that is odd or below 2, a size below 1, a negative
            data_seed.
    """

    Options: ClassVar[type] = AssociativeRecallOptions
    summary: ClassVar[str] = "recall the value that came with a key"
    encoder: ClassVar[Literal["linear", "tokens"]] = "tokens"
    pools: ClassVar[tuple[str, ...]] = ("none",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(model="Transformer", value=1.0, source=_ICL),
        Published(model="H3", value=0.982, source=_ICL),
        Published(model="GILR", value=0.502, source=_ICL),
        Published(model="LSTM", value=0.362, source=_ICL),
        Published(model="S4D", value=0.324, source=_ICL),
        Published(model="LRU", value=0.116, source=_ICL),
    )

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        check_options("AssociativeRecall", self.options)
        for name in ("length", "vocabulary"):
            value = getattr(self.options, name)
            if value < 2 or value % 2:
                raise ArgumentError(
                    f"AssociativeRecall: {name} must be even and at least 2, got {value}."
                )
        self.sequence_length = self.options.length + 2
        self.d_input = self.d_output = self.options.vocabulary + 1
        self.chance = 2 / self.options.vocabulary

    def datasets(self) -> Splits:
        """Splits of x (time,) and target (time,): see `Task.datasets`."""
        return splits(self.options, self._draw)

    def scores(self, y: Tensor, target: Tensor) -> Tensor:
        """1 where the answer is right, else 0."""
        return super().scores(y[:, -1], target[:, -1])

    def example(self) -> str:
        """Keys are k0, k1, ..., values v0, v1, ...; the question is a question mark."""
        x, target = self.datasets().train[0]
        half = self.options.vocabulary // 2
        symbols = [*(f"k{i}" for i in range(half)), *(f"v{i}" for i in range(half)), "?"]
        return f"input {' '.join(symbols[i] for i in x)}\ntarget {symbols[target[-1]]}"

    def _draw(self, uniform: Uniform) -> tuple[Tensor, ...]:
        n_keys, n_pairs = self.options.vocabulary // 2, self.options.length // 2
        value_of = integers(uniform(n_keys), n_keys, 2 * n_keys)  # (B, n_keys)
        keys = integers(uniform(n_pairs), 0, n_keys)  # (B, n_pairs)
        occurs = np.zeros(value_of.shape, bool)
        np.put_along_axis(occurs, keys, True, 1)
        query = np.where(occurs, uniform(n_keys), -1.0).argmax(1)[:, None]  # (B, 1)
        pairs = np.stack([keys, np.take_along_axis(value_of, keys, 1)], -1)  # (B, n_pairs, 2)
        answer = np.take_along_axis(value_of, query, 1)
        ask = np.full_like(query, 2 * n_keys)
        tokens = np.concatenate([pairs.reshape(len(keys), -1), ask, query, answer], 1)
        x, target = tokens[:, :-1], tokens[:, 1:].copy()
        if not self.options.every_step:
            target[:, :-1] = IGNORE
        return to_tensors(x, target)
