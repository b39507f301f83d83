"""`log_decays` and `log_sigmoid` by the native kernel ``src/native/kernels/log_decays.cpp``."""

from collections.abc import Sequence

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import accumulator_of, dense

_DECAYS = native.Kernel(
    "log_decays", "rows channels sigmoid limit scale x x_dtype base g backward parts grad_x sums"
)


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot compute on that device and dtype, or None."""
    return native.unavailable(device, dtype, real=True, kernel="log_decays")


def forward(x: Tensor, base: Tensor, limit: float) -> tuple[Tensor]:
    """The logarithms."""
    return (logarithms(x, base, False, limit, 1),)


def backward(x: Tensor, base: Tensor, limit: float, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of ``x`` and ``base``."""
    grad_x, sums = gradients(x, base, grad, False, limit, 1)
    return grad_x, sums.sum(0).to(base.dtype)


def logarithms(x: Tensor, base: Tensor | None, *settings: float) -> Tensor:
    """Results of the kernel; ``settings`` are its ``sigmoid``, ``limit`` and ``scale``."""
    g = torch.empty(x.shape, dtype=accumulator_of(x, base), device="cpu")
    _run(x, base, settings, g, False, 0, 0, 0)
    return g


def gradients(
    x: Tensor, base: Tensor | None, grad: Tensor, *settings: float
) -> tuple[Tensor, Tensor]:
    """The gradient of ``x``, and sums in float64 that make that of ``base``, (parts, channels)."""
    grad_x = torch.empty(x.shape, dtype=x.dtype, device="cpu")
    channels = _channels(x, base)
    parts = native.parts_of(x.numel() // max(1, channels) // 32)
    sums = torch.zeros(parts, channels, dtype=torch.float64, device="cpu")
    _run(x, base, settings, dense(grad), True, parts, grad_x.data_ptr(), sums.data_ptr())
    return grad_x, sums


def _channels(x: Tensor, base: Tensor | None) -> int:
    return x.shape[-1] if base is None else base.numel()


def _run(x: Tensor, base: Tensor | None, settings: Sequence[float], g: Tensor, *ends: int) -> None:
    computed, channels = accumulator_of(x, base), _channels(x, base)
    if not x.numel():
        return
    x, base = dense(x), None if base is None else dense(base.to(computed))
    places = x.data_ptr(), native.DTYPES[x.dtype], native.pointer(base), g.data_ptr()
    _DECAYS(computed, x.numel() // channels, channels, *settings, *places, *ends)
