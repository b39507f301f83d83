"""How a scan is laid out on a GPU: for `linear_scan`, and ops that walk along time as it does.

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
from linrnn.compute.launch import Launch
from linrnn.compute.layout import dense

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


class Launches(NamedTuple):
    """A plan and its kernels."""

    plan: Plan
    run: Launch
    summarise: Launch | None  # where time is split
    carry: Launch | None
    scratch: int  # numbers in double precision

    def entering(
        self,
        inputs: tuple[Tensor, ...],
        reset: Tensor | None,
        offsets: Tensor | None,
        initial: Tensor | None,
    ) -> Tensor | None:
        """Return the states that enter the chunks, of the first chunk or of all."""
        initial = None if initial is None else dense(initial)
        if self.summarise is None or self.carry is None:
            return initial
        scratch = torch.empty(self.scratch, dtype=torch.float64, device=inputs[0].device)
        self.summarise(*inputs, reset, offsets, scratch)
        self.carry(reset, initial, scratch)
        return scratch


def launches(
    plan: Plan,
    seqs: int,
    dtype: torch.dtype,
    fixed: dict[str, Any],
    tiles: tuple[dict[str, Any], dict[str, Any]],
) -> Launches:
    """The kernels of a plan.

    Args:
        plan: of the call.
        seqs: how many sequences there are.
        dtype: of what is added.
        fixed: the arguments of kernels that are no tensors, and tensors that there are none of.
        tiles: what the kernel that writes, and the one that summarises, do at once.
    """
    kernels, programs, channels = kernels_of(), seqs * plan.blocks, fixed["channels"]
    split, plane = plan.chunks > 1, seqs * plan.chunks * channels
    adjoint = fixed["ADJOINT"]
    fixed = {
        "GATES": 0, "POSITIVE": False, "START": 0.0, "part": 0, "a_seq": 0, "a_step": 0, "b_seq": 0,
        "b_step": 0, "g_seq": 0, "g_step": 0, "reset_seq": 0, "reset_step": 0,
        "enters_at": plane if split else 0, "chunks": plan.chunks, "chunk": plan.chunk,
        "CX": dtype.is_complex, "DTYPE": dtype_of(dtype), "WIDE": gpu.language().float64, **fixed,
    }  # fmt: skip
    kernel = kernels.run_backward if adjoint else kernels.run_forward
    run = Launch(kernel, programs * plan.chunks, fixed, tiles[0])
    if not split:
        return Launches(plan, run, None, None, 0)
    summarise = Launch(kernels.summarise, programs * plan.chunks, fixed, tiles[1])
    # what comes back in time starts from nothing
    start = {"START": 0.0} if adjoint else {}
    doubles = tile(plan, 16 if dtype.is_complex else 8, 2)
    carry = Launch(kernels.carry, programs, fixed | start, doubles)
    return Launches(
        plan, run, summarise, carry, (2 * plane) * (1 + dtype.is_complex) + seqs * plan.chunks
    )


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


def dtype_of(dtype: torch.dtype) -> Any:
    """Triton's real numbers in which a kernel computes."""
    tl = gpu.language()
    return tl.float64 if dtype in _DOUBLE else tl.float32


def strides(name: str, tensor: tuple[Any, ...] | None) -> dict[str, int]:
    """Those of its sequences and of its time."""
    seq, step = (0, 0) if tensor is None or len(tensor[0]) == 1 else tensor[1][:2]
    return {f"{name}_seq": seq, f"{name}_step": step}


def offsets_on(device: torch.device, cu_seqlens: Tensor | None) -> Tensor | None:
    """Offsets as kernels read them."""
    return None if cu_seqlens is None else cu_seqlens.to(device, torch.int64).contiguous()


@functools.cache
def kernels_of() -> ModuleType:
    """The kernels; Triton is imported by the first call that runs on it."""
    return importlib.import_module("linrnn.ops.linear.linear_scan._triton_kernels")
