"""Whether tiles that hand over beat one program a sequence, where sequences are few.

Forward and backward, kernels alone. The same bits 200 times come first. Afterwards run it once,
with ``--seconds 60``, under ``compute-sanitizer --tool racecheck``.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from _measure import DEVICE, TINY, Case, Run, equal_times, error_of, loop, main
from _scans import backward, forward, plan_of

SHAPES = ((1, 16384, 1024), (1, 65536, 1024), (1, 1 << 20, 64), (8, 2048, 256))
GROUPS, STEPS, WARPS, BLOCK, REPEATS = (8, 16, 32, 64), 8, (4, 8), 128, 200
if TINY:
    SHAPES, GROUPS, STEPS, WARPS, BLOCK, REPEATS = ((1, 27, 5), (2, 9, 13)), (2, 3), 2, (2,), 8, 2


def case(shape: tuple[int, ...], warps: int) -> Case:
    """All sizes of a group, beside a copy and a program of as many warps for each sequence."""
    torch.manual_seed(0)
    a, b = torch.rand(shape, device=DEVICE), torch.randn(shape, device=DEVICE)
    some = min(shape[1], 16384)  # a loop of the first steps and their channels
    true, into, size = loop(a[:, :some], b[:, :some]), torch.empty_like(b), 3 * b.nbytes
    runs: dict[str, Run] = {"torch.add": lambda: torch.add(a, b, out=into)}
    alone = plan_of(b, BLOCK, 8 if warps > 2 else warps)
    whole = forward(a, b, alone, STEPS)
    errors = {"one program": error_of(whole()[:, :some], true)}
    h = whole().clone()
    back = backward(a, h, b, alone, STEPS)
    gradient = back().clone()
    runs |= {"one program": whole, "one program, backward": back}
    for group in GROUPS:
        plan = plan_of(b, BLOCK, warps, chained=True, group=group)
        name, run = f"groups of {group}", forward(a, b, plan, STEPS)
        errors[name] = error_of(run()[:, :some], true) + equal_times(run, REPEATS)
        runs[name] = run
        name, run = f"groups of {group}, backward", backward(a, h, b, plan, STEPS)
        errors[name] = error_of(run(), gradient) + equal_times(run, REPEATS)
        runs[name] = run
    return Case(named(shape, warps), runs, errors, 1e-5, size)


def named(shape: tuple[int, ...], warps: int) -> str:
    """The name of a row."""
    return f"{shape}, warps {warps}"


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """By name."""
    for shape in SHAPES:
        for warps in WARPS:
            yield named(shape, warps), partial(case, shape, warps)


if __name__ == "__main__":
    sys.exit(main(__doc__, cases))
