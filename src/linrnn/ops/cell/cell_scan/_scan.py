"""All steps of a cell at once, by scans.

For a cell that is affine in its state, coefficients are computed and `linear_scan` does it;
others may say themselves how it is done.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linrnn.engine.cell import known_at_once
from linrnn.engine.derivatives import Group, affine
from linrnn.engine.graph import Program, evaluate
from linrnn.ops.cell.cell_scan._arguments import Layout, Leaves, Results, wide_inputs
from linrnn.ops.linear.linear_scan import linear_scan


def declines(program: Program, leaves: Leaves, layout: Layout) -> str | None:
    """Why scans do not compute a program, or None."""
    reason = affine(program).reason
    return None if reason is None or known_at_once(program) else reason


def results(
    program: Program,
    leaves: Leaves,
    layout: Layout,
    step: Any = None,
    backend: str | None = None,
) -> Results:
    """Outputs and final states of a program that is not declined; no ``step`` is called."""
    inputs = wide_inputs(leaves)
    operands = (inputs, leaves.parameters, leaves.matrices)
    parallel = known_at_once(program)
    if parallel is not None:
        outputs, finals = parallel.by_parts(
            *(leaves.states, *operands),
            reset=layout.reset,
            cu_seqlens=layout.cu_seqlens,
            reverse=layout.reverse,
        )
        return layout.stored(outputs, layout.batch(leaves.states)), finals
    count = len(leaves.states)
    # (1, 1, width) each, which nothing reads until they are solved: (batch, time, width)
    previous_states: list[Tensor] = [x[:1, None] for x in leaves.states]
    finals = list(leaves.states)
    for group in affine(program).groups:
        parts = evaluate(group.coefficients, previous_states, *operands).outputs
        solved, last = _solve(group, parts, leaves, layout, backend)
        for i, h, final in zip(group.states, solved, last, strict=True):
            previous_states[i], finals[i] = layout.one_before(i, h, leaves.states[i]), final
    assert len(previous_states) == count
    outputs = evaluate(program, previous_states, *operands).outputs
    return layout.stored(outputs, layout.batch(leaves.states)), finals


def _solve(
    group: Group, parts: Sequence[Tensor], leaves: Leaves, layout: Layout, backend: str | None
) -> tuple[list[Tensor], list[Tensor]]:
    """All states of a group and the last ones."""
    n = len(group.states)
    initial = [leaves.states[i] for i in group.states]
    width, rows = initial[0].shape[-1], layout.batch(leaves.states)
    shape = (rows, layout.time, width)
    decays = [x if x.ndim == 3 else x.expand(width) for x in parts[:n]]  # (width,) or (B, T, width)
    varying = any(x.ndim == 3 for x in decays)
    decays = [x.expand(shape) for x in decays] if varying else decays  # (B, T, width)
    added = [x.expand(shape) for x in parts[n:]]  # (B, T, width)
    starts = [layout.starts[i] for i in group.states]
    a, b, h0 = (_one(tensors) for tensors in (decays, added, initial))
    if layout.reset is not None and any(starts):
        start = complex(*starts) if n == 2 else starts[0]
        b = torch.where(layout.reset[..., None], b + a * start, b)
    h, final = linear_scan(
        a,
        b,
        h0,
        reset=layout.reset,
        cu_seqlens=layout.cu_seqlens,
        reverse=layout.reverse,
        backend=backend,
    )
    return _parts(h, n), _parts(final, n)


def _one(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.complex(parts[0], parts[1])


def _parts(x: Tensor, n: int) -> list[Tensor]:
    return [x] if n == 1 else [x.real, x.imag]
