"""`linear_scan` by the Triton kernels in ``_triton_kernels.py``: what runs where.

Two regimes. Wide: every (sequence, block of channels) is one program that streams along time; each
input is read once and each output written once. Narrow, when those are too few to keep the memory
busy: time is split into chunks; one pass finds what each chunk does to a state, a second carries
the state over the chunks, a third runs the chunks again from the right state.
"""

import functools
import importlib.metadata
import importlib.util
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.compute import gpu
from linrnn.compute.layout import (
    accumulator_dtype,
    dense,
    empty_results,
    n_sequences,
    unit_channels,
)

#: Below this many programs a multiprocessor, time is split, into chunks for `gpu.ENOUGH`.
FEWEST = 1
#: Shorter chunks cost more in summaries than they bring.
SHORTEST_CHUNK = 128
#: 32-bit registers of one thread that rows under way may occupy, of the 255 it has.
REGISTERS = 128
#: Steps at once; compiling takes twice as long as it should for every doubling. Twice as many where
#: so few programs run on a multiprocessor that each must keep more of the memory busy.
MOST_STEPS = 16


_DOUBLE = (torch.float64, torch.complex128)


class Plan(NamedTuple):
    """How a call is laid out on the device."""

    block: int  # channels of a program
    blocks: int  # of channels
    chunk: int  # steps
    chunks: int  # of the longest sequence there can be
    deep: bool = False  # few programs, so each has many loads under way


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return gpu.unavailable(device, dtype)


