"""States carried over blocks, and tables of powers, by ``_block_carry_triton_kernels.py``."""

import functools
import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from linrnn.compute import gpu
from linrnn.compute.launch import launch
from linrnn.compute.layout import dense
from linrnn.ops.linear.linear_scan.triton_plan import ROW, dtype_of

#: Blocks at once, and groups of them whose rows are on their way; of two tensors half as many.
UNROLL, AHEAD = 2, 4
#: Real numbers of a state whose matrix fits on chip, and sequences that share it in a program.
_MOST_NUMBERS, _TOGETHER = 128, 16
#: Powers that a program computes.
_POWERS = 16


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return gpu.unavailable(device, dtype)


def forward(left: Tensor, first: Tensor, decay: Tensor) -> Tensor:
    """`linrnn.ops.conv._block_carry.carry`."""
    last = torch.empty(first.shape, dtype=first.dtype, device=first.device)
    _run(_kernels().run_forward, left, (left, dense(first), last, dense(decay)), AHEAD)
    return last


def backward(left: Tensor, states: Tensor, grad: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """`linrnn.ops.conv._block_carry.carry_back`."""
    first = torch.empty(grad.shape, dtype=grad.dtype, device=grad.device)
    of_decay = torch.empty_like(first)
    tensors = (left, dense(states), dense(grad), first, of_decay, dense(decay))
    _run(_kernels().run_backward, left, tensors, AHEAD // 2)
    return first, of_decay.sum(1)


def carries_dense(left: Tensor) -> bool:
    """Whether `dense` has a kernel: for matrices that fit on chip, in single precision.

    In float64 tensor cores computed wrong products: `benchmarks/results/`, 2026-11-26.
    """
    return left.dtype == torch.float32 and left.shape[-1] <= _MOST_NUMBERS


def carry_dense(left: Tensor, first: Tensor, decay: Tensor, *, back: bool = False) -> Tensor:
    """`linrnn.ops.conv._block_carry.carry_dense`, or `carry_dense_back`."""
    channels, seqs, blocks, numbers = left.shape
    last = torch.empty(first.shape, dtype=first.dtype, device=first.device)
    if not last.numel():
        return last
    with torch.cuda.device_of(left):
        launch(
            _kernels().run_dense, channels * -(-seqs // _TOGETHER), left, dense(first), last,
            dense(decay), seqs, blocks, numbers, BACK=back, ROWS=_TOGETHER,
            BLOCK=max(16, gpu.power_of_two(numbers)),
            PRECISION="tf32" if gpu.allows_tf32() else "tf32x3",
            num_warps=4 if numbers <= 64 else 8, num_stages=1,
        )  # fmt: skip
    return last


def powers(a: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """`linrnn.ops.conv.vandermonde.table`."""
    (channels, modes), a = a.shape, dense(a)
    table = torch.empty((channels, count, modes), dtype=dtype, device=a.device)
    if table.numel() == 0:
        return table
    block = _width(modes, a.is_complex())
    programs = channels * -(-count // _POWERS) * -(-modes // block)
    with torch.cuda.device_of(a):
        launch(
            _kernels().run_powers, programs, a, table, count, modes, PAIR=a.is_complex(),
            DTYPE=dtype_of(dtype), DIGITS=count.bit_length(), ROWS=_POWERS, BLOCK=block,
            num_warps=1,
        )  # fmt: skip
    return table


def _run(kernel: Any, left: Tensor, tensors: tuple[Tensor, ...], ahead: int) -> None:
    """One program for a channel and as many rows as a warp loads at once."""
    channels, seqs, blocks, modes = left.shape
    if not channels * seqs * modes:
        return
    complex_ = left.is_complex()
    block = _width(modes, complex_)
    rows = min(ROW // (block * left.dtype.itemsize) or 1, gpu.power_of_two(seqs))
    while rows > 1 and channels * -(-seqs // rows) < gpu.ENOUGH * gpu.processors(left.device):
        rows //= 2
    programs = channels * -(-seqs // rows) * -(-modes // block)
    with torch.cuda.device_of(left):
        launch(
            kernel, programs, *tensors, seqs, blocks, modes, channels, PAIR=complex_,
            DTYPE=dtype_of(left.dtype), ROWS=rows, BLOCK=block, UNROLL=UNROLL, AHEAD=ahead,
            num_warps=1, enable_fp_fusion=True,
        )  # fmt: skip


def _width(modes: int, complex_: bool) -> int:
    """Modes of a program: all, or as many as a warp loads 128 bits a thread of."""
    return min(gpu.power_of_two(modes), 64 if complex_ else 128)


@functools.cache
def _kernels() -> ModuleType:
    """Triton is imported by the first call that runs on it."""
    return importlib.import_module("linrnn.ops.conv._block_carry_triton_kernels")
