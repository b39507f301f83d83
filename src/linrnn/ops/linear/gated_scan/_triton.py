"""`gated_scan` by the kernels in ``_triton_kernels.py``, which split time as `linear_scan` does."""

import functools
import importlib
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.compute import gpu
from linrnn.compute.launch import Launch, layout
from linrnn.compute.layout import accumulator_dtype, dense, n_sequences, unit_channels
from linrnn.ops.linear.linear_scan.triton_plan import Plan, make_plan, tile

#: Steps at once: fewer than `linear_scan` has, whose steps are two operations and no exponentials,
#: since compiling takes as long as all of their operations.
MOST_STEPS, MOST_STEPS_BACK = 8, 4


class _Launches(NamedTuple):
    """A plan and its kernels."""

    plan: Plan
    run: Launch
    summarise: Launch | None  # where time is split
    carry: Launch | None


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return f"it has no kernel for {dtype}" if dtype.is_complex else gpu.unavailable(device, dtype)


def forward(
    x: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    *options: Any,
) -> tuple[Tensor, Tensor]:
    """``(h, final_state)``, from one read of the pre-activations unless time is split."""
    x = unit_channels(x)
    batch, time, _, channels = x.shape
    seqs = n_sequences(x, cu_seqlens)
    h = torch.empty((batch, time, channels), dtype=x.dtype, device=x.device)
    final = torch.empty((seqs, channels), dtype=accumulator_dtype(x.dtype), device=x.device)
    layouts = (layout(x), None, layout(reset))
    run = _launches(layouts, seqs, cu_seqlens is not None, x.device, options)
    offsets = _offsets(cu_seqlens, x.device)
    with torch.cuda.device_of(x):
        entering = _initial(initial_state, final, options)
        if run.summarise is not None:
            entering = _entering(run, x, None, reset, offsets, entering, final)
        run.run(x, reset, offsets, entering, h, final)
    return h, final


def backward(
    x: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    *remaining: Any,
) -> tuple[Tensor, Tensor]:
    """Gradients of ``(x, initial_state)``."""
    *options, h, grad_h, grad_final = remaining
    x, h, grad_h = unit_channels(x), dense(h), unit_channels(grad_h)
    layouts = (layout(x), layout(grad_h), layout(reset))
    packed = cu_seqlens is not None
    run = _launches(layouts, len(grad_final), packed, x.device, tuple(options))
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    grad_initial = torch.empty(grad_final.shape, dtype=grad_final.dtype, device=x.device)
    offsets = _offsets(cu_seqlens, x.device)
    with torch.cuda.device_of(x):
        initial = _initial(initial_state, grad_final, options)
        entering: Tensor | None = dense(grad_final)
        if run.summarise is not None:
            entering = _entering(run, x, grad_h, reset, offsets, entering, grad_final)
        run.run(x, grad_h, h, reset, offsets, initial, entering, grad_x, grad_initial)
    return grad_x, grad_initial


def _initial(initial_state: Tensor | None, like: Tensor, options: Any) -> Tensor | None:
    start = options[2]
    if initial_state is None:
        return like.new_full(like.shape, start) if start else None
    return dense(initial_state)


@functools.lru_cache(maxsize=256)
def _launches(
    layouts: tuple[Any, ...],
    seqs: int,
    packed: bool,
    device: torch.device,
    options: tuple[Any, ...],
) -> _Launches:
    """How calls of one layout are computed.

    Args:
        layouts: of the pre-activations, of the gradient of the states, of resets; without the
            second it is the forward pass.
        seqs: how many sequences there are.
        packed: whether they lie in one row.
        device: of all tensors, on which kernels are loaded.
        options: of the call.
    """
    tl, (inputs, grads, resets) = gpu.language(), layouts
    (batch, time, parts, channels), strides, dtype = inputs
    positive, normalise, start, reverse = options
    adjoint = grads is not None
    plan = make_plan((batch, time, channels), dtype, seqs, packed, device)
    double = dtype == torch.float64
    fixed: dict[str, Any] = {
        "x_seq": strides[0], "x_step": strides[1], "x_part": strides[2], "time": time,
        "channels": channels, "chunks": plan.chunks, "chunk": plan.chunk,
        "KIND": 0 if parts == 2 else 1 if normalise else 2, "POSITIVE": positive,
        "START": float(start), "FLIP": reverse != adjoint,
        "DTYPE": tl.float64 if double else tl.float32, "WIDE": tl.float64, "ADJOINT": adjoint,
        "CX": False,
    }  # fmt: skip
    fixed |= {"reset_seq": 0, "reset_step": 0, "g_seq": 0, "g_step": 0}
    if resets is not None:
        fixed |= {"reset_seq": resets[1][0], "reset_step": resets[1][1]}
    if adjoint:
        fixed |= {"g_seq": grads[1][0], "g_step": grads[1][1]}
    programs, own, scan = seqs * plan.blocks, _kernels(), _scan_kernels()
    size = dtype.itemsize
    kernel = own.run_backward if adjoint else own.run_forward
    most = MOST_STEPS_BACK if adjoint else MOST_STEPS
    rows = tile(plan, size, parts + 2 * adjoint, most=most)
    run = Launch(kernel, programs * plan.chunks, fixed, rows)
    if plan.chunks == 1:
        return _Launches(plan, run, None, None)
    rows = tile(plan, size, parts, most=MOST_STEPS)
    summarise = Launch(own.summarise, programs * plan.chunks, fixed, rows)
    carry = Launch(scan.carry, programs, fixed, tile(plan, 8, 2))
    return _Launches(plan, run, summarise, carry)


def _entering(
    run: _Launches,
    x: Tensor,
    grad_h: Tensor | None,
    reset: Tensor | None,
    offsets: Tensor | None,
    initial: Tensor | None,
    final: Tensor,
) -> Tensor:
    """The state, or its cotangent, that enters each chunk, (S, chunks, C)."""
    assert run.summarise is not None
    assert run.carry is not None
    shape = (len(final), run.plan.chunks, final.shape[1])
    state, entering = (torch.empty(shape, dtype=final.dtype, device=x.device) for _ in "se")
    product = torch.empty(shape, dtype=torch.float64, device=x.device)
    cut = None if reset is None else torch.empty(shape[:2], dtype=torch.int8, device=x.device)
    run.summarise(x, grad_h, reset, offsets, product, state, cut)
    run.carry(product, state, cut, initial, entering)
    return entering


def _offsets(cu_seqlens: Tensor | None, device: torch.device) -> Tensor | None:
    return None if cu_seqlens is None else cu_seqlens.to(device, torch.int64).contiguous()


@functools.cache
def _kernels() -> ModuleType:
    """Triton is imported by the first call that runs on it."""
    return importlib.import_module("linrnn.ops.linear.gated_scan._triton_kernels")


@functools.cache
def _scan_kernels() -> ModuleType:
    return importlib.import_module("linrnn.ops.linear.linear_scan.triton_walk")
