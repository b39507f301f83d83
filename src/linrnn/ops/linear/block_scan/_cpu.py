"""`block_scan` by the native kernel ``src/native/kernels/block_scan.cpp``."""

from typing import Any

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import aligned, checked_offsets, dense, n_sequences
from linrnn.compute.native import array, pointer
from linrnn.ops.linear.block_scan.op import empty_states

_BLOCK_SCAN = native.Kernel(
    "block_scan",
    "reverse backward constant seqs time blocks side offsets a b h reset index gather "
    "initial final grad_a grad_b grad_initial",
)
# Side up to which one step after the other is faster than a tree of products. Forward and backward
# of (8, 512): 8 blocks of 64 take 0.5 times as long, 4 of 128 1.3 times, one of 256 1.4 times. One
# core of an AVX-512 machine, November 2026.
_LARGEST_CONSTANT = 64


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot compute on that device and dtype, or None."""
    return native.unavailable(device, dtype, kernel="block_scan")


def declines(
    A: Tensor, b: Tensor | None, initial_state: Any, index: Tensor | None, *layout: Any
) -> str | None:
    """Why a tree is the better way, or None."""
    if index is None and A.ndim == 3 and A.shape[-1] > _LARGEST_CONSTANT:
        return f"constant matrices of side {A.shape[-1]} are large products for a tree"
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
    h, final = empty_states(b, cu_seqlens)
    states = (initial_state, final, None, None, None)
    _run(A, b, h, index, reset, cu_seqlens, (reverse, False), gather, states)
    return h, final


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
    """The adjoint in one pass over ``A``, ``h`` and ``grad_h``."""
    grad_A = torch.empty(A.shape, dtype=h.dtype, device="cpu")
    grad_b = torch.empty_like(h, memory_format=torch.contiguous_format)
    grad_initial = torch.empty(grad_final.shape, dtype=grad_final.dtype, device="cpu")
    states = (initial_state, grad_final, grad_A, grad_b, grad_initial)
    _run(A, grad_h, h, index, reset, cu_seqlens, (reverse, True), gather, states)
    return grad_A.to(A.dtype), grad_b, grad_initial


def _run(
    A: Tensor,
    b: Tensor,
    h: Tensor,
    index: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    flags: tuple[bool, bool],
    gather: bool,
    states: tuple[Tensor | None, ...],
) -> None:
    _, time, count, side = h.shape
    constant = index is None and A.ndim == 3
    cu_seqlens = checked_offsets("block_scan", cu_seqlens, time)
    b, h, places = _rows(b), _rows(h), None if index is None else _rows(index)
    A = dense(A.to(h.dtype)) if constant else _rows(A.to(h.dtype))
    initial, final = (None if x is None else dense(x) for x in states[:2])
    _BLOCK_SCAN(
        h.dtype,
        *flags,
        constant,
        n_sequences(h, cu_seqlens),
        time,
        count,
        side,
        pointer(cu_seqlens),
        *((A.data_ptr(), 0, 0) if constant else array(A)),
        *array(b),
        *array(h),
        *array(reset),
        *array(places),
        gather,
        pointer(initial),
        pointer(final),
        *map(pointer, states[2:]),
    )


def _rows(x: Tensor) -> Tensor:
    """As the kernel reads it: any batch and time strides, the numbers of a step side by side."""
    side_by_side = x.is_contiguous() or x[:1, :1].is_contiguous()
    return x if side_by_side and aligned(x) and not (x.is_conj() or x.is_neg()) else dense(x)
