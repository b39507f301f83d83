"""The latch, LSTM's task 2b: the first of many symbols, said again at the end."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from linrnn.tasks._kinds.base import IGNORE, Published, Splits, Task
from linrnn.tasks._kinds.drawing import (
    GeneratedOptions,
    check_options,
    integers,
    spell,
    splits,
    to_tensors,
)
from linrnn.tasks._kinds.generated import Uniform

SIGNS = 2
"""Symbols x and y, with the ids 0 and 1; distractors have the ids after them."""
_LSTM = "Hochreiter and Schmidhuber 1997, Neural Computation 9(8), Experiment 2, task 2b"


@dataclass(frozen=True, kw_only=True)
class LatchOptions(GeneratedOptions):
    """Options of the task `latch`."""

    length: int = 100
    """Steps from the first symbol to the answer, p of the paper: the sign and p - 1 distractors."""
    distractors: int = 99
    """Kinds of distractors; the paper has p - 1."""
    every_step: bool = False
    """Train on every next symbol, as the paper does; False: on the answer alone."""


class Latch(Task):
    """Remember the first symbol over a stretch of random ones: task 2b of the LSTM paper.

    A sequence begins with x or y, each with probability 1/2. Then come ``length`` - 1 distractors,
    each drawn uniformly from ``distractors`` kinds, and the sequence ends with its first symbol
    again. That last symbol is not read; it is the target after the last distractor. The stretch
    between cannot be compressed and says nothing about the answer. Guessing between x and y is
    right half of the time.

    Task 2a of the paper has the distractors in one fixed order; there regularities of the stretch
    help, here none does. The defaults are the paper's p = 100, with 99 kinds of distractors.

    Args:
        options: `LatchOptions`.

    Raises:
        ArgumentError: a length, a number of distractors or a size below 1, a negative data_seed.

    Reference:
        Hochreiter and Schmidhuber, "Long Short-Term Memory", Neural Computation 9(8), 1997.
    """

    Options: ClassVar[type] = LatchOptions
    summary: ClassVar[str] = "LSTM task 2b: recall the first symbol after many random ones"
    encoder: ClassVar[Literal["linear", "tokens"]] = "tokens"
    pools: ClassVar[tuple[str, ...]] = ("none",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            model="LSTM, all of 18 trials, after 5,680 sequences on average",
            value=1.0,
            source=_LSTM,
        ),
    )

    chance = 0.5

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        check_options("Latch", self.options, "length", "distractors")
        self.sequence_length = self.options.length
        self.d_input = self.d_output = SIGNS + self.options.distractors

    def datasets(self) -> Splits:
        """Splits of x (time,) and target (time,), integers: see `Task.datasets`."""
        return splits(self.options, self._draw)

    def scores(self, y: Tensor, target: Tensor) -> Tensor:
        """1 where the answer is right, else 0."""
        return super().scores(y[:, -1], target[:, -1])

    def example(self) -> str:
        """The beginning and the end of a sequence; distractors are a1, a2, ..."""
        x, target = self.datasets().train[0]
        ids = x.tolist()
        first, last = spell(ids[:8], _symbol), spell(ids[8:][-8:], _symbol)
        between = " ... " if len(ids) > 16 else " " if last else ""
        return f"input {first}{between}{last}\ntarget {_symbol(int(target[-1]))}"

    def _draw(self, uniform: Uniform) -> tuple[Tensor, ...]:
        options = self.options
        sign = integers(uniform(1), 0, SIGNS)  # (B, 1)
        between = integers(uniform(options.length - 1), SIGNS, SIGNS + options.distractors)
        symbols = np.concatenate([sign, between, sign], 1)  # (B, T + 1)
        x, target = symbols[:, :-1], symbols[:, 1:].copy()
        if not options.every_step:
            target[:, :-1] = IGNORE
        return to_tensors(x, target)


def _symbol(i: int) -> str:
    return "xy"[i] if i < SIGNS else f"a{i - SIGNS + 1}"
