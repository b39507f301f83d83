"""Describe a call for every form of a cell's recurrence, and find the states before each step."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.compute.layout import previous_state
from linrnn.engine.graph import Program


class Leaves(NamedTuple):
    """The leaves of a program by kind, all real; or their gradients."""

    states: Sequence[Any]
    """Before the first step, (sequences, width), in the dtype that is computed in."""
    inputs: Sequence[Any]
    """(batch, time, width), in any one dtype."""
    parameters: Sequence[Any]
    """(width,), in the dtype that is computed in."""
    matrices: Sequence[Any]
    """(rows, columns) or (heads, rows, columns), in the dtype that is computed in."""

    def flat(self) -> list[Tensor]:
        """All of them in this order."""
        return [x for group in self for x in group]

    def like(self, flat: Sequence[Any]) -> "Leaves":
        """Group the values of ``flat`` as this one groups its own."""
        values = iter(flat)
        return Leaves(*([next(values) for _ in kind] for kind in self))

    def computed_in(self) -> torch.dtype:
        """The dtype of states, parameters and matrices."""
        dtype: torch.dtype = self.states[0].dtype
        return dtype


class Layout(NamedTuple):
    """How steps follow one another, and what their outputs look like."""

    reset: Tensor | None
    cu_seqlens: Tensor | None
    time: int
    reverse: bool
    starts: Sequence[float]
    """The value of each state after a reset."""
    dtype: torch.dtype
    """The dtype of the outputs."""
    widths: Sequence[int]
    """The widths of the outputs."""
    checkpoint: int | None = None
    """The native kernels store the state of every n-th step, n this number; None: of every step."""
    half_products: bool = False
    """Kernels may round what is multiplied with matrices, which are bfloat16, to bfloat16."""

    def batch(self, states: Sequence[Tensor]) -> int:
        """How many rows the inputs have."""
        return states[0].shape[0] if self.cu_seqlens is None else 1

    def before(self, h: Sequence[Tensor], states: Sequence[Tensor]) -> list[Tensor]:
        """The states each step starts from, given those after each step, (batch, time, width)."""
        return [self.one_before(i, x, states[i]) for i, x in enumerate(h)]

    def one_before(self, i: int, h: Tensor, initial: Tensor) -> Tensor:
        """The same of the i-th state."""
        marks = (self.reset, self.cu_seqlens, self.reverse)
        return previous_state(h, initial, *marks, empty=self.starts[i])

    def stored(self, outputs: Sequence[Tensor], batch: int) -> list[Tensor]:
        """Outputs of all steps as they are returned."""
        pairs = zip(outputs, self.widths, strict=True)
        return [y.expand(batch, self.time, width).to(self.dtype) for y, width in pairs]


Results = tuple[list[Tensor], list[Tensor]]
"""Outputs and final states."""


def wide_inputs(leaves: Leaves) -> list[Tensor]:
    """The inputs in the dtype that is computed in."""
    dtype = leaves.computed_in()
    return [x.to(dtype) for x in leaves.inputs]


__all__ = ["Layout", "Leaves", "Program", "Results", "wide_inputs"]
