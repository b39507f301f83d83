"""`scale_heads` by the native kernel ``src/native/kernels/scale_heads.cpp``."""

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import accumulator_of, dense

_SCALE = native.Kernel(
    "scale_heads", "rows heads channels x x_row scales y backward grad_x grad_scales"
)


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot compute on that device and dtype, or None."""
    return native.unavailable(device, dtype, real=True, kernel="scale_heads")


def forward(x: Tensor, scale: Tensor) -> tuple[Tensor]:
    """The products."""
    y = torch.empty(x.shape, dtype=x.dtype, device="cpu")
    _run(x, scale, y, False, 0, 0)
    return (y,)


def backward(x: Tensor, scale: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of ``x`` and ``scale``."""
    grad_x = torch.empty(x.shape, dtype=x.dtype, device="cpu")
    grad_scale = torch.zeros(scale.shape, dtype=accumulator_of(x), device="cpu")
    _run(x, scale, dense(grad), True, grad_x.data_ptr(), grad_scale.data_ptr())
    return grad_x, grad_scale.to(scale.dtype)


def _run(x: Tensor, scale: Tensor, y: Tensor, *ends: int) -> None:
    if not x.numel():
        return
    batch, time, heads, channels = x.shape
    x, scale = _rows(x), dense(scale.to(accumulator_of(x)))
    sizes = batch * time, heads, channels
    _SCALE(x.dtype, *sizes, x.data_ptr(), x.stride(1), scale.data_ptr(), y.data_ptr(), *ends)


def _rows(x: Tensor) -> Tensor:
    """``x``, dense unless its steps are dense rows at one distance from each other."""
    channels, row = x.shape[3], x.stride(1)
    if x.stride() == (x.shape[1] * row, row, channels, 1):
        return x
    return x.contiguous()
