"""`low_rank_keys` by Triton kernels that are generated from its equation."""

import functools
from typing import Any

import torch
from torch import Tensor

from linrnn.cells import fold, spread
from linrnn.compute import gpu
from linrnn.compute.layout import accumulator_of
from linrnn.ops.cell.cell_scan.row_function import RowFunction


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return gpu.unavailable(device, dtype)


def forward(*arguments: Any) -> tuple[Tensor, ...]:
    """Keys, both factors of the low rank, and the logarithms of decays."""
    tensors, (heads, scale, eps, dtype) = arguments[:5], arguments[5:]
    key, width = tensors[0], tensors[0].shape[-1] // heads
    outputs = [key.new_empty(key.shape, dtype=dtype) for _ in range(3)]
    outputs.append(key.new_empty(key.shape, dtype=accumulator_of(*tensors)))
    _function(width, scale, eps).forward(tensors, outputs, heads, width)
    return tuple(outputs)


def backward(*inputs: Any) -> list[Tensor]:
    """Gradients of the five tensors."""
    tensors, (heads, scale, eps, _), grads = inputs[:5], inputs[5:9], inputs[9:]
    width = tensors[0].shape[-1] // heads
    return _function(width, scale, eps).backward(tensors, grads, heads, width)


@functools.lru_cache(maxsize=64)
def _function(width: int, scale: float, eps: float) -> RowFunction:
    def keys(key: Any, rate: Any, decay: Any, direction: Any, relax: Any) -> tuple[Any, ...]:
        s, c = torch.sigmoid(rate), key * direction
        c = c * spread(torch.rsqrt(fold(c * c, width) + eps), width)
        k = key * (1 + (s - 1) * relax)
        return k, -c, c * s, scale * torch.sigmoid(decay)

    return RowFunction(keys, "low_rank_keys", rows="key rate decay", channels="direction relax")
