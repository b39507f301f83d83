"""`skipped_pair_scan`: a `pair_scan` between two linear maps, and the input beside it."""

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.modes import eager
from linrnn.compute.precision import autocast_dtype, in_dtype_of, wide
from linrnn.compute.product import Product
from linrnn.compute.sequence_parallel import current
from linrnn.ops.half_linear import half_linear, worth_tiles
from linrnn.ops.linear.linear_scan.inverse import watching
from linrnn.ops.linear.pair_scan import pair_scan
from linrnn.ops.linear.skip import add_skip

_HALF = torch.bfloat16


def skipped_pair_scan(
    x: Tensor,
    B: Tensor,
    a: Tensor,
    initial_state: Tensor,
    C: Tensor,
    D: Tensor,
    reset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``y = C h + D x`` with the pairs ``h`` that `pair_scan` makes of ``B x``.

    Inside of autocast to bfloat16, on a processor with matrix tiles, the gradient of the whole is
    one function: gradients of ``x`` through both ways are added in the pass that writes them.

    Args:
        x: (batch, time, d_model).
        B: (2 N, d_model); rows of real and imaginary parts alternate.
        a: complex decays, (N,) or (batch, time, N).
        initial_state: complex, (batch, N).
        C: (d_model, 2 N), in the order of ``B``.
        D: (d_model,).
        reset: boolean (batch, time).

    Returns:
        ``y``, and the complex state after the last step.

    Example:
        >>> x, zero = torch.ones(1, 2, 1), torch.zeros(1, 1, dtype=torch.complex64)
        >>> ones, a = torch.ones(2, 1), torch.tensor([1j])
        >>> y, _ = skipped_pair_scan(x, ones, a, zero, ones.mT, torch.ones(1))
        >>> y.flatten()
        tensor([3., 3.])
    """
    if _as_one(x, B, a, initial_state, C, D):
        y, last = _PRODUCT(x, B, a, initial_state, C, D, reset)
        return y, last
    b = half_linear(x.to(B.dtype), B).unflatten(-1, (len(B) // 2, 2))  # (B, T, N, 2)
    h, last = pair_scan(a, b, initial_state, reset)
    # (B, T, outputs), (B, N)
    return add_skip(half_linear(in_dtype_of(C, h.flatten(-2)), C), D, x), last


def _as_one(x: Tensor, B: Tensor, a: Tensor, initial_state: Tensor, C: Tensor, D: Tensor) -> bool:
    """Whether the whole has one gradient; without any, there is nothing to gain."""
    single = {t.dtype for t in (x, B, C, D)} == {torch.float32}
    if not single or x.ndim != 3 or x.shape[1] < 2 or autocast_dtype(x) is not _HALF:
        return False
    states = a.ndim == 1 and a.dtype is initial_state.dtype is torch.complex64
    learns = torch.is_grad_enabled() and all([t.requires_grad for t in (B, C)])
    if not (states and learns and current() is None and watching() is None):
        return False
    tiles = worth_tiles(x, len(B)) and worth_tiles(x, C.shape[1])
    return tiles and eager(x, B, a, initial_state, C, D) and _PRODUCT.backend([x]) == "cpu"


def _definition(
    x: Tensor,
    B: Tensor,
    a: Tensor,
    initial_state: Tensor,
    C: Tensor,
    D: Tensor,
    reset: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """In PyTorch's operators and `pair_scan`, with the roundings of the kernels."""
    b = F.linear(x.to(_HALF), B.to(_HALF)).unflatten(-1, (len(B) // 2, 2))  # (B, T, N, 2)
    h, last = pair_scan(a, b, initial_state, reset)
    z = F.linear(h.flatten(-2), C.to(_HALF))  # (B, T, outputs)
    return torch.addcmul(wide(z), D, x), last


_PRODUCT = Product(
    "skipped_pair_scan",
    _definition,
    gradients=6,
    kernels={"cpu": "linrnn.ops.linear._skipped_pair_scan_cpu"},
    keeps=2,
    selects=True,
)
