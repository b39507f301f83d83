"""A cell one step after another, in PyTorch's operators: the definition of every form."""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from linrnn.engine.graph import Program, evaluate
from linrnn.ops.cell.cell_scan._problem import Layout, Leaves, Results, wide_inputs

Step = Callable[..., tuple[list[Tensor], list[Tensor]]]
"""``step(states, inputs, parameters, matrices)`` to outputs and next states."""


def loop(program: Program, leaves: Leaves, layout: Layout, step: Step | None = None) -> Results:
    """Outputs and final states.

    Args:
        program: of the cell.
        leaves, layout: see there.
        step: the function the program was read from; by default the program is computed.
    """
    step = step or (lambda *arguments: evaluate(program, *arguments)[:2])
    rows, reset = layout.batch(leaves.states), layout.reset
    # unbind, not x[:, t]: the gradient of an index is as large as the whole tensor
    inputs = [x.unbind(1) for x in wide_inputs(leaves)]
    time, cu_seqlens = layout.time, layout.cu_seqlens
    offsets = [0, time] if cu_seqlens is None else cu_seqlens.tolist()
    outputs: dict[int, list[Tensor]] = {}
    finals = []
    for s, (start, end) in enumerate(itertools.pairwise(offsets)):
        states = [h if cu_seqlens is None else h[s : s + 1] for h in leaves.states]
        shapes = [h.shape for h in states]
        for t in range(end - 1, start - 1, -1) if layout.reverse else range(start, end):
            if reset is not None:
                states = _restarted(states, reset[:, t, None], layout.starts)
            now = [x[t] for x in inputs]
            outputs[t], states = step(states, now, leaves.parameters, leaves.matrices)
            # a next state may be a number
            states = [h.expand(shape) for h, shape in zip(states, shapes, strict=True)]
        finals.append(states)
    stacked = []
    for i, width in enumerate(layout.widths):
        steps = [outputs[t][i].expand(rows, width) for t in range(time)]
        empty = leaves.states[0].new_empty(rows, 0, width)
        stacked.append((torch.stack(steps, 1) if steps else empty).to(layout.dtype))
    if not finals:
        return stacked, list(leaves.states)
    return stacked, [torch.cat(parts) for parts in zip(*finals, strict=True)]


def _restarted(states: Sequence[Tensor], reset: Tensor, starts: Sequence[float]) -> list[Tensor]:
    return [torch.where(reset, start, h) for h, start in zip(states, starts, strict=True)]
