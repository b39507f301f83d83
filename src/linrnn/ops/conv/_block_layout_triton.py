"""Inputs and outputs in blocks of time by ``_block_layout_triton_kernels.py``."""

import functools
import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from linrnn.compute import gpu
from linrnn.compute.launch import launch
from linrnn.compute.layout import dense, unit_channels

#: Channels of a program: a line of memory in single precision.
_CHANNELS = 32


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return gpu.unavailable(device, dtype)


def cut(u: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Blocks (H, n, Q); (H, n, 1) of NaN where one is not finite; the first such step (H, n)."""
    channels, blocks = u.shape[2], u.shape[0] * (u.shape[1] // size)
    x = torch.empty((channels, blocks, size), dtype=u.dtype, device=u.device)
    states = torch.empty((channels, blocks, 1), dtype=u.dtype, device=u.device)
    first = torch.empty((channels, blocks), dtype=torch.int32, device=u.device)
    _run(_kernels().run_cut, unit_channels(u), size, x, states, first)
    return x, states, first


def join(y: Tensor, first: Tensor | None, u: Tensor | None, shape: torch.Size) -> Tensor:
    """Blocks as (B, T, H): NaN from ``first`` on, and zero where ``u`` is not finite."""
    joined = torch.empty(shape, dtype=y.dtype, device=y.device)
    guard = None if u is None else unit_channels(u)
    _run(_kernels().run_join, joined if guard is None else guard, y.shape[2], dense(y), first,
         joined, GUARDED=guard is not None)  # fmt: skip
    return joined


def _run(kernel: Any, u: Tensor, size: int, *tensors: Tensor | None, **options: Any) -> None:
    (batch, time, channels), block = u.shape, gpu.power_of_two(size)
    if not u.numel():
        return
    seq, step = u.stride()[:2]
    programs = batch * (time // size) * -(-channels // _CHANNELS)
    with torch.cuda.device_of(u):
        launch(
            kernel, programs, u, *tensors, seq, step, batch * (time // size), time // size,
            channels, size, **options, STEPS=block, BLOCK=_CHANNELS, num_warps=4,
        )  # fmt: skip


@functools.cache
def _kernels() -> ModuleType:
    """Triton is imported by the first call that runs on it."""
    return importlib.import_module("linrnn.ops.conv._block_layout_triton_kernels")
