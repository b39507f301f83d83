"""A model read in segments of time, whose activations are computed again for the gradient."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from math import log
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from linrnn.learn._parts.again import Mode, generators
from linrnn.learn._parts.batch import Batch, read
from linrnn.ops.linear.linear_scan.inverse import watched
from linrnn.state import leaves, map_state
from linrnn.typing import State

TOLERANCE = 1e-4
"""Largest error of a state computed back from a later one, relative to its size."""


@dataclass
class Segments:
    """A batch read segment by segment, and the states stored for its gradient.

    Args:
        model: called as in `linrnn.learn.read`.
        batch: the whole.
        before: state that the first segment begins from, or None.
        steps: of a segment.
        reverse: what a segment begins from is computed from what it ends in, as far as that can be.
    """

    model: nn.Module
    batch: Batch
    before: State | None
    steps: int
    reverse: bool = False
    states: dict[int, State | None] = field(default_factory=dict)
    """By the number of a segment, the state that it begins from, where that is kept."""
    random: list[list[Tensor]] = field(default_factory=list)
    """The state of the generators before each segment."""
    after: State | None = None
    """State of the model, after the batch."""

    def __post_init__(self) -> None:
        time = self.batch.x.shape[1]
        self.slices = [
            slice(start, min(start + self.steps, time))
            for start in range(0, max(time, 1), self.steps)
        ]
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.mode = Mode(self.batch.x.device)

    def answers(self) -> Tensor:
        """Answer, with a gradient that is computed by reading once more."""
        y: Tensor = _Read.apply(self, *self.parameters)
        return y

    def here(self, steps: slice) -> Tensor:
        """(batch, 1): whose answer to a sequence is given in these steps: those that end there."""
        time, lengths = self.batch.x.shape[1], self.batch.lengths
        ends = torch.full((len(self.batch.x),), time) if lengths is None else lengths.clamp(1)
        ends = ends.to(self.batch.x.device)
        ended: Tensor = (ends > steps.start) & (ends <= max(steps.stop, 1))
        return ended[:, None]

    def forward(self) -> Tensor:
        """Read all segments; what a segment begins from is kept where it has to be."""
        parts: list[Tensor] = []
        state, cost = self.before, 0.0
        for i, steps in enumerate(self.slices):
            self.random.append(generators(self.batch.x.device))
            previous_state = state
            with watched() if self.reverse else nullcontext() as watch:
                y, state = read(self.model, self.batch, previous_state, steps)
            cost += float("inf") if watch is None else watch.cost
            if i == 0 or cost > _error_budget(state):
                # those left out before this one are computed from it
                self.states[i], cost = previous_state, 0.0
            if y.ndim == 2 and parts:
                y = torch.where(self.here(steps), y, parts.pop())
            parts.append(y)
        self.after = state
        return torch.cat(parts, 1) if parts[0].ndim > 2 else parts[0]

    def _start_of(self, i: int, end: State | None) -> State:
        """The state that a segment begins from, computed from that which it ends in."""
        with self.mode.again(self.random[i]), torch.no_grad(), watched(backward=True):
            return read(self.model, self.batch, end, self.slices[i])[1]

    def backward(self, g: Tensor) -> list[Tensor | None]:
        """The gradients of parameters, segment by segment from the last to the first."""
        total: list[Tensor | None] = [None] * len(self.parameters)
        later: dict[int, Tensor] = {}  # gradients by the state after a segment
        buffers = [(b, b.clone()) for b in self.model.buffers()]
        end = self.after
        for i in reversed(range(len(self.slices))):
            steps = self.slices[i]
            end = self.states.pop(i) if i in self.states else self._start_of(i, end)
            previous_state = _leaf(end)
            segment_grad = g[:, steps] if g.ndim > 2 else g * self.here(steps)
            with self.mode.again(self.random[i]), torch.enable_grad():
                y, state = read(self.model, self.batch, previous_state, steps)
            next_tensors = leaves(state)
            pairs = [(y, segment_grad), *((next_tensors[k], v) for k, v in later.items())]
            pairs = [(of, by) for of, by in pairs if of.requires_grad]
            starts = {} if previous_state is None else _reals(previous_state)
            grads = torch.autograd.grad(
                [of for of, _ in pairs],
                [*self.parameters, *starts.values()],
                [by for _, by in pairs],
                allow_unused=True,
            )
            total = [_plus(a, b) for a, b in zip(total, grads, strict=False)]
            further = zip(starts, grads[len(total) :], strict=True)
            later = {k: v for k, v in further if v is not None}
        with torch.no_grad():
            for buffer, value in buffers:  # statistics have moved once already
                buffer.copy_(value)
        return total


class _Read(torch.autograd.Function):
    """Segments read without a graph; the gradient reads them with one."""

    @staticmethod
    def forward(ctx: Any, segments: Segments, *parameters: Tensor) -> Tensor:
        ctx.segments = segments
        return segments.forward()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        return (None, *ctx.segments.backward(g))


def _error_budget(state: State) -> float:
    """The logarithm of how often an error of rounding goes into one of `TOLERANCE`."""
    dtypes = [h.dtype for h in leaves(state) if h.is_floating_point() or h.is_complex()]
    return min((log(TOLERANCE / (torch.finfo(d).eps / 2)) for d in dtypes), default=0.0)


def _plus(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def _reals(state: State) -> dict[int, Tensor]:
    return {i: h for i, h in enumerate(leaves(state)) if h.requires_grad}


def _leaf(state: State | None) -> State | None:
    """A state of which derivatives can be asked, without a history."""
    if state is None:
        return None

    def leaf(h: Tensor) -> Tensor:
        h = h.detach()
        return h.requires_grad_(True) if h.is_floating_point() or h.is_complex() else h

    return map_state(leaf, state)
