"""The form of a cell's kernel on a GPU: this module alone decides it, and says why.

A cell without matrices has two (`form_of_channels`). If it is affine and walks along time would not
keep the device busy, warps share **tiles** of time, or tiles hand their states over
(`_triton_tiles.py`). Otherwise each sequence and block of channels is one **walk**.

With matrices there are two (`choose_form`). Of **groups** of sequences (`_triton_groups.py`), an
instance holds its matrices on chip for all steps, or its share of them. Of one **sequence**
(`_triton_source.py`), they stay in registers where they are few, and are read again at every step
where they are not.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from linrnn.compute import gpu
from linrnn.engine.graph import CONTRACTIONS, SPREADS, Program, levels
from linrnn.ops.cell.cell_scan._triton_tiles import solution
from linrnn.ops.linear.linear_scan.triton_plan import Plan, make_plan

#: Bytes of matrices that an instance holds, of the 227 KiB that a multiprocessor can give it; the
#: rest is for vectors and for what moves between threads.
ON_CHIP = 128 << 10
#: Bytes of matrices, of a step's rows, which are on their way to an instance that has all, and of
#: what it multiplies; LSTMs of 128 channels take 212 KiB in bfloat16, by the compiler.
WITH_ROWS = 220 << 10
#: Sequences of an instance: the rows of a product on tensor cores, and most of them. With 64 the
#: compiler takes instructions of four warps, and an LSTM of 256 channels spills 787 registers.
ROWS, MOST_ROWS = 16, 32
#: The narrowest head that is multiplied on tensor cores, and the widest whose vectors fit.
NARROWEST, WIDEST = 9, 512
#: The fewest channels of an instance: one product has no fewer.
FEWEST = 16
#: Most warps of an instance; more have too few registers each.
MOST_WARPS = 8
#: Channels of a whole vector that are in registers at once, where instances share matrices.
CHUNK = 64
#: Steps of the shortest sequence that is cut into tiles: of fewer, a walk loads every row at once.
SHORTEST = 33
#: Arrivals that a counter of 32 bits can count.
MOST_ARRIVALS = 1 << 30


class Form(NamedTuple):
    """How a kernel is laid out; without ``sharers`` of one sequence an instance."""

    why: str
    sharers: int = 0
    """The instances that share the matrices of a head; 0 where an instance has one sequence."""
    rows: int = 1
    """The sequences of an instance."""
    warps: int = 0
    half: bool = False
    """Whether matrices and what they multiply are bfloat16."""
    plan: Plan | None = None
    """How tiles of time are laid out, where there are any."""


class Sides(NamedTuple):
    """The sizes of what is multiplied, per head, rounded up to powers of two."""

    heads: int
    matrices: tuple[tuple[int, int], ...]
    """Rows and columns of each matrix that is used."""
    widths: tuple[int, ...]
    """Channels of all values, not rounded up."""
    row: int
    """Bytes that a step's gradient reads, or multiplies, of one sequence."""


def form_of_channels(
    program: Program, shape: tuple[int, ...], seqs: int, dtype: torch.dtype, device: torch.device
) -> Form:
    """The form of a cell without matrices.

    Args:
        program: of the cell.
        shape: batch, time and channels.
        seqs: how many sequences there are.
        dtype: of the inputs.
        device: on which it is computed.
    """
    walk = "walks along time of one sequence and a block of channels each"
    if shape[1] < SHORTEST:
        return Form(f"{walk}, since all of fewer than {SHORTEST} steps are on their way at once")
    reason = solution(program)
    if isinstance(reason, str):
        return Form(f"{walk}, since {reason}")
    plan = make_plan(shape, dtype, seqs, device)
    why = plan.why(seqs, device)
    if plan.chained:  # stretches have few steps, and each group of tiles waits for the one before
        plan = plan._replace(stretches=2 * plan.stretches, warps=2 * plan.warps)
    return Form(why, plan=plan) if plan.warps > 1 or plan.chained else Form(why)


def choose_form(
    program: Program, sides: Sides, seqs: int, time: int, device: torch.device, half: bool,
    double: bool,
) -> Form:  # fmt: skip
    """The form of a call's kernels, forward and backward.

    Args:
        program: of the cell.
        sides: of its matrices.
        seqs: how many sequences there are.
        time: the steps of the longest sequence, or more.
        device: on which it is computed.
        half: whether products may be of bfloat16.
        double: whether it is computed in float64.
    """
    reason = _obstacle(program, sides, double)
    if reason is not None:
        return Form(f"one sequence an instance, since {reason}")
    # a product of float32 that is as exact as one reads each matrix in two parts
    item = 2 if half else 4 if gpu.allows_tf32() else 8
    size = item * sum(m * n for m, n in sides.matrices)
    narrowest = min(sides.widths)
    sharers = 1 if size + ROWS * sides.row <= WITH_ROWS else 2
    while size > sharers * ON_CHIP:
        sharers *= 2
    warps = min(max(narrowest // (4 * sharers), 4), MOST_WARPS)
    if sharers == 1:
        return Form("matrices on chip, of one instance", 1, ROWS, warps, half)
    if narrowest < sharers * FEWEST:
        return Form(
            f"one sequence an instance, since {size >> 10} KiB of matrices take {sharers} "
            f"instances, too many for {narrowest} channels"
        )
    rows, at_once = ROWS, gpu.processors(device)
    while rows < MOST_ROWS and _instances(sides, seqs, rows, sharers) > at_once:
        rows *= 2
    instances = _instances(sides, seqs, rows, sharers)
    if instances > at_once or not gpu.cooperates(device):
        return Form(
            f"one sequence an instance, since {instances} instances that wait for each other "
            f"cannot be on the device at once"
        )
    if time * sharers * len(program.nodes) > MOST_ARRIVALS:
        return Form("one sequence an instance, since its steps would overflow a counter")
    return Form(f"matrices on chip, in {sharers} shares", sharers, rows, warps, half)


def _instances(sides: Sides, seqs: int, rows: int, sharers: int) -> int:
    return -(-seqs // rows) * sides.heads * sharers


def _obstacle(program: Program, sides: Sides, double: bool) -> str | None:
    """Why tensor cores cannot compute its products, or None."""
    if double:
        return "tensor cores are not used for float64"
    if any(x.op in SPREADS for x in program.nodes):
        return "channels are repeated or summed up"
    at = levels(program)
    if any(x.op in CONTRACTIONS and at[i] == 0 for i, x in enumerate(program.nodes)):
        return "a parameter is multiplied with a matrix"
    if min(sides.widths) < NARROWEST:
        return f"heads of {min(sides.widths)} channels fit in the registers of a warp"
    if max(sides.widths) > WIDEST:
        return f"vectors of {max(sides.widths)} channels do not fit on chip"
    return None


def reached(sizes: Sequence[int]) -> tuple[int, ...]:
    """Sizes rounded up to powers of two, of which a product on tensor cores has at least 16."""
    return tuple(max(gpu.power_of_two(n), 16) for n in sizes)
