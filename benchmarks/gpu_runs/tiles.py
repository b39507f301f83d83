"""Which tile a scan should have: steps of a warp, warps, channels and stages, beside `torch.add`.

Forward alone; the package's present kernels take turns with it.
"""

import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from _measure import DEVICE, TINY, Case, Run, error_of, loop, main
from _scans import tiled
from torch import Tensor

from linrnn.ops import linear_scan

F32, BF16, C64 = torch.float32, torch.bfloat16, torch.complex64
#: Shape, dtype, whether decays are constant: the package's and the prototypes' common cases.
SCANS = (
    ((8, 2048, 2048), F32, False),
    ((8, 2048, 2048), BF16, False),
    ((8, 2048, 1024), C64, True),
    ((8, 8192, 1024), F32, False),
    ((64, 1024, 256), F32, False),
)
TILES = tuple(itertools.product((8, 16), (4, 8, 16), (64, 128, 256), (1, 2, 3)))
if TINY:
    KINDS = itertools.product((F32, BF16, C64), (False, True))
    SCANS = tuple(((2, 19, 6), kind, constant) for kind, constant in KINDS)
    TILES = ((2, 2, 8, 1), (4, 2, 4, 1))


@functools.lru_cache(maxsize=1)
def tensors(
    shape: tuple[int, int, int], dtype: torch.dtype, constant: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Decays, what is added, and the states, which are computed once for all tiles."""
    torch.manual_seed(0)
    a = torch.rand(shape[2:] if constant else shape, device=DEVICE)
    a = torch.polar(0.9 + 0.1 * a, 6 * torch.rand_like(a)) if dtype.is_complex else a.to(dtype)
    b = torch.randn(shape, device=DEVICE, dtype=dtype)
    return a, b, loop(a, b)


def case(scan: tuple[tuple[int, int, int], torch.dtype, bool], tile: tuple[int, ...]) -> Case:
    """One tile, beside a copy and the package's kernel."""
    a, b, true = tensors(*scan)
    into, add = torch.empty_like(b), b if scan[2] else a
    run = partial(tiled, a, b, *tile)
    runs: dict[str, Run] = {"torch.add": lambda: torch.add(add, b, out=into)}
    if not TINY:
        runs["linrnn"] = lambda: linear_scan(a, b, backend="triton")[0]
    runs["tiles"] = run
    most = 1e-2 if scan[1] == BF16 else 1e-5
    size = (2 if scan[2] else 3) * b.nbytes
    return Case(named(scan, tile), runs, {"tiles": error_of(run(), true)}, most, size)


def named(scan: tuple[tuple[int, int, int], torch.dtype, bool], tile: tuple[int, ...]) -> str:
    """The name of a row."""
    kind = str(scan[1]).removeprefix("torch.") + " constant" * scan[2]
    return "{} {}, S {} W {} C {} stages {}".format(scan[0], kind, *tile)


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """By name."""
    for scan, tile in itertools.product(SCANS, TILES):
        yield named(scan, tile), partial(case, scan, tile)


if __name__ == "__main__":
    sys.exit(main(__doc__, cases))
