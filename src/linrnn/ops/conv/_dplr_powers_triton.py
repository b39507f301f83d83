"""The powers of S4's transition by the Triton kernels in ``_dplr_powers_triton_kernels.py``."""

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

#: Numbers of a program's tile, in double precision, and those that a warp has beside as many of a
#: gradient. Forward it has twice as many, and loads 128 bits a thread.
_TILE, _WARP = 2048, 512


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    if dtype != torch.complex128:
        return f"it has no kernel for {dtype}"
    return gpu.unavailable(device, dtype)


def forward(*arguments: Any, keep: bool) -> tuple[Tensor, ...]:
    """`linrnn.ops.conv._dplr_powers.Matrices`, and with ``keep`` all walks."""
    *system, steps, rest, dtype = arguments
    system = [dense(x) for x in system]
    (channels, modes), rank, device = system[0].shape, system[3].shape[1], system[0].device
    numbers, blocks = 2 * modes, gpu.power_of_two(modes)
    walks = torch.empty(
        (channels, 3, steps + 1, rank + 1, numbers), dtype=torch.float64, device=device
    )
    shapes: list[tuple[int, ...]] = [(channels, steps)]
    shapes += [(channels, steps, numbers)] * 2 + [(channels, numbers, numbers)]
    shapes.append(shapes[-1] if rest else (0,))
    matrices = tuple(torch.empty(shape, dtype=dtype, device=device) for shape in shapes)
    response, into, out, decay, rest_decay = matrices
    options: Any = {"RANK": rank, "DTYPE": dtype_of(dtype)}
    tile = _rows(2 * blocks, numbers)
    programs = channels * -(-numbers // tile) * (2 if rest else 1)
    if channels * modes:
        with torch.cuda.device_of(walks):
            launch(
                _kernels().run_walks, 3 * channels, *system, walks, response, into, out, steps,
                modes, **options, ROWS=gpu.power_of_two(rank + 1), BLOCK=blocks, num_warps=1,
            )  # fmt: skip
            launch(
                _kernels().run_dense_powers, programs, walks, decay, rest_decay, steps, rest,
                numbers, **options, ROWS=tile, BLOCK=2 * blocks, num_warps=_warps(tile * blocks),
            )  # fmt: skip
    return (*matrices, walks) if keep else matrices


def backward(*inputs: Any) -> tuple[Tensor, ...]:
    """Gradients of ``a``, ``b``, ``c``, ``p`` and ``q``."""
    *system, steps, rest, _, walks = inputs[:9]
    system, grads = [dense(x) for x in system], [dense(g) for g in inputs[9:]]
    (channels, modes), rank = system[0].shape, system[3].shape[1]
    numbers, blocks = 2 * modes, gpu.power_of_two(modes)
    of_walks = walks.new_empty(channels, 2, rank, steps, numbers)
    gradients = tuple(torch.empty_like(x) for x in system)
    if not channels * modes:
        return gradients
    tile = _rows(2 * blocks, steps)
    with torch.cuda.device_of(walks):
        launch(
            _kernels().run_dense_powers_backward, channels * -(-steps // tile) * 2 * rank, walks,
            *grads[3:], of_walks, steps, rest, numbers, RANK=rank, ROWS=tile, BLOCK=2 * blocks,
            num_warps=_warps(2 * tile * blocks),
        )  # fmt: skip
        launch(
            _kernels().run_walks_backward, channels, *system, walks, of_walks, *grads, *gradients,
            steps, rest, modes, RANK=rank, ROWS=gpu.power_of_two(rank + 1), BLOCK=blocks,
            num_warps=1,
        )  # fmt: skip
    return gradients


def _rows(width: int, most: int) -> int:
    """Rows of a tile that is as wide as a matrix."""
    return max(1, min(_TILE // width, gpu.power_of_two(most)))


def _warps(numbers: int) -> int:
    return max(1, min(8, numbers // _WARP))


@functools.cache
def _kernels() -> ModuleType:
    """Triton is imported by the first call that runs on it."""
    return importlib.import_module("linrnn.ops.conv._dplr_powers_triton_kernels")
