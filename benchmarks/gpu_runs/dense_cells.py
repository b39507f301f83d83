"""Time of an LSTM's step with matrices on chip: one program, or several that wait.

Beside cuDNN's LSTM, which also multiplies its inputs, and the package's cell. Forward alone.
"""

import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from _measure import DEVICE, TINY, Case, Run, error_of, main
from _recurrent_kernels import lstm
from torch import Tensor, nn

from cells import CELLS
from linrnn.ops import cell_scan

BF16, F32 = torch.bfloat16, torch.float32
STEPS, BATCHES = 1024, (8, 64)
#: Channels, dtype, programs that share the matrices (0: one has all), warps.
FORMS = (
    (64, F32, 0, 8), (64, BF16, 0, 8), (128, BF16, 0, 16), (128, F32, 8, 8), (256, BF16, 8, 4),
    (256, BF16, 16, 4), (256, F32, 16, 8), (512, BF16, 16, 8), (512, BF16, 32, 8),
)  # fmt: skip
if TINY:  # programs run one after the other there, so none may wait for another
    STEPS, BATCHES, FORMS = 5, (3,), ((16, F32, 0, 1), (16, F32, 1, 1))


@functools.lru_cache(maxsize=1)
def tensors(batch: int, channels: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, matrices and true states."""
    torch.manual_seed(0)
    x = torch.randn(STEPS, batch, 4, channels, device=DEVICE).to(dtype)
    R = (torch.randn(4, channels, channels, device=DEVICE) / channels**0.5).to(dtype)
    wide, states = R.double(), []
    h = c = torch.zeros(batch, channels, dtype=torch.float64, device=DEVICE)
    for row in x.double():
        i, f, g, o = (torch.einsum("bk,gkn->bgn", h, wide) + row).unbind(1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        states.append(h)
    return x, R, torch.stack(states)


def case(batch: int, channels: int, dtype: torch.dtype, parts: int, warps: int) -> Case:
    """One form, beside cuDNN and the package."""
    x, R, true = tensors(batch, channels, dtype)
    run = partial(lstm, x, R, parts, warps)
    runs: dict[str, Run] = {}
    if not TINY:
        cudnn = nn.LSTM(channels, channels, device=DEVICE, dtype=dtype)
        rows = x[:, :, 0].contiguous()
        cell = CELLS["LSTM"]
        parts_of = [y.transpose(0, 1).float() for y in x.unbind(2)]
        of_cell = dict(zip(cell.inputs, parts_of, strict=True))
        of_cell |= dict(zip(cell.matrices, R.float(), strict=True))
        runs["cuDNN"] = torch.no_grad()(lambda: cudnn(rows)[0])
        runs["cell_scan, float32"] = lambda: cell_scan(cell, **of_cell, backend="triton")[0]
    form = f"{parts} programs" if parts else "one program"
    most = 1e-5 if TINY else 5e-2 if dtype == BF16 else 5e-3  # of TF32; errors add up over steps
    name = named(batch, channels, dtype, parts, warps)
    return Case(name, runs | {form: run}, {form: error_of(run(), true)}, most, x.nbytes)


def named(batch: int, channels: int, dtype: torch.dtype, parts: int, warps: int) -> str:
    """The name of a row."""
    kind = str(dtype).removeprefix("torch.")
    return f"({batch}, {STEPS}, {channels}) {kind}, parts {parts} warps {warps}"


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """By name; what has the same tensors comes one after the other."""
    for batch, form in itertools.product(BATCHES, FORMS):
        yield named(batch, *form), partial(case, batch, *form)


if __name__ == "__main__":
    sys.exit(main(__doc__, cases))
