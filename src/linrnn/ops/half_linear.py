"""`half_linear`: a linear map inside of autocast whose weight has its gradient in float32."""

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.backend import another_requested
from linrnn.compute.modes import eager, eager_apply
from linrnn.compute.product import Product
from linrnn.errors import BackendError
from linrnn.ops._half_linear_cpu import forward, rounded, rows_of, weight_gradient, widened

#: Multiplications from which on the kernel is used. It takes 0.5 to 0.9 of PyTorch's time at all
#: sizes tried (Xeon with AMX, one thread), from (256, 128, 128) to (8192, 768, 256), for few inputs
#: 0.27 (8192, 512, 8) and for few outputs up to 1.07 (8192, 4, 256).
_WORTH = 1 << 22
#: Numbers from which on a cast calls a kernel.
_WORTH_CASTING = 1 << 16
_CASTS = {torch.float32, torch.bfloat16}


def half_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`, with the gradient of a float32 weight as precise as it.

    Inside of `torch.autocast` to bfloat16 PyTorch rounds that gradient, a sum over all steps, to
    bfloat16. Where a processor has the matrix tiles of AMX, a kernel sums it in float32, which is
    also faster. The gradient of a bfloat16 weight is rounded once. All else is PyTorch's own.

    Args:
        x: (..., n_in).
        weight: (n_out, n_in).
        bias: (n_out,) or None.

    Example:
        >>> half_linear(torch.ones(1, 2), torch.ones(3, 2))
        tensor([[2., 2., 2.]])
    """
    if torch.is_grad_enabled():
        # asked here: most calls end at this, and a function of Python takes as long as a step
        half = torch.bfloat16
        by_autocast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is half
        dtype = torch.float32 if by_autocast else half
        if weight.dtype is dtype and _may_use_kernel(x, weight, bias, dtype):
            (y,) = _PRODUCT(half_cast(x, half), weight, bias)
            return y
    return F.linear(x, weight, bias)


def rounded_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`half_linear`, with the weights in the dtype of ``x``.

    A float32 weight that is rounded to bfloat16 learns as precisely as inside of autocast.

    Example:
        >>> rounded_linear(torch.ones(1, 2).bfloat16(), torch.ones(1, 2)).dtype
        torch.bfloat16
    """
    learns = x.dtype is torch.bfloat16 and torch.is_grad_enabled()
    if learns and weight.dtype is torch.float32 and _may_use_kernel(x, weight, bias, weight.dtype):
        (y,) = _PRODUCT(x, weight, bias)
        return y
    return half_linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def rounded_as(x: Tensor, weights: Sequence[Tensor]) -> Sequence[Tensor]:
    """Matrices in the dtype of ``x`` if this is bfloat16; vectors, or all others, as they are.

    Example:
        >>> rounded_as(torch.ones(1).bfloat16(), [torch.ones(2, 2)])[0].dtype
        torch.bfloat16
    """
    if x.dtype is not torch.bfloat16:
        return weights
    return [w.to(x.dtype) if w.ndim > 1 else w for w in weights]


def half_outer_sum(left: Tensor, right: Tensor) -> Tensor:
    """The sum over rows of outer products, ``left^T right``, of bfloat16 numbers.

    Args:
        left: (rows, m).
        right: (rows, n).

    Returns:
        (m, n), in float32 where the kernel of `half_linear` computes it, else in bfloat16.

    Example:
        >>> half_outer_sum(torch.ones(4, 1).bfloat16(), torch.ones(4, 2).bfloat16()).float()
        tensor([[4., 4.]])
    """
    return half_outer_sums(left, right, sums=False)[0]


def half_outer_sums(
    left: Tensor, right: Tensor, *, sums: bool = True
) -> tuple[Tensor, Tensor | None]:
    """`half_outer_sum`, and the sum of the rows of ``left`` in float32, or None without ``sums``.

    Example:
        >>> half_outer_sums(torch.ones(4, 1).bfloat16(), torch.ones(4, 2).bfloat16())[1]
        tensor([4.])
    """
    if worth_tiles(left, right.shape[1]) and right.is_cpu and eager(left, right):
        return weight_gradient(rows_of(left), rows_of(right), sums=sums)
    # (outputs, inputs), (outputs,)
    return left.mT @ right, left.sum(0, dtype=torch.float32) if sums else None


def worth_tiles(x: Tensor, n_out: int) -> bool:
    """Whether a product with all rows of ``x`` is large enough for the kernel, which is there.

    Example:
        >>> worth_tiles(torch.ones(4, 4), 4)
        False
    """
    return x.numel() * n_out >= _WORTH and x.is_cpu and available()


def half_cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x.to(dtype)``, whose gradient is cast back; by a kernel to bfloat16 and from it.

    The kernel is used where `half_linear` has one. It rounds subnormals to zero.

    Example:
        >>> half_cast(torch.ones(2), torch.bfloat16).dtype
        torch.bfloat16
    """
    if x.dtype is dtype or not eager(x) or x.numel() < _WORTH_CASTING or not x.is_cpu:
        return x.to(dtype)
    if {x.dtype, dtype} != _CASTS or another_requested() or not available():
        return x.to(dtype)
    if x.requires_grad and torch.is_grad_enabled():
        y: Tensor = _apply_cast(x, dtype)
        return y
    return _cast(x, dtype)


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    if not x.is_contiguous():
        return x.to(dtype)
    return rounded(x) if dtype is torch.bfloat16 else widened(x)


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = x.dtype
        return _cast(x, dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return half_cast(grad, ctx.dtype), None


_apply_cast = eager_apply(_Cast)


def _may_use_kernel(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> bool:
    return (
        weight.requires_grad
        and eager(x, weight)
        and (bias is None or bias.dtype is dtype)
        and x.dtype in (dtype, torch.bfloat16)
        and weight.is_cpu
        and worth_tiles(x, len(weight))
    )


@functools.cache
def available() -> bool:
    """Whether processor, system and library have what the kernel needs."""
    if native.unavailable(torch.device("cpu"), torch.bfloat16, kernel="weight_gradient"):
        return False
    try:
        weight_gradient(*torch.ones(2, 1, 1, device="cpu").bfloat16())
    except BackendError:
        return False
    return True


_PRODUCT = Product(
    "half_linear",
    forward,  # of PyTorch's operators: differentiable to any order
    gradients=3,
    kernels={"cpu": "linrnn.ops._half_linear_cpu"},
    selects=True,
)
