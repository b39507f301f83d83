"""A call of an op and what a single step of it means, and the numbers that calls are made of."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.testing._tolerance import epsilon

_FACTORS = 2.0
"""Roundings of the largest number to bfloat16 that products of rounded factors are allowed; of a
state 0.26 was the most."""
Shapes = list[tuple[int, ...]]
Step = Callable[[dict[str, Any], Tensor], tuple[Tensor, Tensor]]


class Call(NamedTuple):
    """One way to call an op, and the equation of one step of it."""

    kind: str
    function: Callable[..., Any]
    arguments: dict[str, Any]
    """Without a state and a layout, in double precision."""
    steps: Sequence[str]
    """The arguments of shape (batch, time, ...)."""
    state: tuple[int, ...]
    """The shape of the state of a sequence."""
    step: Step
    """``(arguments at a step, state)`` to ``(output, state)``."""
    empty: float | Tensor = 0.0
    """The state at a reset, and where none is given."""
    roundings: float = 8.0
    """Roundings of the largest number that are allowed in addition to the error of a loop."""
    half: bool = True
    """Whether it takes half precision."""
    reads_back: bool = False
    """Whether gradients come from the outputs, in the precision they are stored in."""
    half_products: bool = False
    """Whether kernels may round factors to bfloat16 where rows are stored in it."""
    outputs: int = 1
    """How many times as wide as its channels the output is."""
    real_state: bool = False
    """Whether a state is real although steps are complex."""
    counter: Callable[[Tensor], Tensor] | None = None
    """The steps that each sequence has read, from a state that counts them; given as ``read``."""
    lacks: frozenset[str] = frozenset()
    """Those of "reset", "cu_seqlens" and "reverse" that the op does not take."""

    def is_complex(self) -> bool:
        """Whether a state is complex."""
        tensors = (x for x in self.arguments.values() if isinstance(x, Tensor))
        return not self.real_state and any(x.is_complex() for x in tensors)

    def roundings_of(self, result: torch.dtype, stored: torch.dtype) -> float:
        """Roundings that a result may be off by: some are as coarse as those of what is stored."""
        ratio = max(1.0, epsilon(stored) / epsilon(result))
        if self.reads_back:
            return self.roundings * ratio
        if self.half_products and stored is torch.bfloat16:
            return max(self.roundings, _FACTORS * ratio)
        return self.roundings


class Draw:
    """Random tensors of a batch, in double precision."""

    def __init__(self, batch: int, time: int, channels: int, seed: int = 0) -> None:
        self.batch, self.time, self.channels = batch, time, channels
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, is_complex: bool = False) -> Tensor:
        dtype = torch.complex128 if is_complex else torch.float64
        return torch.randn(shape, dtype=dtype, generator=self.generator)

    def steps(self, *shape: int, is_complex: bool = False) -> Tensor:
        """Draw normal numbers (batch, time, ...)."""
        return self(self.batch, self.time, *shape, is_complex=is_complex)

    def state(self, sequences: int, call: Call) -> Tensor:
        """Draw the states of a call, one for each sequence."""
        return self(sequences, *call.state, is_complex=call.is_complex())

    def reset(self, batch: int) -> Tensor:
        """Draw resets (batch, time), of about three steps in ten."""
        return torch.rand(batch, self.time, generator=self.generator) < 0.3


#: Arguments of a recurrence that reads one sequence a row, forward.
ONE_WAY = frozenset({"cu_seqlens", "reverse"})
#: Arguments of one that cannot begin anew on the way.
UNCUT = ONE_WAY | {"reset"}


def joined(*parts: Tensor) -> Tensor:
    """Tensors (batch, ...) side by side in one, (batch, numbers)."""
    return torch.cat([x.flatten(1) for x in parts], 1)


def apart(state: Tensor, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Split a state that `joined` made into its parts, by their shapes without the batch.

    Example:
        >>> apart(torch.tensor([[1, 2, 3]]), (2,), (1, 1))
        [tensor([[1, 2]]), tensor([[[3]]])]
    """
    parts = state.split([prod(shape) for shape in shapes], 1)
    return [x.reshape(x.shape[0], *shape) for x, shape in zip(parts, shapes, strict=True)]


def started(state: Tensor | None, x: Tensor, shapes: Shapes) -> list[Tensor]:
    """The parts of a state for the rows of ``x``, zeros where there is none."""
    if state is None:
        return [x.new_zeros(x.shape[0], *shape) for shape in shapes]
    return apart(state, *shapes)


def numbers(*shapes: tuple[int, ...]) -> tuple[int]:
    """The shape of a state that is joined of such."""
    return (sum(map(prod, shapes)),)
