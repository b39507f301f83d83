"""Brackets: which one is to be closed next."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from linrnn.errors import ArgumentError
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

_UP = 0.75
"""Chance of an opening bracket in the first half of a sequence, and of a closing one after it."""


@dataclass(frozen=True, kw_only=True)
class DyckOptions(GeneratedOptions):
    """Options of the task `dyck`."""

    depth: int = 8
    """Most brackets that are open at once; a sequence has four times as many steps."""
    kinds: int = 4
    """Kinds of brackets."""


class Dyck(Task):
    """Say after each closing bracket which kind is the innermost open one.

    A stack, as deep as `depth`. Brackets open more often in the first half and close more often in
    the second. Where none is open nothing is scored. Kinds are drawn anew for each opening bracket,
    so that guessing has 1 / kinds right at every depth. The language is that of Dyck with a bound
    on the depth, as in Hewitt et al. 2020, arXiv:2010.07515.

    Args:
        options: `DyckOptions`.

    Raises:
        ArgumentError: a depth or number of kinds below 2, a size below 1, a negative data_seed.
    """

    length_option = "depth"
    Options: ClassVar[type] = DyckOptions
    summary: ClassVar[str] = "the innermost open bracket, after each closing one"
    encoder: ClassVar[Literal["linear", "tokens"]] = "tokens"
    pools: ClassVar[tuple[str, ...]] = ("none",)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        check_options("Dyck", self.options)
        for name in ("depth", "kinds"):
            value = getattr(self.options, name)
            if value < 2:
                raise ArgumentError(f"Dyck: {name} must be at least 2, got {value}.")
        self.sequence_length = 4 * self.options.depth
        self.d_input = self.d_output = 2 * self.options.kinds
        self.chance = 1 / self.options.kinds

    def datasets(self) -> Splits:
        """Splits of x (time,) and target (time,): see `Task.datasets`."""
        return splits(self.options, self._draw)

    def example(self) -> str:
        """Opening brackets are (0, (1, ..., closing ones )0, )1, ..."""
        x, target = self.datasets().train[0]
        kinds = self.options.kinds

        def symbol(i: int) -> str:
            return "-" if i == IGNORE else f"({i}" if i < kinds else f"){i - kinds}"

        return f"input {spell(x.tolist(), symbol)}\ntarget {spell(target.tolist(), symbol)}"

    def _draw(self, uniform: Uniform) -> tuple[Tensor, ...]:
        depth, kinds, steps = self.options.depth, self.options.kinds, self.sequence_length
        ups, drawn = uniform(steps), integers(uniform(steps), 0, kinds)  # (examples, time)
        x, target = np.zeros_like(drawn), np.full_like(drawn, IGNORE)
        stack = np.zeros((len(drawn), depth + 1), np.int64)  # place 0 lies below the first
        height, every = np.zeros(len(drawn), np.int64), np.arange(len(drawn))
        for t in range(steps):
            likely = _UP if 2 * t < steps else 1 - _UP
            # two brackets open first, so that every sequence has a step that is scored
            opens = (ups[:, t] < likely) | (height == 0) | (t < 2)
            opens &= height < depth
            x[:, t] = np.where(opens, drawn[:, t], kinds + stack[every, height])
            height += np.where(opens, 1, -1)
            stack[every, height] = np.where(opens, drawn[:, t], stack[every, height])
            scored = ~opens & (height > 0)
            target[:, t] = np.where(scored, stack[every, height], IGNORE)
        return to_tensors(x, target)
