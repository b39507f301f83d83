"""The powers of S4's transition by the native kernel ``src/native/kernels/dplr_powers.cpp``."""

from typing import Any

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import dense
from linrnn.compute.native import pointer

_POWERS = native.Kernel(
    "dplr_powers",
    "channels modes rank steps rest a b c p q response into out decay rest_decay "
    "backward grad_a grad_b grad_c grad_p grad_q",
)
_NO_GRADIENTS = (False, 0, 0, 0, 0, 0)


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot compute on that device and dtype, or None."""
    return native.unavailable(device, dtype, kernel="dplr_powers")


def forward(*arguments: Any, keep: bool) -> tuple[Tensor, ...]:
    """`linrnn.ops.conv._dplr_powers.Matrices`; `backward` needs nothing else."""
    *system, size, remainder, dtype = arguments
    channels, columns = system[0].shape[0], 2 * system[0].shape[1]
    shapes: list[tuple[int, ...]] = [(channels, size)]
    shapes += [(channels, size, columns)] * 2 + [(channels, columns, columns)]
    shapes.append(shapes[-1] if remainder else (0,))
    matrices = tuple(torch.empty(shape, dtype=dtype, device="cpu") for shape in shapes)
    _run([dense(x) for x in system], size, remainder, matrices, *_NO_GRADIENTS)
    return (*matrices, matrices[0].new_empty(0)) if keep else matrices


def backward(*inputs: Any) -> tuple[Tensor, ...]:
    """Gradients of ``a``, ``b``, ``c``, ``p`` and ``q``."""
    *system, size, remainder, _, _ = inputs[:9]
    system = [dense(x) for x in system]
    gradients = tuple(torch.empty_like(x) for x in system)
    _run(system, size, remainder, [dense(g) for g in inputs[9:]], True, *map(pointer, gradients))
    return gradients


def _run(system: Any, size: int, remainder: int, matrices: Any, *gradients: int) -> None:
    channels, modes = system[0].shape
    sizes = channels, modes, system[3].shape[1], size, remainder
    addresses = map(pointer, (*system, *matrices))
    _POWERS(matrices[0].dtype, *sizes, *addresses, *gradients)
