"""Causal convolution by FFT, and the constant diagonal recurrence solved with it."""

import torch
from torch import Tensor

from linrnn.errors import DTypeError, check_shape
from linrnn.ops._arguments import check_device, check_numbers
from linrnn.ops._opaque import opaque
from linrnn.typing import Inexact


def fft_scan(
    a: Inexact[Tensor, " channels"],
    b: Inexact[Tensor, "batch time channels"],
    initial_state: Inexact[Tensor, "batch channels"] | None = None,
) -> tuple[Inexact[Tensor, "batch time channels"], Inexact[Tensor, "batch channels"]]:
    r"""Solve ``h_t = a h_{t-1} + b_t`` with constant ``a`` as a causal convolution.

    Equation::

        h_t = a^{t+1} h_{-1} + sum_{s <= t} a^{t-s} b_s

    computed with FFTs of length 2 T: O(T log T), and absolute rather than relative accuracy, since
    the rounding error of an FFT is spread evenly over its outputs. So a huge input changes what
    comes before it in its row and channel: by up to 3 roundings of the largest number there, as
    measured from 19 to 16,384 steps. NaN, infinity or an overflow make it NaN. `linear_scan`
    is faster and more accurate; this is the independent second opinion.

    Args:
        a: decay (channels,), real or complex, ``|a| <= 1`` or its powers overflow.
        b: input (batch, time, channels).
        initial_state: (batch, channels), zeros if None.

    Returns:
        ``(h, final_state)`` as `linear_scan` does.

    Raises:
        ShapeError: shapes that do not fit together.
        DTypeError: other numbers than float32, float64, complex64 and complex128.
        DeviceError: tensors on different devices.

    Example:
        >>> import torch
        >>> h, _ = fft_scan(torch.tensor([0.5]), torch.ones(1, 3, 1))
        >>> h.flatten()
        tensor([1.0000, 1.5000, 1.7500])
    """
    batch, channels = _check(a, b, initial_state)
    if initial_state is None:
        initial_state = b.new_zeros(batch, channels)
    if b.numel() == 0:
        dtype = torch.promote_types(a.dtype, b.dtype)
        return b.to(dtype, copy=True), initial_state.to(dtype, copy=True)
    return _convolve(a, b, initial_state)


def _shapes(a: Tensor, b: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), initial_state.dtype)
    return b.new_empty(b.shape, dtype=dtype), b.new_empty(initial_state.shape, dtype=dtype)


@opaque("fft_scan", "Tensor a, Tensor b, Tensor initial_state", _shapes)
def _convolve(a: Tensor, b: Tensor, initial_state: Tensor) -> tuple[Tensor, Tensor]:
    time = b.shape[1]
    powers = _powers(a, time)  # (T, C): a^0 .. a^{T-1}
    h = torch.fft.ifft(torch.fft.fft(b, 2 * time, 1) * torch.fft.fft(powers, 2 * time, 0), dim=1)
    h = h[:, :time] if b.is_complex() or a.is_complex() else h[:, :time].real
    h = h + (a * powers) * initial_state[:, None]
    return h, h[:, -1]


def _check(a: Tensor, b: Tensor, initial_state: Tensor | None) -> tuple[int, int]:
    """Raise unless the arguments fit together; batch and channels of ``b``."""
    where = "fft_scan"
    check_numbers(where, {"a": a, "b": b}, initial_state=initial_state)
    for name, x in (("a", a), ("b", b), ("initial_state", initial_state)):
        if x is not None and x.dtype in (torch.float16, torch.bfloat16):
            raise DTypeError(
                f"{where}: {name} must have at least 32 bits a number, got {x.dtype}. "
                f"Convert it with {name}.float()."
            )
    check_shape(where, "b", b.shape, {"batch": None, "time": None, "channels": None})
    batch, _, channels = b.shape
    check_shape(where, "a", a.shape, {"channels": channels})
    if initial_state is not None:
        axes: dict[str, int | None] = {"batch": batch, "channels": channels}
        check_shape(where, "initial_state", initial_state.shape, axes)
        if initial_state.is_complex() and not (a.is_complex() or b.is_complex()):
            raise DTypeError(
                f"{where}: initial_state must be real like a and b, got {initial_state.dtype}. "
                "Make b complex, or pass initial_state.real."
            )
    check_device(where, "b", b.device, a=a, initial_state=initial_state)
    return batch, channels


def _powers(a: Tensor, time: int) -> Tensor:
    """``a^0 .. a^{time-1}``, each from its binary digits in double precision."""
    wide = a.to(torch.complex128 if a.is_complex() else torch.float64)
    powers, square = torch.ones_like(wide)[None], wide
    while len(powers) < time:
        powers, square = torch.cat([powers, powers * square]), square * square
    return powers[:time].to(a.dtype)
