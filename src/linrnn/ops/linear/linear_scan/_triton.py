"""`linear_scan` by the Triton kernels in ``_triton_kernels.py``: what runs where.

Two regimes. Wide: every (sequence, block of channels) is one program that streams along time; each
input is read once and each output written once. Narrow, when those are too few to keep the memory
busy: time is split into chunks; one pass finds what each chunk does to a state, a second carries
the state over the chunks, a third runs the chunks again from the right state.
"""

import functools
import importlib
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.compute import gpu
from linrnn.compute.launch import Launch, layout
from linrnn.compute.layout import dense, empty_results, unit_channels

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


class _Launches(NamedTuple):
    """A plan and its kernels."""

    plan: Plan
    run: Launch
    summarise: Launch | None  # where time is split
    carry: Launch | None


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
    h, final = empty_results(b, cu_seqlens)
    a, b = unit_channels(a), unit_channels(b)
    layouts = (layout(a), layout(b), None, layout(reset))
    run = _launches(layouts, len(final), cu_seqlens is not None, b.device, reverse, False)
    offsets = _offsets(cu_seqlens, b.device)
    with torch.cuda.device_of(b):
        entering = None if initial_state is None else dense(initial_state)
        if run.summarise is not None:
            entering = _entering(run, a, b, reset, offsets, entering, final)
        run.run(a, b, reset, offsets, entering, h, final)
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
    seqs, constant, device = len(grad_final), a.ndim == 1, h.device
    a, h, grad_h = unit_channels(a), unit_channels(h), unit_channels(grad_h)
    layouts = (layout(a), layout(grad_h), layout(h), layout(reset))
    run = _launches(layouts, seqs, cu_seqlens is not None, device, not reverse, True)
    grad_b = torch.empty(h.shape, dtype=h.dtype, device=device)
    grad_initial = torch.empty(grad_final.shape, dtype=grad_final.dtype, device=device)
    if constant:
        rows = (seqs * run.plan.chunks, h.shape[2])
        grad_a = torch.empty(rows, dtype=_double_of(a.dtype), device=device)
    else:
        grad_a = torch.empty(a.shape, dtype=a.dtype, device=device)
    offsets = _offsets(cu_seqlens, device)
    initial = None if initial_state is None else dense(initial_state)
    with torch.cuda.device_of(h):
        entering = dense(grad_final)
        if run.summarise is not None:
            entering = _entering(run, a, grad_h, reset, offsets, entering, grad_final)
        grads = (grad_a, grad_b, grad_initial)
        run.run(a, grad_h, h, reset, offsets, initial, entering, *grads)
    # in a fixed order: the same bits in every run
    return grad_a.sum(0).to(a.dtype) if constant else grad_a, grad_b, grad_initial


def make_plan(
    shape: tuple[int, ...], dtype: torch.dtype, seqs: int, packed: bool, device: torch.device
) -> Plan:
    """Choose blocks and chunks by how many programs keep the device busy."""
    _, time, channels = shape
    processors = gpu.processors(device)
    rows = 1 if packed else seqs
    vectors = [v for v in (4, 2, 1) if v * dtype.itemsize <= 16]
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


