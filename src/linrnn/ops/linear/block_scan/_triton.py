"""`block_scan` by the Triton kernels in ``_triton_kernels.py``: of matrices, step after step."""

import functools
import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from linrnn.compute import gpu
from linrnn.compute.launch import launch
from linrnn.compute.layout import aligned, dense, n_sequences, with_strides
from linrnn.ops.linear.block_scan.op import empty_states
from linrnn.ops.linear.linear_scan.triton_plan import dtype_of, offsets_on

#: Side of the largest blocks: 4,096 numbers of a step are 16 for each thread of 8 warps.
_LARGEST_SIDE = 64
#: Steps of a sequence up to which one after the other takes less time than the launches of a tree,
#: by the latency of a load from memory: estimated, as for LinOSS, and not measured on a GPU.
_LONGEST_WALK = 4096
#: Numbers of a step's matrices that a program has, if blocks are small, and those of a warp.
_NUMBERS, _WARP_NUMBERS, _MOST_WARPS = 128, 256, 8
#: Registers of a thread for the matrices of the next steps.
_REGISTERS = 32


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return gpu.unavailable(device, dtype)


def declines(
    A: Tensor, b: Tensor | None, initial_state: Any, index: Tensor | None, *layout: Any
) -> str | None:
    """Why a tree is the better way, or None."""
    if index is not None:
        return "it has no kernel for rows or columns"
    if A.shape[-1] > _LARGEST_SIDE:
        return f"matrices of side {A.shape[-1]} are large products for a tree"
    if b is not None:
        _, cu_seqlens, *_ = layout
        time = b.shape[1] if cu_seqlens is None else b.shape[1] // max(1, len(cu_seqlens) - 1)
        if time > _LONGEST_WALK:
            return f"{time} steps one after the other would take longer than a tree of launches"
    return None


def forward(
    A: Tensor,
    b: Tensor,
    initial_state: Tensor | None,
    index: None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    gather: bool,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """``h_t = A_t h_{t-1} + b_t``."""
    h, final = empty_states(b, cu_seqlens)
    A, b = _rows(A), _rows(b)
    initial = None if initial_state is None else dense(initial_state)
    fields = (
        *_matrices(A),
        *with_strides(b),
        *with_strides(reset),
        offsets_on(b.device, cu_seqlens),
    )
    tensors = (*fields, initial, h, final)
    _run(_kernels().run_forward, A, h, cu_seqlens, reverse, tensors, _REGISTERS)
    return h, final


def backward(
    A: Tensor,
    b: None,
    initial_state: Tensor | None,
    index: None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    gather: bool,
    reverse: bool,
    h: Tensor,
    grad_h: Tensor,
    grad_final: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The adjoint in one pass over ``A``, ``h`` and ``grad_h``."""
    grad_b, grad_initial = empty_states(h, cu_seqlens)
    constant, shape, dtype = A.ndim == 3, A.shape, A.dtype
    sums = (grad_initial.shape[0], *shape) if constant else shape
    of_sums = torch.complex128 if dtype.is_complex else torch.float64
    grad_A = torch.empty(sums, dtype=of_sums if constant else dtype, device=h.device)
    A, h, grad_h = _rows(A), _rows(h), _rows(grad_h.to(h.dtype))
    initial = None if initial_state is None else dense(initial_state)
    fields = (*_matrices(A), *with_strides(grad_h), *with_strides(h), *with_strides(reset))
    offsets = offsets_on(h.device, cu_seqlens)
    tensors = (*fields, offsets, initial, dense(grad_final), grad_A, grad_b, grad_initial)
    _run(_kernels().run_backward, A, h, cu_seqlens, not reverse, tensors, _REGISTERS // 2)
    # in a fixed order: the same bits in every run
    return grad_A.sum(0).to(dtype) if constant else grad_A, grad_b, grad_initial


@functools.cache
def _kernels() -> ModuleType:
    """Triton is imported by the first call that runs on it."""
    return importlib.import_module("linrnn.ops.linear.block_scan._triton_kernels")


def _run(
    kernel: Any,
    A: Tensor,
    h: Tensor,
    cu_seqlens: Tensor | None,
    flip: bool,
    tensors: tuple[Any, ...],
    registers: int,
) -> None:
    """Launch a kernel; its arguments are tensors and strides, then what is the same for both."""
    _, time, blocks, side = h.shape
    square, wide = gpu.power_of_two(side) ** 2, h.dtype in (torch.float64, torch.complex128)
    block = min(gpu.power_of_two(blocks), max(1, _NUMBERS // square))
    warps = min(max(block * square // _WARP_NUMBERS, 1), _MOST_WARPS)
    each = -(-block * square // (32 * warps)) * (1 + wide) * (1 + h.dtype.is_complex)
    with torch.cuda.device_of(h):
        launch(
            kernel, n_sequences(h, cu_seqlens) * -(-blocks // block), *tensors, time, blocks, side,
            CONSTANT=A.ndim == 3, FLIP=flip, PAIR=h.dtype.is_complex, DTYPE=dtype_of(h.dtype),
            BLOCK=block, SIDE=gpu.power_of_two(side), UNROLL=max(1, min(8, registers // each)),
            num_warps=warps,
        )  # fmt: skip


def _rows(x: Tensor) -> Tensor:
    """As kernels read it: any batch and time strides, the numbers of a step side by side."""
    side_by_side = x.is_contiguous() or (x.ndim > 3 and x[:1, :1].is_contiguous())
    return x if side_by_side and aligned(x) and not (x.is_conj() or x.is_neg()) else dense(x)


def _matrices(A: Tensor) -> tuple[Tensor | None, int, int]:
    return (A, 0, 0) if A.ndim == 3 else with_strides(A)
