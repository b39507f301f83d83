"""A scan by the Triton kernels in ``_triton_kernels.py``: of numbers, or of their logarithms."""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.compute import gpu
from linrnn.compute.launch import Launch, layout
from linrnn.compute.layout import dense, empty_results, n_sequences, unit_channels
from linrnn.ops.linear.linear_scan.triton_plan import (
    Launches,
    dtype_of,
    kernels_of,
    launches,
    make_plan,
    offsets_on,
    strides,
)

#: Rows that one program after the other adds; PyTorch's sum of more is many programs.
MOST_ROWS = 4096
#: Steps of a stretch of logarithms, of which more would not fit in registers beside what
#: exponentials need.
MOST_LOG_STEPS, MOST_LOG_STEPS_BACK = 8, 4


class _Kernels(NamedTuple):
    """The kernels of a layout."""

    scan: Launches
    rows: tuple[int, ...] | None  # shape of the sums of a constant decay's gradient
    add: Launch | None  # them


def form(a: Tensor, b: Tensor, *remaining: Any) -> str:
    """How the kernels are laid out for a call, and why."""
    seqs = n_sequences(b, remaining[2])
    return make_plan(tuple(b.shape), b.dtype, seqs, b.device).why(seqs, b.device)


def scan(
    a: Tensor,
    b: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
    *,
    log: bool = False,
) -> tuple[Tensor, Tensor]:
    """``h_t = a_t * h_{t-1} + b_t``, or with ``log`` the same of numbers given as logarithms."""
    h, final = empty_results(b, cu_seqlens)
    a, b = unit_channels(a), unit_channels(b)
    layouts = (layout(a), layout(b), None, layout(reset), None)
    kernel = _kernels(layouts, final.shape[0], b.device, reverse, log).scan
    offsets = offsets_on(b.device, cu_seqlens)
    with torch.cuda.device_of(b):
        initial = None if initial_state is None else dense(initial_state)
        kernel.run(a, b, reset, offsets, initial, h, final, *kernel.handed(b.device))
    return h, final


def adjoint(
    a: Tensor,
    b: Tensor | None,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
    h: Tensor,
    grad_h: Tensor,
    grad_final: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The adjoint in one pass over ``a``, ``h`` and ``grad_h``; of logarithms also over ``b``."""
    device, (grad_b, grad_initial) = h.device, empty_results(h, cu_seqlens)
    a, h, grad_h = unit_channels(a), unit_channels(h), unit_channels(grad_h)
    b = None if b is None else unit_channels(b)
    layouts = (layout(a), layout(b), layout(h), layout(reset), layout(grad_h))
    kernels = _kernels(layouts, grad_initial.shape[0], device, not reverse, b is not None)
    kernel, rows, add = kernels
    sums = None if rows is None else torch.empty(rows, dtype=torch.float64, device=device)
    grad_a = torch.empty(a.shape, dtype=a.dtype, device=device)
    offsets = offsets_on(device, cu_seqlens)
    initial = None if initial_state is None else dense(initial_state)
    with torch.cuda.device_of(h):
        added = () if b is None else (b,)
        grads = (grad_a if sums is None else sums, grad_b, grad_initial)
        entering = None if grad_final is None else dense(grad_final)
        tensors = (a, *added, grad_h, h, reset, offsets, initial, entering, *grads)
        kernel.run(*tensors, *kernel.handed(device))
        # in a fixed order: the same bits in every run
        if add is not None:
            add(sums, grad_a)
        elif sums is not None:
            parts = torch.view_as_real(grad_a) if grad_a.is_complex() else grad_a
            parts.copy_(sums.sum(0).view(parts.shape))
    return grad_a, grad_b, grad_initial


@functools.lru_cache(maxsize=256)
def _kernels(
    layouts: tuple[Any, ...], seqs: int, device: torch.device, flip: bool, log: bool
) -> _Kernels:
    """How calls of one layout are computed.

    Args:
        layouts: of the decay, of what is added, of the states that an adjoint reads, of resets, and
            of the gradient of the states, without which it is the forward pass.
        seqs: how many sequences there are.
        device: of all tensors, on which kernels are loaded.
        flip: from the last step to the first.
        log: whether all are logarithms.
    """
    decay, added, states, resets, grads = layouts
    adjoint = grads is not None
    shape, _, dtype = grads if adjoint else added
    (_, time, channels), constant = shape, len(decay[0]) == 1
    plan = make_plan(shape, dtype, seqs, device)
    fixed = {
        "time": time, "channels": channels, "CONSTANT": constant, "FLIP": flip, "ADJOINT": adjoint,
        **strides("a", decay), **strides("b", added), **strides("reset", resets),
    }  # fmt: skip
    if adjoint:
        fixed |= {**strides("g", grads), **strides("h", states)}
        fixed |= {} if log else {"b": None}
    else:
        fixed |= {"g": None}
    if log:
        fixed |= {"START": float("-inf"), "WIDE": dtype_of(dtype)}
        fixed |= {"LOG": True, "WIDE": gpu.language().float64} if adjoint else {"PAIR": 2}
    limit = (MOST_LOG_STEPS_BACK if adjoint else MOST_LOG_STEPS) if log else 0
    if log and dtype.itemsize < 4 and not adjoint:
        limit //= 4  # a thread has twice as many channels; 4 steps spill 4 registers
    kernel = launches(plan, seqs, dtype, fixed, 2 + adjoint * (2 if log else 1) - constant, limit)
    if not (adjoint and constant):
        return _Kernels(kernel, None, None)
    rows, columns = seqs * kernel.tiles, channels * (1 + dtype.is_complex)
    if rows > MOST_ROWS:
        return _Kernels(kernel, (rows, columns), None)
    sizes = {"batch": rows, "columns": columns, "ROWS": 32, "BLOCK": 32, "DTYPE": dtype_of(dtype)}
    add = Launch(kernels_of().add_rows, -(-columns // 32), sizes, {})
    return _Kernels(kernel, (rows, columns), add)
