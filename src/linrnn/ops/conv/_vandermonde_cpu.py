"""The Vandermonde product by the native kernel ``src/native/kernels/vandermonde.cpp``."""

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import dense

_VANDERMONDE = native.Kernel(
    "vandermonde", "rows channels modes time shared a c y backward grad_a grad_c"
)


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot compute on that device and dtype, or None."""
    return native.unavailable(device, dtype, kernel="vandermonde")


def forward(c: Tensor, a: Tensor, time: int) -> tuple[Tensor]:
    """The sums (rows, channels, time)."""
    y = torch.empty(*c.shape[:2], time, dtype=c.real.dtype, device="cpu")
    _run(dense(c), dense(a), y, False, 0, 0)
    return (y,)


def backward(c: Tensor, a: Tensor, time: int, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of ``c`` and ``a``."""
    c, of_a = dense(c), a.new_empty(c.shape[1:])
    of_c = torch.empty_like(c)
    _run(c, dense(a), dense(grad), True, of_a.data_ptr(), of_c.data_ptr())
    return of_c, of_a.sum_to_size(a.shape)


def _run(c: Tensor, a: Tensor, y: Tensor, *gradients: int) -> None:
    shared = a.shape[0] != c.shape[1]
    addresses = a.data_ptr(), c.data_ptr(), y.data_ptr()
    _VANDERMONDE(c.dtype, *c.shape, y.shape[-1], shared, *addresses, *gradients)
