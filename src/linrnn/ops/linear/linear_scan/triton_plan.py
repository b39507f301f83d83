"""How a scan is laid out on a GPU: for `linear_scan`, and ops that walk along time as it does.

Three forms of one kernel, decided by `make_plan` alone. Every (sequence, block of channels) is a
program. Where these fill the device, each is one warp and walks along time as a loop does. Where
they are fewer, a program has several warps, each with a stretch of every tile of time. Where they
are so few that most of the device would be idle, a program is one tile, and is handed its state by
the tiles before it. All forms read each input once and write each output once.
"""

import functools
import importlib
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.compute import gpu
from linrnn.compute.launch import Launch

#: Warps of a multiprocessor that keep its memory busy: 8 of 8 steps of 512 bytes, twice.
BUSY_WARPS = 8
#: Of the multiprocessors that have a program, in tenths: with fewer, programs hand over.
FEWEST_TENTHS = 9
#: Tiles of time below which a hand-over brings nothing.
FEWEST_TILES = 4
#: Stretches of a tile that is handed over, tiles of a group; and both of a long sequence, in which
#: the hand-over from group to group would take longer than the memory.
CHAINED, GROUP, LONG = 4, 16, 1 << 17
CHAINED_LONG, GROUP_LONG = 8, 64
#: Bytes of a row that a warp loads at once.
ROW = 512
#: 32-bit registers of one thread that a tile's rows may occupy, of the 255 it has; and those of a
#: walk, whose rows of the next steps are on their way while the present ones are used.
REGISTERS, REGISTERS_AHEAD = 96, 128
#: Steps of a stretch; compiling takes twice as long as it should for every doubling.
MOST_STEPS = 8

_DOUBLE = (torch.float64, torch.complex128)


class Plan(NamedTuple):
    """How a call is laid out on the device."""

    block: int  # channels of a program
    blocks: int  # of channels
    stretches: int  # of a tile
    warps: int  # of a program
    chained: bool = False  # whether a program is one tile, and not a sequence
    group: int = 1  # tiles

    def why(self, seqs: int, device: torch.device) -> str:
        """The form in words, and why `make_plan` chose it for this number of sequences."""
        programs, processors = seqs * self.blocks, gpu.processors(device)
        if self.chained:
            return (
                f"tiles of time that hand their states over, since {programs} walks along time "
                f"would leave most of {processors} multiprocessors idle"
            )
        if self.warps > 1:
            return (
                f"tiles of time that {self.warps} warps share, since {programs} walks of one warp "
                f"would not keep {processors} multiprocessors busy"
            )
        return f"walks along time, since {programs} of them keep {processors} multiprocessors busy"

    def tiles(self, time: int, steps: int) -> int:
        """How many programs share a sequence and block of channels."""
        return -(-time // (self.stretches * steps)) if self.chained else 1


class Launches(NamedTuple):
    """A plan and its kernel."""

    plan: Plan
    run: Launch
    tiles: int  # programs along time
    flags: int  # numbers that hand over: whether
    maps: int  # and what
    dtype: torch.dtype  # of the latter

    def handed(self, device: torch.device) -> tuple[Tensor, ...]:
        """Return the memory through which tiles hand over, if they do; the flags are zero."""
        if not self.plan.chained:
            return ()
        flags = torch.zeros(self.flags, dtype=torch.int32, device=device)
        return flags, torch.empty(self.maps, dtype=self.dtype, device=device)


def launches(
    plan: Plan, seqs: int, dtype: torch.dtype, fixed: dict[str, Any], rows: int, limit: int = 0
) -> Launches:
    """The kernel of a plan.

    Args:
        plan: of the call.
        seqs: how many sequences there are.
        dtype: of what is added.
        fixed: the arguments of kernels that are no tensors, and tensors that there are none of.
        rows: how many tensors have a row for each step that is read.
        limit: steps of a stretch, if it is not `MOST_STEPS`.
    """
    kernels, lanes = kernels_of(), seqs * plan.blocks
    ahead = plan.stretches == 1
    steps = steps_of(plan, dtype, rows, limit or MOST_STEPS)
    tiles = plan.tiles(fixed["time"], steps)
    adjoint = fixed.pop("ADJOINT")
    kernel = kernels.run_backward if adjoint else kernels.run_forward
    fixed = {
        "GATES": 0, "POSITIVE": False, "START": 0.0, "part": 0, "a_seq": 0, "a_step": 0, "b_seq": 0,
        "b_step": 0, "g_seq": 0, "g_step": 0, "reset_seq": 0, "reset_step": 0, "lanes": lanes,
        "chunks": tiles, "LOG": False, "PAIR": int(dtype.is_complex), "DTYPE": dtype_of(dtype),
        "WIDE": gpu.language().float64, **fixed,
    }  # fmt: skip
    options = {
        "BLOCK": plan.block, "WARPS": plan.stretches, "STEPS": steps, "AHEAD": ahead,
        "CHAINED": plan.chained, "GROUP": plan.group, "num_warps": plan.warps,
        # fusing a multiplication and an addition saves a rounding; its default changes with 3.10
        "enable_fp_fusion": True,
    }  # fmt: skip
    if not plan.chained:
        fixed |= {"handed": None, "maps": None}
    numbers = 3 * lanes * tiles * plan.block * (2 if fixed["PAIR"] else 1)
    state = torch.float64 if dtype in _DOUBLE else torch.float32
    run = Launch(kernel, lanes * tiles, fixed, options)
    return Launches(plan, run, tiles, 2 * lanes * tiles + 1, numbers, state)


def make_plan(shape: tuple[int, ...], dtype: torch.dtype, seqs: int, device: torch.device) -> Plan:
    """Choose the form of a scan by how many programs keep the device busy.

    Blocks are as wide as a warp loads in 128 bits a thread, or half of it where that alone gives
    each multiprocessor a program. Then as many warps share a program as keep the memory busy.
    """
    _, time, channels = shape
    processors = gpu.processors(device)
    widest = ROW // dtype.itemsize
    block = min(widest, max(32, gpu.power_of_two(channels)))
    halves = (block, block // 2) if block > 32 else (block,)
    for narrow in halves:
        blocks = -(-channels // narrow)
        if 10 * seqs * blocks >= FEWEST_TENTHS * processors:
            warps = min(
                gpu.power_of_two(-(-BUSY_WARPS * processors // (seqs * blocks))), BUSY_WARPS
            )
            return Plan(narrow, blocks, warps * widest // narrow if warps > 1 else 1, warps)
    blocks, wide = -(-channels // block), widest // block
    few, group = (CHAINED, GROUP) if time < LONG else (CHAINED_LONG, GROUP_LONG)
    if time >= FEWEST_TILES * few * wide * MOST_STEPS:
        return Plan(block, blocks, few * wide, few, True, group)
    return Plan(block, blocks, BUSY_WARPS * wide, BUSY_WARPS)


def steps_of(plan: Plan, dtype: torch.dtype, rows: int, limit: int) -> int:
    """Steps of a stretch, so that its rows fit in registers as the numbers that are computed."""
    words = max(dtype.itemsize // 4, 1)
    numbers = plan.block * plan.stretches // (32 * plan.warps)
    room = REGISTERS_AHEAD // 2 if plan.stretches == 1 else REGISTERS
    steps = room // (rows * max(numbers, 1) * words)
    return max(1, min(limit, 1 << max(steps.bit_length() - 1, 0)))


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
