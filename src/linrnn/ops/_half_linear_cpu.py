"""`half_linear` with the native kernel ``src/native/kernels/weight_gradient.cpp``."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import aligned

_KERNEL = native.Kernel(
    "weight_gradient", "rows outputs inputs grad grad_step x x_step weight sums"
)

_ROUND = native.Kernel("round", "count widens x y")


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot compute on that device and dtype, or None."""
    return native.unavailable(device, dtype, real=True, kernel="weight_gradient")


def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor]:
    """The map, all in the dtype of ``x``."""
    return (F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype)),)


def backward(
    x: Tensor, weight: Tensor, bias: Tensor | None, grad: Tensor, needs: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients that are needed; those of weight and bias are sums in float32."""
    rows = rows_of(grad)
    grad_x = (rows @ weight.to(grad.dtype)).view(x.shape) if needs[0] else None  # (..., inputs)
    with_bias = bias is not None and needs[2]
    grad_weight = grad_bias = None
    if needs[1]:
        grad_weight, grad_bias = weight_gradient(rows, rows_of(x), sums=with_bias)
        grad_weight = grad_weight.to(weight.dtype)
    elif with_bias:
        grad_bias = rows.sum(0, dtype=torch.float32)
    if bias is None or grad_bias is None:
        return grad_x, grad_weight, None
    return grad_x, grad_weight, grad_bias.to(bias.dtype)


def weight_gradient(grad: Tensor, x: Tensor, *, sums: bool = False) -> tuple[Tensor, Tensor | None]:
    """``grad^T x`` of (rows, outputs) and (rows, inputs), and with ``sums`` that of ``grad``.

    Both are sums over rows in float32.
    """
    sizes = len(grad), grad.shape[1], x.shape[1]
    weight = torch.empty(sizes[1:], dtype=torch.float32, device="cpu")
    total = torch.empty(sizes[1], dtype=torch.float32, device="cpu") if sums else None
    places = grad.data_ptr(), grad.stride(0), x.data_ptr(), x.stride(0), weight.data_ptr()
    _KERNEL(torch.bfloat16, *sizes, *places, native.pointer(total))
    return weight, total


def rounded(x: Tensor) -> Tensor:
    """``x``, float32 without gaps, in bfloat16."""
    y = torch.empty(x.shape, dtype=torch.bfloat16, device="cpu")
    _ROUND(torch.bfloat16, x.numel(), False, x.data_ptr(), y.data_ptr())
    return y


def widened(x: Tensor) -> Tensor:
    """``x``, bfloat16 without gaps, in float32."""
    y = torch.empty(x.shape, dtype=torch.float32, device="cpu")
    _ROUND(torch.bfloat16, x.numel(), True, x.data_ptr(), y.data_ptr())
    return y


def rows_of(x: Tensor) -> Tensor:
    """All rows of ``x`` below one another, each without gaps."""
    rows = x.reshape(-1, x.shape[-1])  # (rows, inputs)
    return rows if rows.stride(1) == 1 and aligned(rows) else rows.contiguous()
