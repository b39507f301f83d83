"""The Cauchy product by the native kernel ``src/native/kernels/cauchy.cpp``."""

from typing import Any

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import dense
from linrnn.compute.native import pointer

_CAUCHY = native.Kernel(
    "cauchy",
    "rows channels modes nodes beta alpha radius real sine cosine re im "
    "backward grad_beta grad_alpha grad_radius grad_real",
)


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot compute on that device and dtype, or None."""
    return native.unavailable(device, dtype, real=True, kernel="cauchy")


def forward(*arguments: Tensor) -> tuple[Tensor, ...]:
    """Real and imaginary part of the sums (rows, channels, nodes)."""
    beta, angle = arguments[0], arguments[4]
    sums = tuple(beta.new_empty((*beta.shape[:2], len(angle))) for _ in range(2))
    _run([dense(x) for x in arguments], sums, False, 0, 0, 0, 0)
    return sums


def backward(*inputs: Tensor) -> tuple[Tensor, ...]:
    """Gradients of ``beta``, ``alpha``, ``radius`` and ``real``."""
    arguments, grads = [dense(x) for x in inputs[:5]], [dense(g) for g in inputs[5:]]
    gradients = tuple(torch.empty_like(x) for x in arguments[:4])
    _run(arguments, grads, True, *map(pointer, gradients))
    return gradients


def _run(arguments: Any, results: Any, *gradients: int) -> None:
    *numbers, angle = arguments
    half = 0.5 * angle
    tensors = *numbers, half.sin(), half.cos(), *results
    _CAUCHY(numbers[0].dtype, *numbers[0].shape, len(angle), *map(pointer, tensors), *gradients)
