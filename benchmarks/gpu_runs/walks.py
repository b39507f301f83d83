"""How the states of a matrix memory should be found: by a walk, or products of all chunks at once.

Decays by channel. The baseline is `outer_scan`, which does more: it reads the memories, too.
Run each tile that wins under ``compute-sanitizer --tool memcheck`` before it is used.
"""

import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from _measure import DEVICE, TINY, Case, Run, error_of, main
from _memory_kernels import passed, walked
from torch import Tensor

from linrnn.ops import outer_scan

#: (batch, time, heads, keys, values)
SHAPES = ((1, 4096, 8, 64, 64), (1, 16384, 4, 128, 128))
SIDES, STAGES, WARPS, CHUNK = (32, 64), (1, 2, 3, 4), (1, 2, 4, 8), 64
DTYPE = torch.bfloat16
if TINY:
    SHAPES, SIDES, STAGES, WARPS, CHUNK = ((2, 48, 2, 32, 32),), (16,), (1,), (1,), 16
    DTYPE = torch.float32  # so that an error is one of the form, not of rounding


@functools.lru_cache(maxsize=1)
def tensors(shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Keys, values, logarithms of decays, their sums to base 2, and the true memories."""
    batch, time, heads, keys, values = shape
    torch.manual_seed(0)
    k = F.normalize(torch.randn(batch, time, heads, keys, device=DEVICE), dim=-1).to(DTYPE)
    v = torch.randn(batch, time, heads, values, device=DEVICE).to(DTYPE)
    logs = F.logsigmoid(3 + torch.randn(batch, time, heads, keys, device=DEVICE))
    parts = (logs / torch.log(logs.new_tensor(2.0))).unflatten(1, (-1, CHUNK))
    sums = parts.cumsum(2)
    left = (sums[:, :, -1:] - sums).double().exp2().flatten(1, 2)
    S, kept = torch.zeros(batch, heads, keys, values, dtype=torch.float64, device=DEVICE), []
    for n in range(time // CHUNK):
        of = slice(n * CHUNK, (n + 1) * CHUNK)
        kept.append(S)
        added = torch.einsum("bthk,bthv->bhkv", k[:, of].double() * left[:, of], v[:, of].double())
        S = S * sums[:, n, -1].double().exp2()[..., None] + added
    true = torch.stack(kept, 2).flatten(0, 1)
    return k, v, logs, sums.flatten(1, 2).contiguous(), true


def case(shape: tuple[int, ...], side: int, stages: int, warps: int) -> Case:
    """A walk and a pass with tiles of one side."""
    k, v, logs, sums, true = tensors(shape)
    forms: dict[str, Callable[[], Tensor]] = {
        "walk": partial(walked, k, v, sums, CHUNK, (side, side), stages, warps),
        "products, pass": partial(passed, k, v, sums, CHUNK, side // 2, stages, warps),
    }
    runs: dict[str, Run] = {}
    if not TINY:
        runs["outer_scan"] = lambda: outer_scan(k, k, v, logs, backend="triton")[0]
    errors = {name: error_of(run(), true) for name, run in forms.items()}
    size = k.nbytes + v.nbytes + sums.nbytes + true.numel() * k.element_size()
    most = 1e-5 if torch.float32 == DTYPE else 1e-2
    return Case(named(shape, side, stages, warps), runs | forms, errors, most, size)


def named(shape: tuple[int, ...], side: int, stages: int, warps: int) -> str:
    """The name of a row."""
    return f"{shape}, side {side} stages {stages} warps {warps}"


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """By name."""
    for choice in itertools.product(SHAPES, SIDES, STAGES, WARPS):
        yield named(*choice), partial(case, *choice)


if __name__ == "__main__":
    sys.exit(main(__doc__, cases))
