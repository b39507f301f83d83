"""The matrices of a block by the Triton kernels in ``_siso_tables_triton_kernels.py``."""

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

#: Modes that a program computes at once, and powers of them; with those also its gradients.
_MODES, _ROWS, _ROWS_BACK = 32, 8, 4


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return gpu.unavailable(device, dtype)


def forward(*arguments: Any) -> tuple[Tensor, ...]:
    """`linrnn.ops.conv.siso.block_tables`."""
    *system, sizes, dtype = arguments
    a, b, c, d = map(dense, system)
    channels, modes = a.shape
    numbers, real = modes * (1 + a.is_complex()), dtype.to_real()
    matrices = []
    for size in sizes:
        shapes = (channels, size), (channels, size, numbers), (channels, size, numbers)
        tables = [torch.empty(x, dtype=real, device=a.device) for x in shapes]
        tables.append(torch.empty(a.shape, dtype=dtype, device=a.device))
        programs = channels * -(-(size + 1) // _ROWS)
        _run(_kernels().run_forward, programs, (a, b, c, d, *tables), size, _ROWS,
             DTYPE=dtype_of(real))  # fmt: skip
        matrices += tables
    return tuple(matrices)


def backward(*inputs: Any) -> tuple[Tensor, ...]:
    """Gradients of ``a``, ``b``, ``c`` and ``d``."""
    a, b, c, d, sizes, _, *grads = inputs
    a, b, c = map(dense, (a, b, c))
    total: list[Tensor] = []
    for i, size in enumerate(sizes):
        of_tables = [dense(g) for g in grads[4 * i : 4 * i + 4]]
        gradients = [torch.empty_like(x) for x in (a, b, c)]
        programs = a.shape[0] * -(-a.shape[1] // _block(a))
        _run(_kernels().run_backward, programs, (a, b, c, *of_tables, *gradients), size, _ROWS_BACK)
        gradients.append(of_tables[0][:, 0].to(d.dtype))
        total = [x + y for x, y in zip(total, gradients, strict=True)] if total else gradients
    return tuple(total)


def _block(a: Tensor) -> int:
    return min(_MODES, gpu.power_of_two(a.shape[1]))


def _run(kernel: Any, programs: int, tensors: Any, size: int, rows: int, **options: Any) -> None:
    a = tensors[0]
    if not a.numel():
        return
    with torch.cuda.device_of(a):
        launch(
            kernel, programs, *tensors, size, a.shape[1], PAIR=a.is_complex(), **options,
            DIGITS=size.bit_length(), ROWS=rows, BLOCK=_block(a), num_warps=1,
        )  # fmt: skip


@functools.cache
def _kernels() -> ModuleType:
    """Triton is imported by the first call that runs on it."""
    return importlib.import_module("linrnn.ops.conv._siso_tables_triton_kernels")
