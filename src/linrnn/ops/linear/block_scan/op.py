"""`block_scan` on checked arguments with one axis of blocks: its description as an `Op`.

The adjoint of a scan is a scan that runs backward in time. So gradients of any order exist, and
each costs the kernels and a few elementwise operations.
"""

from typing import Any

import torch
from torch import Tensor

from linrnn.compute.backend import requested
from linrnn.compute.derivatives import Gradients
from linrnn.compute.layout import accumulator_dtype, n_sequences
from linrnn.compute.modes import older_vmap
from linrnn.compute.op import Op
from linrnn.ops.linear.block_scan.definition import adjoint, by_steps, by_tree
from linrnn.ops.linear.block_scan.transition import Transition, operands, transition

Results = tuple[Tensor, Tensor]


def empty_states(b: Tensor, cu_seqlens: Tensor | None) -> Results:
    """Uninitialised ``(h, final_state)``."""
    shape = (n_sequences(b, cu_seqlens), *b.shape[2:])
    final = b.new_empty(shape, dtype=accumulator_dtype(b.dtype))
    return torch.empty_like(b, memory_format=torch.contiguous_format), final


def _shapes(A: Tensor, b: Tensor, *remaining: Any) -> Results:
    return empty_states(b, remaining[3])


def _definition(
    A: Tensor,
    b: Tensor,
    initial_state: Tensor | None,
    index: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    gather: bool,
    reverse: bool,
    backend: str | None = None,
) -> Results:
    # the older vmap knows no view of a view of the same size, which the tree makes
    in_order = requested(backend)[0] == "reference" or older_vmap()
    compute = by_steps if in_order else by_tree
    return compute(transition(A, index, gather), b, initial_state, reset, cu_seqlens, reverse)


def _run(A: Transition, b: Tensor, initial_state: Any, *layout: Any) -> Results:
    reset, cu_seqlens, reverse = layout
    parts, index, gather = operands(A)
    h, final = blocks(parts, b, initial_state, index, reset, cu_seqlens, gather, reverse)
    return h, final


def _adjoint(
    A: Tensor,
    b: None,
    initial_state: Tensor | None,
    index: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    gather: bool,
    reverse: bool,
    h: Tensor,
    grad_h: Tensor,
    grad_final: Tensor,
) -> Gradients:
    # sums over time of half precision would lose their end
    dtype = accumulator_dtype(h.dtype)
    moves = transition(A, index, gather).to(dtype)
    layout = (reset, cu_seqlens, reverse)
    grad_A, grad_b, grad_initial = adjoint(
        _run, moves, h.to(dtype), initial_state, *layout, grad_h.to(dtype), grad_final
    )
    initial = None if initial_state is None else grad_initial
    return [grad_A.to(A.dtype), grad_b.to(h.dtype), initial]


#: ``(A, b, initial_state, index, reset, cu_seqlens, gather, reverse)`` to ``(h, final_state)``.
blocks: Op = Op(
    "block_scan",
    "Tensor A, Tensor b, Tensor? initial_state, Tensor? index, Tensor? reset, "
    "Tensor? cu_seqlens, bool gather, bool reverse",
    gradients=3,
    results=2,
    definition=_definition,
    shapes=_shapes,
    kernels={name: f"linrnn.ops.linear.block_scan._{name}" for name in ("triton", "cpu", "tree")},
    saved=(0,),
    unread={1: 0},
    adjoint=_adjoint,
    opaque=True,
    lead=1,
)
