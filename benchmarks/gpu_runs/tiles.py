"""Which tile a scan should have: steps of a stretch, warps and channels, beside `torch.add`.

Forward and backward, kernels alone. A single warp is the walk along time that ran on a GPU before.
"""

import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from _measure import DEVICE, TINY, Case, Run, error_of, loop, main
from _scans import backward, forward, plan_of
from torch import Tensor

F32, BF16, C64 = torch.float32, torch.bfloat16, torch.complex64
#: Shape, dtype, whether decays are constant: the common cases.
SCANS = (
    ((8, 2048, 2048), F32, False),
    ((8, 2048, 2048), BF16, False),
    ((8, 2048, 1024), C64, True),
    ((8, 8192, 1024), F32, False),
    ((64, 1024, 256), F32, False),
)
#: Steps, warps, channels.
TILES = ((8, 1, 128), *itertools.product((4, 8), (4, 8), (64, 128, 256)))
if TINY:
    KINDS = itertools.product((F32, BF16, C64), (False, True))
    SCANS = tuple(((2, 19, 6), kind, constant) for kind, constant in KINDS)
    TILES = ((2, 1, 8), (4, 2, 8))

Scan = tuple[tuple[int, int, int], torch.dtype, bool]


@functools.lru_cache(maxsize=1)
def tensors(
    shape: tuple[int, int, int], dtype: torch.dtype, constant: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Decays, what is added, states and the gradient of what is added, once for all tiles."""
    torch.manual_seed(0)
    a = torch.rand(shape[2:] if constant else shape, device=DEVICE)
    a = torch.polar(0.9 + 0.1 * a, 6 * torch.rand_like(a)) if dtype.is_complex else a.to(dtype)
    b = torch.randn(shape, device=DEVICE, dtype=dtype)
    # of a cotangent b: the decay of a step is that of the step after it, conjugate
    after = a if constant else torch.cat([a[:, 1:], torch.zeros_like(a[:, :1])], 1)
    after = after.conj() if constant else after.conj().flip(1)
    return a, b, loop(a, b), loop(after, b.flip(1)).flip(1)


def case(scan: Scan, tile: tuple[int, int, int]) -> Case:
    """One tile, beside a copy."""
    a, b, true, true_back = tensors(*scan)
    into, add, (steps, warps, block) = torch.empty_like(b), b if scan[2] else a, tile
    plan = plan_of(b, block, warps)
    h = true.to(b.dtype)
    ahead, back = forward(a, b, plan, steps), backward(a, h, b, plan, steps)
    runs: dict[str, Run] = {
        "torch.add": lambda: torch.add(add, b, out=into), "forward": ahead, "backward": back,
    }  # fmt: skip
    errors = {"forward": error_of(ahead(), true), "backward": error_of(back(), true_back)}
    most = 1e-2 if scan[1] == BF16 else 1e-5
    size = (2 if scan[2] else 3) * b.nbytes
    return Case(named(scan, tile), runs, errors, most, size)


def named(scan: Scan, tile: tuple[int, int, int]) -> str:
    """The name of a row."""
    kind = str(scan[1]).removeprefix("torch.") + " constant" * scan[2]
    return "{} {}, steps {} warps {} channels {}".format(scan[0], kind, *tile)


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """By name."""
    for scan, tile in itertools.product(SCANS, TILES):
        yield named(scan, tile), partial(case, scan, tile)


if __name__ == "__main__":
    sys.exit(main(__doc__, cases))
