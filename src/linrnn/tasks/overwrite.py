"""Overwriting: the last value of each of several keys."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from linrnn.tasks._kinds.base import IGNORE, Splits, Task
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
class OverwriteOptions(GeneratedOptions):
    """Options of the task `overwrite`."""

    n_updates: int = 16
    """Pairs that replace the value of a key, after each key got one."""
    n_keys: int = 4
    """Different keys; each is asked once."""
    n_values: int = 8
    """Different values."""


class Overwrite(Task):
    """Say for each key which value it got last.

    Every key gets a value, in random order. Then random keys get new values, which replace the old
    ones. At the end every key is asked, again in random order. A memory that only adds pairs up
    holds all values of a key; one that forgets by age loses keys that were written long ago.

    Args:
        options: `OverwriteOptions`.

    Raises:
        ArgumentError: a number or size below 1, a negative data_seed.
    """

    length_option = "n_updates"
    Options: ClassVar[type] = OverwriteOptions
    summary: ClassVar[str] = "the last value of each key, after values were replaced"
    encoder: ClassVar[Literal["linear", "tokens"]] = "tokens"
    pools: ClassVar[tuple[str, ...]] = ("none",)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        options = self.options
        check_options("Overwrite", options, "n_updates", "n_keys", "n_values")
        self.sequence_length = 3 * options.n_keys + 2 * options.n_updates
        self.d_input = self.d_output = options.n_keys + options.n_values
        self.chance = 1 / options.n_values

    def datasets(self) -> Splits:
        """Splits of x (time,) and target (time,): see `Task.datasets`."""
        return splits(self.options, self._draw)

    def example(self) -> str:
        """Keys are k0, k1, ..., values v0, v1, ...; steps that are not scored are dashes."""
        x, target = self.datasets().train[0]
        keys = self.options.n_keys

        def symbol(i: int) -> str:
            return "-" if i == IGNORE else f"k{i}" if i < keys else f"v{i - keys}"

        return f"input {spell(x.tolist(), symbol)}\ntarget {spell(target.tolist(), symbol)}"

    def _draw(self, uniform: Uniform) -> tuple[Tensor, ...]:
        options = self.options
        n_keys, n_writes = options.n_keys, options.n_keys + options.n_updates
        first = uniform(n_keys).argsort(1, kind="stable")
        keys = np.concatenate([first, integers(uniform(options.n_updates), 0, n_keys)], 1)
        values = n_keys + integers(uniform(n_writes), 0, options.n_values)
        asked = uniform(n_keys).argsort(1, kind="stable")  # (examples, n_keys)
        memory = np.zeros_like(asked)
        for t in range(n_writes):
            np.put_along_axis(memory, keys[:, t : t + 1], values[:, t : t + 1], 1)
        pairs = np.stack([keys, values], -1).reshape(len(keys), -1)
        x = np.concatenate([pairs, asked], 1)
        target = np.full_like(x, IGNORE)
        target[:, -n_keys:] = np.take_along_axis(memory, asked, 1)
        return to_tensors(x, target)
