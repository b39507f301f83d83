"""A cell one step after another, in PyTorch's operators: the definition of every form."""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from linrnn.engine.graph import Program, evaluate
from linrnn.ops.cell.cell_scan._arguments import Layout, Leaves, Results


def results(
    program: Program,
    leaves: Leaves,
    layout: Layout,
    step: Callable[..., Results] | None = None,
    backend: str | None = None,
) -> Results:
    """Outputs and final states.

    Args:
        program: of the cell.
        leaves, layout: see there.
        step: the function the program was read from; by default the program is computed.
        backend: as of the other forms; there is none here.
    """
    step = step or (lambda *arguments: evaluate(program, *arguments)[:2])
    rows, reset = layout.batch(leaves.states), layout.reset
    # unbind, not x[:, t]: the gradient of an index is as large as the whole tensor
    dtype = leaves.states[0].dtype
    inputs = [x.to(dtype).unbind(1) for x in leaves.inputs]  # time times (batch, width)
    time, cu_seqlens = layout.time, layout.cu_seqlens
    offsets = [0, time] if cu_seqlens is None else cu_seqlens.tolist()
    outputs: dict[int, list[Tensor]] = {}
    finals = []
    for s, (start, end) in enumerate(itertools.pairwise(offsets)):
        states = [h if cu_seqlens is None else h[s : s + 1] for h in leaves.states]
        shapes = [h.shape for h in states]
        for t in range(end - 1, start - 1, -1) if layout.reverse else range(start, end):
            if reset is not None:
                pairs = zip(states, layout.starts, strict=True)
                states = [torch.where(reset[:, t, None], start, h) for h, start in pairs]
            now = [x[t] for x in inputs]
            outputs[t], states = step(states, now, leaves.parameters, leaves.matrices)
            # a next state may be a number
            # (S or 1, width)
            states = [h.expand(shape) for h, shape in zip(states, shapes, strict=True)]
        finals.append(states)
    stacked = []
    for i, width in enumerate(layout.widths):
        steps = [outputs[t][i].expand(rows, width) for t in range(time)]  # (B, width) each
        empty = leaves.states[0].new_empty(rows, 0, width)
        # (B, T, width)
        stacked.append((torch.stack(steps, 1) if steps else empty).to(layout.dtype))
    if not finals:
        return stacked, list(leaves.states)
    return stacked, [torch.cat(parts) for parts in zip(*finals, strict=True)]  # (S, width)
