"""`scale_heads` by Triton kernels that are generated from its equation."""

import functools
from typing import Any

import torch
from torch import Tensor

from linrnn.cells import spread
from linrnn.compute import gpu
from linrnn.ops.cell.cell_scan.row_function import RowFunction


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return gpu.unavailable(device, dtype)


def forward(x: Tensor, scale: Tensor) -> tuple[Tensor]:
    """The products."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _function(x.shape[3]).forward([x, scale], [y], *x.shape[2:])
    return (y,)


def backward(x: Tensor, scale: Tensor, grad: Tensor) -> list[Tensor]:
    """Gradients of ``x`` and ``scale``."""
    return _function(x.shape[3]).backward([x, scale], [grad], *x.shape[2:])


@functools.lru_cache(maxsize=64)
def _function(width: int) -> RowFunction:
    def scaled(x: Any, scale: Any) -> tuple[Any]:
        return (spread(scale, width) * x,)

    return RowFunction(scaled, "scale_heads", rows="x scale", numbers="scale")
