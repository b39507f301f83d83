"""`log_sigmoid` by the native kernel ``src/native/kernels/log_decays.cpp``."""

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import accumulator_dtype, dense
from linrnn.ops.matrix._log_decays_cpu import DECAYS
from linrnn.ops.matrix._log_decays_cpu import unavailable as unavailable


def forward(x: Tensor, scale: float) -> tuple[Tensor]:
    """The logarithms."""
    g = torch.empty(x.shape, dtype=accumulator_dtype(x.dtype))
    _run(x, scale, g, False, 0, 0, 0)
    return (g,)


def backward(x: Tensor, scale: float, grad: Tensor) -> tuple[Tensor]:
    """The gradient of ``x``."""
    grad_x = torch.empty(x.shape, dtype=x.dtype)
    channels = max(1, x.shape[-1])
    parts = native.parts_of(x.numel() // channels // 32)
    sums = torch.zeros(parts, channels, dtype=torch.float64)  # of a base, which there is not
    _run(x, scale, dense(grad), True, parts, grad_x.data_ptr(), sums.data_ptr())
    return (grad_x,)


def _run(x: Tensor, scale: float, g: Tensor, *ends: int) -> None:
    if not x.numel():
        return
    x, channels = dense(x), x.shape[-1]
    places = x.data_ptr(), native.DTYPES[x.dtype], 0, g.data_ptr()
    DECAYS(g.dtype, x.numel() // channels, channels, True, 0, scale, *places, *ends)
