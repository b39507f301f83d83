"""`half_linear` with the native kernel ``src/native/kernels/weight_gradient.cpp``."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import aligned

_KERNEL = native.Kernel("weight_gradient", "rows outputs inputs grad grad_step x x_step weight")


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
    grad_x = (rows @ weight.to(grad.dtype)).view(x.shape) if needs[0] else None
    grad_weight = weight_gradient(rows, rows_of(x)).to(weight.dtype) if needs[1] else None
    if bias is None or not needs[2]:
        return grad_x, grad_weight, None
    return grad_x, grad_weight, rows.sum(0, dtype=torch.float32).to(bias.dtype)


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """``grad^T x`` of (rows, outputs) and (rows, inputs) in float32."""
    sizes = len(grad), grad.shape[1], x.shape[1]
    weight = torch.empty(sizes[1:], dtype=torch.float32)
    places = grad.data_ptr(), grad.stride(0), x.data_ptr(), x.stride(0), weight.data_ptr()
    _KERNEL(torch.bfloat16, *sizes, *places)
    return weight


def rows_of(x: Tensor) -> Tensor:
    """All rows of ``x`` below one another, each without gaps."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 and aligned(rows) else rows.contiguous()