@functools.lru_cache(maxsize=256)
def _launches(
    layouts: tuple[Any, ...],
    seqs: int,
    packed: bool,
    device: torch.device,
    flip: bool,
    adjoint: bool,
) -> _Launches:
    """How calls of one layout are computed.

    Args:
        layouts: of the decay, of what is added, of the states that an adjoint reads, of resets.
        seqs: how many sequences there are.
        packed: whether they lie in one row.
        device: of all tensors, on which kernels are loaded.
        flip: from the last step to the first.
        adjoint: the backward pass.
    """
    kernels = _kernels()
    decay, added, states, resets = layouts
    shape, dtype = added[0], added[2]
    plan = make_plan(shape, dtype, seqs, packed, device)
    constant = len(decay[0]) == 1
    wide, deep = {"WIDE": kernels.tl.float64}, plan.deep and resets is None
    sizes = {"time": shape[1], "channels": shape[2], "chunks": plan.chunks, "chunk": plan.chunk}
    options = {
        "CONSTANT": constant,
        "FLIP": flip,
        "CX": dtype.is_complex,
        "DTYPE": kernels.tl.float64 if dtype in _DOUBLE else kernels.tl.float32,
    }
    fixed = {**sizes, **options, **_strides("a", decay), **_strides("reset", resets)}
    largest = max(decay[2].itemsize, dtype.itemsize)
    of_rows = functools.partial(tile, plan, largest)
    programs = seqs * plan.blocks
    if adjoint:
        fixed |= {**_strides("g", added), **_strides("h", states), **wide}
        kernel, options = kernels.run_backward, of_rows(3 - constant, deep)
    else:
        fixed |= {**_strides("b", added), "h_seq": shape[1] * shape[2], "h_step": shape[2]}
        kernel, options = kernels.run_forward, of_rows(2 - constant, deep)
    run = Launch(kernel, programs * plan.chunks, fixed, options)
    if plan.chunks == 1:
        return _Launches(plan, run, None, None)
    fixed |= {**_strides("b", added), **wide, "ADJOINT": adjoint}
    summarise = Launch(kernels.summarise, programs * plan.chunks, fixed, of_rows(2 - constant))
    doubles = tile(plan, _double_of(dtype).itemsize, 2)
    return _Launches(plan, run, summarise, Launch(kernels.carry, programs, fixed, doubles))


def _strides(name: str, tensor: tuple[Any, ...] | None) -> dict[str, int]:
    """Those of its sequences and of its time."""
    seq, step = (0, 0) if tensor is None or len(tensor[0]) == 1 else tensor[1][:2]
    return {f"{name}_seq": seq, f"{name}_step": step}


def _entering(
    run: _Launches,
    a: Tensor,
    b: Tensor,
    reset: Tensor | None,
    offsets: Tensor | None,
    initial: Tensor | None,
    final: Tensor,
) -> Tensor:
    """The state that enters each chunk, (S, chunks, C)."""
    assert run.summarise is not None
    assert run.carry is not None
    seqs, channels = final.shape
    shape = (seqs, run.plan.chunks, channels)
    state, entering = (torch.empty(shape, dtype=final.dtype, device=b.device) for _ in "se")
    product = torch.empty(shape, dtype=_double_of(b.dtype), device=b.device)
    cut = None if reset is None else torch.empty(shape[:2], dtype=torch.int8, device=b.device)
    run.summarise(a, b, reset, offsets, product, state, cut)
    run.carry(product, state, cut, initial, entering)
    return entering


@functools.cache
def _kernels() -> ModuleType:
    """Triton is imported by the first call that runs on it."""
    return importlib.import_module("linrnn.ops.linear.linear_scan._triton_kernels")


def tile(
    plan: Plan, itemsize: int, arrays: int, deep: bool = False, most: int | None = None
) -> dict[str, Any]:
    """Channels and steps at once; one warp, so that a program never waits for another warp."""
    words = plan.block // 32 * itemsize / 4
    steps = int(REGISTERS / (2 * arrays * words))  # rows used now and rows under way
    max_steps = most or (2 * MOST_STEPS if deep else MOST_STEPS)
    unroll = max(1, min(max_steps, 1 << max(steps.bit_length() - 1, 0)))
    # fusing a multiplication and an addition saves a rounding; the default changes with Triton 3.10
    return {"BLOCK": plan.block, "UNROLL": unroll, "num_warps": 1, "enable_fp_fusion": True}


def _double_of(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64


def _offsets(cu_seqlens: Tensor | None, device: torch.device) -> Tensor | None:
    return None if cu_seqlens is None else cu_seqlens.to(device, torch.int64).contiguous()
