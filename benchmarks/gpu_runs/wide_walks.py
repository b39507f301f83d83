"""Whether walks along time should load 128 bits a thread, or fewer for more programs.

A walk is one warp a sequence and block of channels. A block as wide as a warp loads at once in 128
bits a thread has a quarter of the programs of one in 32 bits. Forward and backward, kernels alone,
beside `torch.add`. The question is from which number of programs on width wins.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from _measure import TINY, Case, Run, error_of, main
from _scans import backward, forward, plan_of
from tiles import tensors

F32, BF16, C64 = torch.float32, torch.bfloat16, torch.complex64
#: Sequences times channels from 16 thousand to a million: 128 to 8,192 programs of 128 channels.
SHAPES = ((16, 2048, 1024), (64, 1024, 1024), (256, 512, 1024), (1024, 256, 1024))
KINDS = ((F32, False), (F32, True), (BF16, False), (C64, True))
BITS, STEPS = (32, 64, 128), 8
if TINY:
    SHAPES, KINDS, BITS, STEPS = ((2, 9, 20),), ((F32, False), (C64, True)), (8, 32), 2


def case(shape: tuple[int, int, int], dtype: torch.dtype, constant: bool) -> Case:
    """All widths, beside a copy."""
    a, b, true, true_back = tensors(shape, dtype, constant)
    into, add, h = torch.empty_like(b), b if constant else a, true.to(b.dtype)
    runs: dict[str, Run] = {"torch.add": lambda: torch.add(add, b, out=into)}
    errors = {}
    for bits in BITS:
        plan = plan_of(b, 4 * bits // b.dtype.itemsize, 1)
        ahead, back = forward(a, b, plan, STEPS), backward(a, h, b, plan, STEPS)
        name = f"{bits} bits, {len(b) * plan.blocks} programs"
        runs |= {name: ahead, f"{name}, backward": back}
        errors |= {name: error_of(ahead(), true), f"{name}, backward": error_of(back(), true_back)}
    most = 1e-2 if dtype == BF16 else 1e-5
    return Case(
        title(shape, dtype, constant), runs, errors, most, (2 if constant else 3) * b.nbytes
    )


def title(shape: tuple[int, int, int], dtype: torch.dtype, constant: bool) -> str:
    """The name of a row."""
    return f"{shape} {str(dtype).removeprefix('torch.')}{' constant' * constant}"


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """By name."""
    for shape, kind in itertools.product(SHAPES, KINDS):
        yield title(shape, *kind), partial(case, shape, *kind)


if __name__ == "__main__":
    sys.exit(main(__doc__, cases))
