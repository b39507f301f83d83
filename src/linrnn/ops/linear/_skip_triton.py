"""`add_skip` by Triton kernels that are generated from its equation."""

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


def forward(z: Tensor, weight: Tensor, x: Tensor) -> tuple[Tensor]:
    """The sum."""
    y = z.new_empty(z.shape, dtype=accumulator_of(z, weight, x))
    _function().forward([z, x, weight], [y], 1, z.shape[-1])
    return (y,)


def backward(z: Tensor, weight: Tensor, x: Tensor, grad: Tensor) -> list[Tensor]:
    """Gradients of the three tensors."""
    of_z, of_x, of_weight = _function().backward([z, x, weight], [grad], 1, z.shape[-1])
    return [of_z, of_weight, of_x]


@functools.cache
def _function() -> RowFunction:
    def total(z: Any, x: Any, weight: Any) -> tuple[Any]:
        return (z + weight * x,)

    return RowFunction(total, "add_skip", rows="z x", channels="weight")
