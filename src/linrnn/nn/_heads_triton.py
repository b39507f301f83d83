"""`l2_normalise` by Triton kernels that are generated from its equation."""

import functools
from typing import Any

import torch
from torch import Tensor

from linrnn.cells import fold, spread
from linrnn.compute import gpu
from linrnn.ops.cell.cell_scan.row_function import RowFunction


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return gpu.unavailable(device, dtype)


def forward(x: Tensor, eps: float) -> tuple[Tensor]:
    """Vectors of length 1."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _function(x.shape[-1], eps).forward([x], [y], 1, x.shape[-1])
    return (y,)


def backward(x: Tensor, eps: float, grad: Tensor) -> list[Tensor]:
    """The gradient of ``x``."""
    return _function(x.shape[-1], eps).backward([x], [grad], 1, x.shape[-1])


@functools.lru_cache(maxsize=64)
def _function(width: int, eps: float) -> RowFunction:
    def normalised(x: Any) -> tuple[Any]:
        return (x * spread(torch.rsqrt(fold(x * x, width) + eps), width),)

    return RowFunction(normalised, "l2_normalise", rows="x")
