"""`add_skip` by the native kernel ``src/native/kernels/skip.cpp``."""

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import accumulator_of, dense

_SKIP = native.Kernel(
    "skip", "rows channels z z_dtype weight x x_dtype y backward parts grad_z grad_x sums"
)


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot compute on that device and dtype, or None."""
    return native.unavailable(device, dtype, real=True, kernel="skip")


def forward(z: Tensor, weight: Tensor, x: Tensor) -> tuple[Tensor]:
    """The sum."""
    y = torch.empty(z.shape, dtype=accumulator_of(z, weight, x), device="cpu")
    _run(z, weight, x, y, False, 0, 0, 0, 0)
    return (y,)


def backward(z: Tensor, weight: Tensor, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of all three."""
    grad_x = torch.empty(x.shape, dtype=x.dtype, device="cpu")
    return *without_x(z, weight, x, grad, grad_x), grad_x


def without_x(
    z: Tensor, weight: Tensor, x: Tensor, grad: Tensor, grad_x: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Gradients of ``z`` and ``weight``; that of ``x`` is written where there is room for it."""
    grad_z, channels = torch.empty(z.shape, dtype=z.dtype, device="cpu"), weight.numel()
    parts = native.parts_of(z.numel() // max(1, channels) // 32)
    sums = torch.zeros(parts, channels, dtype=torch.float64, device="cpu")
    ends = parts, grad_z.data_ptr(), native.pointer(grad_x), sums.data_ptr()
    _run(z, weight, x, dense(grad), True, *ends)
    return grad_z, sums.sum(0).to(weight.dtype)


def _run(z: Tensor, weight: Tensor, x: Tensor, y: Tensor, *ends: int) -> None:
    channels = weight.numel()
    if not z.numel():
        return
    z, x, weight = dense(z), dense(x), dense(weight.to(y.dtype))
    first, second = (z.data_ptr(), native.DTYPES[z.dtype]), (x.data_ptr(), native.DTYPES[x.dtype])
    places = *first, weight.data_ptr(), *second, y.data_ptr()
    _SKIP(y.dtype, z.numel() // channels, channels, *places, *ends)
