"""`linear_scan` by the Triton kernels in ``_triton_kernels.py``: what runs where."""

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

#: The gradient of a final state that nobody reads is None, and costs no kernel that writes zeros.
SPARSE_GRADS = (1,)
#: Rows that one program after the other adds; PyTorch's sum of more is many programs.
MOST_ROWS = 4096


class _Kernels(NamedTuple):
    """The kernels of a layout."""

    scan: Launches
    rows: tuple[int, ...] | None  # shape of the sums of a constant decay's gradient
    add: Launch | None  # them


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return gpu.unavailable(device, dtype)


def form(a: Tensor, b: Tensor, *remaining: Any) -> str:
    """How the kernels are laid out for a call, and why."""
    seqs = n_sequences(b, remaining[2])
    return make_plan(tuple(b.shape), b.dtype, seqs, b.device).why(seqs, b.device)


def forward(
    a: Tensor,
    b: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """``h_t = a_t * h_{t-1} + b_t``."""
    h, final = empty_results(b, cu_seqlens)
    a, b = unit_channels(a), unit_channels(b)
    layouts = (layout(a), layout(b), None, layout(reset))
    scan = _kernels(layouts, final.shape[0], b.device, reverse, False).scan
    offsets = offsets_on(b.device, cu_seqlens)
    with torch.cuda.device_of(b):
        initial = None if initial_state is None else dense(initial_state)
        scan.run(a, b, reset, offsets, initial, h, final, *scan.handed(b.device))
    return h, final


def backward(
    a: Tensor,
    b: None,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
    h: Tensor,
    grad_h: Tensor,
    grad_final: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The adjoint in one pass over ``a``, ``h`` and ``grad_h``."""
    device, (grad_b, grad_initial) = h.device, empty_results(h, cu_seqlens)
    a, h, grad_h = unit_channels(a), unit_channels(h), unit_channels(grad_h)
    layouts = (layout(a), layout(grad_h), layout(h), layout(reset))
    scan, rows, add = _kernels(layouts, grad_initial.shape[0], device, not reverse, True)
    sums = None if rows is None else torch.empty(rows, dtype=torch.float64, device=device)
    grad_a = torch.empty(a.shape, dtype=a.dtype, device=device)
    offsets = offsets_on(device, cu_seqlens)
    initial = None if initial_state is None else dense(initial_state)
    with torch.cuda.device_of(h):
        grads = (grad_a if sums is None else sums, grad_b, grad_initial)
        entering = None if grad_final is None else dense(grad_final)
        scan.run(a, grad_h, h, reset, offsets, initial, entering, *grads, *scan.handed(device))
        # in a fixed order: the same bits in every run
        if add is not None:
            add(sums, grad_a)
        elif sums is not None:
            parts = torch.view_as_real(grad_a) if grad_a.is_complex() else grad_a
            parts.copy_(sums.sum(0).view(parts.shape))
    return grad_a, grad_b, grad_initial


@functools.lru_cache(maxsize=256)
def _kernels(
    layouts: tuple[Any, ...],
    seqs: int,
    device: torch.device,
    flip: bool,
    adjoint: bool,
) -> _Kernels:
    """How calls of one layout are computed.

    Args:
        layouts: of the decay, of what is added, of the states that an adjoint reads, of resets.
        seqs: how many sequences there are.
        device: of all tensors, on which kernels are loaded.
        flip: from the last step to the first.
        adjoint: the backward pass.
    """
    decay, added, states, resets = layouts
    (_, time, channels), _, dtype = added
    plan, constant = make_plan(added[0], dtype, seqs, device), len(decay[0]) == 1
    fixed = {
        "time": time, "channels": channels, "CONSTANT": constant, "FLIP": flip, "ADJOINT": adjoint,
        **strides("a", decay), **strides("reset", resets),
    }  # fmt: skip
    if adjoint:
        fixed |= {"b": None, **strides("g", added), **strides("h", states)}
    else:
        fixed |= {"g": None, **strides("b", added)}
    scan = launches(plan, seqs, dtype, fixed, 2 + adjoint - constant)
    if not (adjoint and constant):
        return _Kernels(scan, None, None)
    rows, columns = seqs * scan.tiles, channels * (1 + dtype.is_complex)
    if rows > MOST_ROWS:
        return _Kernels(scan, (rows, columns), None)
    sizes = {"batch": rows, "columns": columns, "ROWS": 32, "BLOCK": 32, "DTYPE": dtype_of(dtype)}
    add = Launch(kernels_of().add_rows, -(-columns // 32), sizes, {})
    return _Kernels(scan, (rows, columns), add)
