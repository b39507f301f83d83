"""Whether one pass whose tiles wait for each other beats three passes, where sequences are few.

The same bits 200 times come first. Afterwards run it once, with ``--seconds 60``, under
``compute-sanitizer --tool racecheck``.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from _measure import DEVICE, TINY, Case, equal_times, error_of, loop, main
from _scans import chained

from linrnn.ops import linear_scan

SHAPES = ((1, 16384, 1024), (1, 65536, 1024), (1, 1 << 20, 64))
GROUPS, TILE, REPEATS = (8, 16, 32, 64), (8, 4, 128), 200
if TINY:
    SHAPES, GROUPS, TILE, REPEATS = ((1, 27, 5), (2, 9, 13)), (2, 3), (2, 2, 8), 2


def case(shape: tuple[int, int, int]) -> Case:
    """All sizes of a group, beside a copy and the package's three passes."""
    torch.manual_seed(0)
    a, b = torch.rand(shape, device=DEVICE), torch.randn(shape, device=DEVICE)
    some = min(shape[1], 16384)  # a loop of the first steps and their channels
    true, into, size = loop(a[:, :some], b[:, :some]), torch.empty_like(b), 3 * b.nbytes
    runs: dict[str, Callable[[], torch.Tensor]] = {"torch.add": lambda: torch.add(a, b, out=into)}
    if not TINY:
        runs["linrnn"] = lambda: linear_scan(a, b, backend="triton")[0]
    errors = {}
    for group in GROUPS:
        name = f"groups of {group}"
        run = partial(chained, a, b, *TILE, group)
        errors[name] = error_of(run()[:, :some], true) + equal_times(run, REPEATS)
        runs[name] = run
    return Case(str(shape), dict(runs), errors, 1e-5, size)


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """By name."""
    for shape in SHAPES:
        yield str(shape), partial(case, shape)


if __name__ == "__main__":
    sys.exit(main(__doc__, cases))
