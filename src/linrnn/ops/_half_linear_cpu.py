"""`half_linear` with the native kernel ``src/native/kernels/weight_gradient.cpp``."""

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
    x: Tensor, weight: Tensor, bias: Tensor | None, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of all three; those of weight and bias are sums in float32."""
    rows = _rows(grad)
    grad_x = (rows @ weight.to(grad.dtype)).view(x.shape)
    grad_bias = None if bias is None else rows.sum(0, dtype=bias.dtype)
    return grad_x, weight_gradient(rows, _rows(x)), grad_bias


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """``grad^T x`` of (rows, outputs) and (rows, inputs) in float32."""
    sizes = len(grad), grad.shape[1], x.shape[1]
    weight = torch.empty(sizes[1:], dtype=torch.float32)
    places = grad.data_ptr(), grad.stride(0), x.data_ptr(), x.stride(0), weight.data_ptr()
    _KERNEL(torch.bfloat16, *sizes, *places)
    return weight


def _rows(x: Tensor) -> Tensor:
    """All rows of ``x`` below one another, each without gaps."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 and aligned(rows) else rows.contiguous()
