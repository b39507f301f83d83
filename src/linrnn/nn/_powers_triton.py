"""Products of two channels by the Triton kernels in ``_powers_triton_kernels.py``."""

import functools
import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from linrnn.compute import gpu
from linrnn.compute.launch import launch
from linrnn.compute.layout import dense
from linrnn.ops.linear.linear_scan.triton_plan import dtype_of

#: Numbers of a program, eight in each thread of its warps; and features of each of its rows.
_NUMBERS, _FEATURES, _WARPS = 1024, 64, 4


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    if dtype.is_complex:
        return f"it has no kernel for {dtype}"
    return gpu.unavailable(device, dtype)


def forward(x: Tensor, linear: bool, diagonal: float, other: float) -> tuple[Tensor]:
    """The features (..., features) of x (..., d)."""
    y = x.new_empty(*x.shape[:-1], _features(x, linear))
    _run(_kernels().run_forward, (dense(x), y), (linear, diagonal, other), y.shape[-1])
    return (y,)


def backward(
    x: Tensor, linear: bool, diagonal: float, other: float, grad: Tensor
) -> list[Tensor | None]:
    """The gradient of x."""
    grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    tensors = dense(x), dense(grad), grad_x
    _run(_kernels().run_backward, tensors, (linear, diagonal, other), None)
    return [grad_x]


def _features(x: Tensor, linear: bool) -> int:
    d = x.shape[-1]
    return d * (d + 1) // 2 + (1 + d if linear else 0)


def _run(
    kernel: Any,
    tensors: tuple[Tensor, ...],
    constants: tuple[bool, float, float],
    features: int | None,
) -> None:
    """Launch a kernel, whose programs share out ``features`` or have whole rows."""
    x, (linear, diagonal, other) = tensors[0], constants
    d = x.shape[-1]
    block = min(gpu.power_of_two(features or d), _FEATURES if features else 1 << 30)
    rows, tile = x.numel() // max(1, d), max(1, _NUMBERS // block)
    if not rows:
        return
    programs = -(-rows // tile) * (-(-features // block) if features else 1)
    with torch.cuda.device_of(x):
        launch(
            kernel, programs, *tensors, rows, DIAGONAL=diagonal, OTHER=other, LINEAR=linear,
            D=d, FEATURES=_features(x, linear), DTYPE=dtype_of(x.dtype), ROWS=tile, BLOCK=block,
            num_warps=_WARPS,
        )  # fmt: skip


@functools.cache
def _kernels() -> ModuleType:
    """Triton is imported by the first call that runs on it."""
    return importlib.import_module("linrnn.nn._powers_triton_kernels")
