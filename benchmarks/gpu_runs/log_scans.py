"""Time of `log_linear_scan` by its kernel, forward and both ways, beside the tree and a copy."""

import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from _measure import DEVICE, TINY, Case, Run, error_of, main
from torch import Tensor

from linrnn.ops import log_linear_scan

SHAPES = ((8, 2048, 2048), (64, 1024, 256), (1, 65536, 1024), (32, 1024, 512))
DTYPES = (torch.float32, torch.bfloat16)
if TINY:
    SHAPES, DTYPES = ((2, 9, 40),), (torch.float32,)


def both(log_a: Tensor, log_b: Tensor, backend: str) -> Tensor:
    """The gradients of both, one above the other."""
    leaves = [x.detach().requires_grad_() for x in (log_a, log_b)]
    y = log_linear_scan(*leaves, backend=backend)[0]
    return torch.stack(torch.autograd.grad(y, leaves, torch.ones_like(y)))


def forward(log_a: Tensor, log_b: Tensor, backend: str) -> Tensor:
    """The states."""
    return log_linear_scan(log_a, log_b, backend=backend)[0]


def case(shape: tuple[int, int, int], dtype: torch.dtype) -> Case:
    """The kernel and the tree; numbers of the first 64 steps are checked against a loop."""
    torch.manual_seed(0)
    log_a = -torch.rand(shape, device=DEVICE).to(dtype)
    log_b = (3 * torch.randn(shape, device=DEVICE)).to(dtype)
    into = torch.empty_like(log_b)
    runs: dict[str, Run] = {"torch.add": lambda: torch.add(log_a, log_b, out=into)}
    errors = {}
    first = [x[:, :64] for x in (log_a, log_b)]
    for way, run in (("", forward), (", both ways", both)):
        true = run(*(x.double() for x in first), "reference")
        for backend in ("tree", "triton"):
            runs[f"{backend}{way}"] = partial(run, log_a, log_b, backend)
            errors[f"{backend}{way}"] = error_of(run(*first, backend), true)
    most = 1e-5 if dtype == torch.float32 else 1e-2
    return Case(f"{shape} {dtype}", runs, errors, most, 3 * log_b.nbytes)


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """By name."""
    for shape, dtype in itertools.product(SHAPES, DTYPES):
        yield f"{shape} {dtype}", partial(case, shape, dtype)


if __name__ == "__main__":
    sys.exit(main(__doc__, cases))
