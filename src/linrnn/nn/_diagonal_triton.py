"""Diagonal systems in steps by the Triton kernels in ``_diagonal_triton_kernels.py``."""

import functools
import importlib
from math import inf
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from linrnn.compute import gpu
from linrnn.compute.launch import launch
from linrnn.compute.layout import dense
from linrnn.ops.linear.linear_scan.triton_plan import dtype_of

#: Modes that a program computes, of one channel.
_MODES = 64


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return gpu.unavailable(device, dtype)


def forward(re: Tensor, im: Tensor | None, log_dt: Tensor | None, coordinates: Any) -> Any:
    """``(a, gain)`` of `linrnn.nn.diagonal.diagonal_steps`."""
    dtype = coordinates.dtype or (torch.float64 if im is None else torch.complex128)
    shape = (_channels(re, log_dt), re.shape[1])
    results = tuple(torch.empty(shape, dtype=dtype, device=re.device) for _ in range(2))
    _run(_kernels().run_forward, (re, im, log_dt), results, (), coordinates)
    return results


def backward(
    re: Tensor, im: Tensor | None, log_dt: Tensor | None, coordinates: Any, *grads: Tensor
) -> list[Tensor | None]:
    """Gradients of ``re``, ``im`` and ``log_dt``."""
    parameters, channels = (re, im, log_dt), _channels(re, log_dt)
    shapes: list[tuple[int, int]] = [(channels, re.shape[1])] * 2
    if log_dt is not None:
        per_mode = log_dt.shape[1] == re.shape[1]
        shapes.append((channels, re.shape[1] if per_mode else -(-re.shape[1] // _block(re))))
    partial = [
        None if x is None else _partial(x, shape)
        for x, shape in zip(parameters, shapes, strict=False)
    ]
    partial += [None] * (3 - len(partial))
    grads = tuple(dense(g) for g in grads)
    _run(_kernels().run_backward, parameters, grads, tuple(partial), coordinates)
    return [_total(g, x) for g, x in zip(partial, parameters, strict=True)]


def _partial(x: Tensor, shape: tuple[int, int]) -> Tensor:
    """Memory for a gradient as a kernel writes it, or for its terms in double precision."""
    dtype = x.dtype if shape == x.shape else torch.float64
    return torch.empty(shape, dtype=dtype, device=x.device)


def _total(partial: Tensor | None, x: Tensor | None) -> Tensor | None:
    if partial is None or x is None or partial.shape == x.shape:
        return partial
    of_columns = partial.sum(1, keepdim=True) if x.shape[1] == 1 < partial.shape[1] else partial
    return of_columns.view(-1, *x.shape).sum(0).to(x.dtype)


def _channels(re: Tensor, log_dt: Tensor | None) -> int:
    return len(re) if log_dt is None else len(log_dt)


def _block(re: Tensor) -> int:
    return min(_MODES, gpu.power_of_two(re.shape[1]))


def _run(kernel: Any, parameters: Any, steps: Any, gradients: Any, coordinates: Any) -> None:
    tensors: list[Any] = [x if x is None else dense(x) for x in parameters]
    re, im, log_dt = tensors
    (systems, modes), channels, block = re.shape, _channels(re, log_dt), _block(re)
    if not channels * modes:
        return
    with torch.cuda.device_of(re):
        launch(
            kernel, channels * -(-modes // block), re, im, log_dt, *steps, *gradients,
            systems, modes, PAIR=im is not None, TIMED=log_dt is not None,
            PER_MODE=log_dt is not None and log_dt.shape[1] == modes, RULE=coordinates.rule,
            RE_LOG=coordinates.re_log, IM_LOG=coordinates.im_log,
            LARGEST=None if coordinates.largest == inf else coordinates.largest,
            SCALE=coordinates.scale, DTYPE=dtype_of(steps[0].dtype), BLOCK=block, num_warps=1,
        )  # fmt: skip


@functools.cache
def _kernels() -> ModuleType:
    """Triton is imported by the first call that runs on it."""
    return importlib.import_module("linrnn.nn._diagonal_triton_kernels")