def forward(
    a: Tensor,
    b: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """``h_t = a_t * h_{t-1} + b_t``."""
    seqs = n_sequences(b, cu_seqlens)
    h, final = empty_results(b, cu_seqlens)
    plan = make_plan(b, seqs, cu_seqlens is not None)
    a, b = unit_channels(a), unit_channels(b)
    layout = (*_steps(reset), _offsets(cu_seqlens, b.device))
    options = _options(a, b, reverse)
    with torch.cuda.device_of(b):
        entering = _real(None if initial_state is None else dense(initial_state))
        if plan.chunks > 1:
            entering = _entering(plan, seqs, a, b, layout, entering, options, adjoint=False)
        _kernels().run_forward[(seqs * plan.chunks * plan.blocks,)](
            *_steps(a),
            *_steps(b),
            *layout,
            entering,
            *_steps(h),
            _real(final),
            *_sizes(b, plan),
            **options,
            **_tile(plan, a, b, arrays=1 + (a.ndim > 1), deep=plan.deep and reset is None),
        )
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
    grad_final: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The adjoint in one pass over ``a``, ``h`` and ``grad_h``."""
    seqs, constant, channels = len(grad_final), a.ndim == 1, h.shape[2]
    plan = make_plan(h, seqs, cu_seqlens is not None)
    a, h, grad_h = unit_channels(a), unit_channels(h), unit_channels(grad_h)
    grad_b = torch.empty(h.shape, dtype=h.dtype, device=h.device)
    grad_initial = torch.empty(grad_final.shape, dtype=grad_final.dtype, device=h.device)
    shape, dtype = (
        (a.shape, a.dtype) if not constant else ((seqs * plan.chunks, channels), _double_of(a))
    )
    grad_a = torch.empty(shape, dtype=dtype, device=h.device)
    layout = (*_steps(reset), _offsets(cu_seqlens, h.device))
    options = _options(a, h, not reverse)
    with torch.cuda.device_of(h):
        entering = _real(dense(grad_final))
        if plan.chunks > 1:
            entering = _entering(plan, seqs, a, grad_h, layout, entering, options, adjoint=True)
        _kernels().run_backward[(seqs * plan.chunks * plan.blocks,)](
            *_steps(a),
            *_steps(grad_h),
            *_steps(h),
            *layout,
            _real(None if initial_state is None else dense(initial_state)),
            entering,
            _real(grad_a),
            _real(grad_b),
            _real(grad_initial),
            *_sizes(h, plan),
            **options,
            WIDE=_kernels().tl.float64,
            **_tile(plan, a, h, arrays=2 + (not constant), deep=plan.deep and reset is None),
        )
    # in a fixed order: the same bits in every run
    return grad_a.sum(0).to(a.dtype) if constant else grad_a, grad_b, grad_initial


def make_plan(x: Tensor, seqs: int, packed: bool) -> Plan:
    """Choose blocks and chunks by how many programs keep the device busy."""
    _, time, channels = x.shape
    processors = gpu.processors(x.device)
    rows = 1 if packed else seqs
    vectors = [v for v in (4, 2, 1) if v * x.element_size() <= 16]
    for vector in vectors:
        block = 32 * vector
        blocks = -(-channels // block)
        if seqs * blocks >= gpu.ENOUGH * processors:
            break
    if seqs * blocks >= FEWEST * processors:
        return Plan(block, blocks, time, 1, seqs * blocks < gpu.ENOUGH * processors)
    chunks = -(-gpu.ENOUGH * processors // (rows * blocks))
    chunk = min(max(-(-time // chunks), SHORTEST_CHUNK), time)
    return Plan(block, blocks, chunk, -(-time // chunk))


def _entering(
    plan: Plan,
    seqs: int,
    a: Tensor,
    b: Tensor,
    layout: tuple[Any, ...],
    initial: Tensor | None,
    options: dict[str, Any],
    *,
    adjoint: bool,
) -> Tensor:
    """The state that enters each chunk, (S, chunks, C), as real numbers."""
    kernels, shape = _kernels(), (seqs, plan.chunks, b.shape[2])
    state = torch.empty(shape, dtype=accumulator_dtype(b.dtype), device=b.device)
    product = torch.empty(shape, dtype=_double_of(b), device=b.device)
    cut = None if layout[0] is None else torch.empty(shape[:2], dtype=torch.int8, device=b.device)
    entering = torch.empty_like(_real(state))
    summaries = (_real(product), _real(state), cut)
    precision = {"WIDE": kernels.tl.float64}
    kernels.summarise[(seqs * plan.chunks * plan.blocks,)](
        *_steps(a),
        *_steps(b),
        *layout,
        *summaries,
        *_sizes(b, plan),
        ADJOINT=adjoint,
        **options,
        **precision,
        **_tile(plan, a, b, arrays=1 + (a.ndim > 1)),
    )
    tile = _tile(plan, product, state, arrays=2)
    kernels.carry[(seqs * plan.blocks,)](
        *summaries,
        initial,
        entering,
        b.shape[2],
        plan.chunks,
        CX=options["CX"],
        DTYPE=options["DTYPE"],
        **precision,
        **tile,
    )
    return entering


@functools.cache
def _kernels() -> ModuleType:
    """Triton is imported by the first call that runs on it."""
    return importlib.import_module("linrnn.ops.linear.linear_scan._triton_kernels")


def _options(a: Tensor, x: Tensor, flip: bool) -> dict[str, Any]:
    tl = _kernels().tl
    return {
        "CONSTANT": a.ndim == 1,
        "FLIP": flip,
        "CX": x.is_complex(),
        "DTYPE": tl.float64 if x.dtype in _DOUBLE else tl.float32,
    }


def _tile(plan: Plan, a: Tensor, x: Tensor, *, arrays: int, deep: bool = False) -> dict[str, Any]:
    """Channels and steps at once; one warp, so that a program never waits for another warp."""
    words = plan.block // 32 * max(a.element_size(), x.element_size()) / 4
    steps = int(REGISTERS / (2 * arrays * words))  # rows used now and rows under way
    max_steps = 2 * MOST_STEPS if deep else MOST_STEPS
    unroll = max(1, min(max_steps, 1 << max(steps.bit_length() - 1, 0)))
    # fusing a multiplication and an addition saves a rounding; the default changes with Triton 3.10
    return {"BLOCK": plan.block, "UNROLL": unroll, "num_warps": 1, "enable_fp_fusion": True}


def _sizes(x: Tensor, plan: Plan) -> tuple[int, int, int, int]:
    return x.shape[1], x.shape[2], plan.chunks, plan.chunk


def _steps(x: Tensor | None) -> tuple[Tensor | None, int, int]:
    """A tensor as the kernels take it: real, with the strides of its sequences and its time."""
    if x is None:
        return None, 0, 0
    return (_real(x), 0, 0) if x.ndim == 1 else (_real(x), x.stride(0), x.stride(1))


def _real(x: Any) -> Any:
    return torch.view_as_real(x) if x is not None and x.is_complex() else x


def _double_of(x: Tensor) -> torch.dtype:
    return torch.complex128 if x.is_complex() else torch.float64


def _offsets(cu_seqlens: Tensor | None, device: torch.device) -> Tensor | None:
    return None if cu_seqlens is None else cu_seqlens.to(device, torch.int64).contiguous()
