"""`pair_scan`: a complex recurrence on pairs of real and imaginary parts."""

from typing import Any

import torch
from torch import Tensor

from linrnn.compute.precision import wide
from linrnn.compute.product import Product
from linrnn.compute.sequence_parallel import current
from linrnn.ops.linear.linear_scan import linear_scan
from linrnn.ops.linear.linear_scan.inverse import watching


def pair_scan(
    a: Tensor, b: Tensor, initial_state: Tensor, reset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`linear_scan` whose inputs and states are pairs of real and imaginary parts.

    Args:
        a: complex decays, (N,) or (batch, time, N).
        b: pairs, (batch, time, N, 2).
        initial_state: complex, (batch, N).
        reset: boolean (batch, time).

    Returns:
        Pairs like ``b``, and the complex state after the last step. A state is complex64 at least:
        where ``b`` is bfloat16 it is rounded only where it is written.

    Example:
        >>> b = torch.ones(1, 2, 1, 2)
        >>> h, last = pair_scan(torch.tensor([1j]), b, torch.zeros(1, 1, dtype=torch.complex64))
        >>> h.flatten(), last
        (tensor([1., 1., 0., 2.]), tensor([[0.+2.j]]))
    """
    halves = b.dtype is torch.bfloat16 and b.shape[1] > 1 and a.dtype is torch.complex64
    plain = halves and initial_state.dtype is a.dtype and current() is None and watching() is None
    if not plain or a.ndim > 1 or not b.numel():
        return _definition(a, b, initial_state, reset)
    h, last = _PRODUCT(b, a, initial_state, reset)
    return h, last


def _definition(
    a: Tensor, b: Tensor, initial_state: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """In PyTorch's operators and `linear_scan`: on any device, differentiable to any order."""
    complex_b = torch.view_as_complex(wide(b).contiguous())  # (B, T, N)
    h, last = linear_scan(a, complex_b, initial_state, reset=reset)
    return torch.view_as_real(h).to(b.dtype), last


def _of_halves(b: Tensor, a: Tensor, *remaining: Any) -> tuple[Tensor, Tensor]:
    return _definition(a, b, *remaining)


_PRODUCT = Product(
    "pair_scan",
    _of_halves,
    gradients=3,
    kernels={"cpu": "linrnn.ops.linear._pair_scan_cpu"},
    saved=(0,),
)
