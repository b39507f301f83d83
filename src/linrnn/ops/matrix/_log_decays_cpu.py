"""`log_decays` by the native kernel ``src/native/kernels/log_decays.cpp``."""

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import accumulator_of, dense

DECAYS = native.Kernel(
    "log_decays", "rows channels sigmoid limit scale x x_dtype base g backward parts grad_x sums"
)


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot compute on that device and dtype, or None."""
    return native.unavailable(device, dtype, real=True, kernel="log_decays")


def forward(x: Tensor, base: Tensor, limit: float) -> tuple[Tensor]:
    """The logarithms."""
    g = torch.empty(x.shape, dtype=accumulator_of(x, base))
    _run(x, base, limit, g, False, 0, 0, 0)
    return (g,)


def backward(x: Tensor, base: Tensor, limit: float, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of ``x`` and ``base``."""
    grad_x = torch.empty(x.shape, dtype=x.dtype)
    parts = native.parts_of(x.numel() // max(1, base.numel()) // 32)
    sums = torch.zeros(parts, base.numel(), dtype=torch.float64)
    _run(x, base, limit, dense(grad), True, parts, grad_x.data_ptr(), sums.data_ptr())
    return grad_x, sums.sum(0).to(base.dtype)


def _run(x: Tensor, base: Tensor, limit: float, g: Tensor, *ends: int) -> None:
    computed, channels = accumulator_of(x, base), base.numel()
    if not x.numel():
        return
    x, base = dense(x), dense(base.to(computed))
    places = x.data_ptr(), native.DTYPES[x.dtype], base.data_ptr(), g.data_ptr()
    DECAYS(computed, x.numel() // channels, channels, False, limit, 1, *places, *ends)
