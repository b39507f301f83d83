"""The Cauchy product by the Triton kernels in ``_cauchy_triton_kernels.py``."""

import functools
import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from linrnn.compute import gpu
from linrnn.compute.launch import launch
from linrnn.compute.layout import dense

_NODES = 128
"""Nodes that a program computes at a time, one for each thread."""


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    if dtype not in (torch.float32, torch.float64):
        return f"it has no kernel for {dtype}"
    return gpu.unavailable(device, dtype)


def forward(*arguments: Tensor) -> tuple[Tensor, ...]:
    """Real and imaginary part of the sums (rows, channels, nodes)."""
    beta, angle = arguments[0], arguments[4]
    sums = tuple(beta.new_empty((*beta.shape[:2], len(angle))) for _ in range(2))
    blocks = -(-len(angle) // _NODES)
    _run(_kernels().run_forward, beta.shape[1] * blocks, arguments, sums)
    return sums


def backward(*inputs: Tensor) -> tuple[Tensor, ...]:
    """Gradients of ``beta``, ``alpha``, ``radius`` and ``real``."""
    arguments = inputs[:5]
    gradients = tuple(torch.empty_like(dense(x)) for x in arguments[:4])
    programs = arguments[2].numel()  # one for each mode, so that every sum has one owner
    _run(_kernels().run_backward, programs, arguments, [*map(dense, inputs[5:]), *gradients])
    return gradients


def _run(kernel: Any, programs: int, arguments: Any, results: Any) -> None:
    beta, alpha, radius, real, angle = map(dense, arguments)
    half, (rows, channels, modes), tl = 0.5 * angle, beta.shape, _kernels().tl
    if not programs or not rows:
        return
    with torch.cuda.device_of(beta):
        launch(
            kernel,
            programs,
            beta,
            alpha,
            radius,
            real,
            half.sin(),
            half.cos(),
            *results,
            rows,
            channels,
            modes,
            len(angle),
            ROWS=gpu.power_of_two(rows),
            NODES=_NODES,
            DTYPE=tl.float64 if beta.dtype == torch.float64 else tl.float32,
            num_warps=4,
        )


@functools.cache
def _kernels() -> ModuleType:
    """Triton is imported by the first call that runs on it."""
    return importlib.import_module("linrnn.ops.conv._cauchy_triton_kernels")
