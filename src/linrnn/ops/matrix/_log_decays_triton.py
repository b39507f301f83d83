"""`log_decays` by Triton kernels that are generated from its equation."""

import functools
from typing import Any

import torch
from torch import Tensor

from linrnn.compute import gpu
from linrnn.compute.layout import accumulator_of
from linrnn.ops.cell.cell_scan.row_function import RowFunction


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return gpu.unavailable(device, dtype)


def forward(x: Tensor, base: Tensor, limit: float) -> tuple[Tensor]:
    """The logarithms."""
    g = torch.empty(x.shape, dtype=accumulator_of(x, base), device=x.device)
    _function(limit).forward([x, base], [g], 1, x.shape[-1])
    return (g,)


def backward(x: Tensor, base: Tensor, limit: float, grad: Tensor) -> list[Tensor]:
    """Gradients of ``x`` and ``base``."""
    return _function(limit).backward([x, base], [grad], 1, x.shape[-1])


@functools.lru_cache(maxsize=64)
def _function(limit: float) -> RowFunction:
    def decays(x: Any, base: Any) -> tuple[Any]:
        return (-torch.exp(torch.clamp(x + base, -limit, limit)),)

    return RowFunction(decays, "log_decays", rows="x", channels="base")
