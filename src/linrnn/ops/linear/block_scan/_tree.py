"""`block_scan` as a balanced tree in plain PyTorch, and its adjoint as another one."""

from typing import Any

import torch
from torch import Tensor

from linrnn.compute.layout import accumulator_dtype
from linrnn.ops.linear.block_scan.definition import adjoint, by_tree
from linrnn.ops.linear.block_scan.transition import transition


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Never: it runs wherever PyTorch does."""
    return None


def forward(
    A: Tensor,
    b: Tensor,
    initial_state: Tensor | None,
    index: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    gather: bool,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """``h_t = A_t h_{t-1} + b_t``."""
    moves = transition(A, index, gather)
    return by_tree(moves, b, initial_state, reset, cu_seqlens, reverse)


def backward(
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
) -> tuple[Tensor, Tensor, Tensor]:
    """The same tree, backward in time."""
    dtype = accumulator_dtype(h.dtype)
    moves, layout = transition(A, index, gather).to(dtype), (reset, cu_seqlens, reverse)
    grads: Any = (grad_h.to(dtype), grad_final)
    grad_A, grad_b, grad_initial = adjoint(
        by_tree, moves, h.to(dtype), initial_state, *layout, *grads
    )
    return grad_A.to(A.dtype), grad_b.to(h.dtype), grad_initial
