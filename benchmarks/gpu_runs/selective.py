"""Which cut of time suits Mamba's scan and its gradient, beside mamba-ssm and a copy.

A choice is the steps between states that are kept, the steps of a part of the gradient, and the
states of a program. The numbers of each are checked on one sequence of at most 256 steps. mamba-ssm
runs where it is installed: its CUDA kernel, and, of as many numbers, the Triton kernels of Mamba-2,
whose decays are those of a head.
"""

import functools
import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from _measure import DEVICE, TINY, Case, Run, error_of, main
from torch import Tensor

from linrnn.ops import selective_scan
from linrnn.ops.selective_scan import _triton

#: (batch, time, channels, modes)
SHAPES = ((8, 2048, 2048, 16), (32, 1024, 512, 16), (1, 16384, 2048, 16))
#: Steps between states that are kept, steps of a part, states of a program; the package's first.
CHOICES = ((16, 4, 256), (16, 8, 256), (32, 4, 256), (32, 8, 128), (64, 8, 128), (32, 4, 128))
DTYPE, CHECKED = torch.bfloat16, 256
if TINY:
    SHAPES, CHOICES = ((2, 19, 6, 3),), ((16, 4, 256), (8, 4, 32))
    DTYPE, CHECKED = torch.float32, 19
NAMES = ("x", "dt", "A", "B", "C", "D", "z", "dt_bias")
Choice = tuple[int, int, int]


@functools.lru_cache(maxsize=1)
def leaves(shape: tuple[int, int, int, int]) -> tuple[Tensor, ...]:
    """Arguments of the scan in a layer of Mamba."""
    batch, time, channels, modes = shape
    torch.manual_seed(0)
    x, dt, z = (torch.randn(batch, time, channels, device=DEVICE, dtype=DTYPE) for _ in "xdz")
    B, C = (torch.randn(batch, time, modes, device=DEVICE, dtype=DTYPE) for _ in "BC")
    A = -torch.arange(1.0, modes + 1, device=DEVICE).repeat(channels, 1)
    D, bias = (torch.randn(channels, device=DEVICE) for _ in "Db")
    return tuple(t.requires_grad_() for t in (x, dt, A, B, C, D, z, bias - 4))


def outputs(tensors: Sequence[Tensor], backend: str) -> Tensor:
    """The scan with its gate."""
    *required, D, z, bias = tensors
    return selective_scan(*required, D, z=z, dt_bias=bias, dt_softplus=True, backend=backend)[0]


def both(tensors: Sequence[Tensor], backend: str) -> list[Tensor]:
    """Outputs and the gradients of all tensors."""
    y = outputs(tensors, backend)
    return [y, *torch.autograd.grad(y, tensors, torch.ones_like(y))]


def chosen(choice: Choice, run: Callable[[], list[Tensor]]) -> list[Tensor]:
    """A run with the package's kernels cut otherwise."""
    names = ("CHUNK", "_STEPS_BACK", "_TILE")
    before = [getattr(_triton, name) for name in names]
    kept, steps, states = choice
    try:
        for name, value in zip(names, (kept, 2 * steps, states), strict=True):  # halved with a gate
            setattr(_triton, name, value)
        return run()
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(_triton, name, value)


@functools.lru_cache(maxsize=1)
def truth(shape: tuple[int, int, int, int]) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """The first steps of one sequence, and its numbers from a loop in double precision."""
    some = [t[:1, :CHECKED] if t.ndim == 3 else t for t in leaves(shape)]
    few = tuple(t.detach().clone().requires_grad_() for t in some)
    return few, both([t.double() for t in few], "reference")


def case(shape: tuple[int, int, int, int], choice: Choice) -> Case:
    """One cut, and what is compared with it, both ways."""
    tensors, (few, true) = leaves(shape), truth(shape)
    x = tensors[0].detach()
    into = torch.empty_like(x)
    runs: dict[str, Run] = {"torch.add": lambda: torch.add(x, x, out=into)}
    if not TINY:
        runs |= others(shape)
        runs["linrnn, forward"] = torch.no_grad()(partial(outputs, tensors, "triton"))
        runs["linrnn"] = partial(both, tensors, "triton")
    name = "kept {}, part {}, states {}".format(*choice)
    runs[name] = partial(chosen, choice, partial(both, tensors, "triton"))
    got = chosen(choice, partial(both, few, "triton"))
    errors = [error_of(y, t) for y, t in zip(got, true, strict=True)]
    most = 1e-5 if torch.float32 == DTYPE else 1e-2
    return Case(named(shape, choice), runs, {name: max(errors)}, most, 10 * x.nbytes)


def others(shape: tuple[int, int, int, int]) -> dict[str, Run]:
    """The kernels of mamba-ssm, both ways, where it is installed."""
    if importlib.util.find_spec("mamba_ssm") is None:
        return {}
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    x, dt, A, B, C, D, z, bias = (t.detach() for t in leaves(shape))
    last = [t.transpose(1, 2).contiguous().requires_grad_() for t in (x, dt, B, C, z)]
    heads = [t.unflatten(2, (-1, 64)).requires_grad_() for t in (x, z)]

    def cuda() -> object:
        u, step, b, c, gate = last
        y = selective_scan_fn(u, step, A, b, c, D, gate, bias, True)
        return torch.autograd.grad(y, last, torch.ones_like(y))

    def ssd() -> object:
        u, gate = heads
        step = F.softplus(dt[:, :, ::64])
        y = mamba_chunk_scan_combined(
            u, step, A[::64, 0], B[:, :, None], C[:, :, None], chunk_size=256, z=gate
        )
        return torch.autograd.grad(y, heads, torch.ones_like(y))

    return {"mamba-ssm, CUDA": cuda, "mamba-ssm, Mamba-2": ssd}


def named(shape: tuple[int, int, int, int], choice: Choice) -> str:
    """The name of a row."""
    return "{}, kept {} part {} states {}".format(shape, *choice)


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """By name."""
    for shape, choice in itertools.product(SHAPES, CHOICES):
        yield named(shape, choice), partial(case, shape, choice)


if __name__ == "__main__":
    sys.exit(main(__doc__, cases))
