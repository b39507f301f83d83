"""The recurrence with constant decay, solved as a causal convolution by FFT."""

import functools
from typing import Any

import torch
from torch import Tensor

from linrnn.compute.arguments import (
    check_device,
    check_flags,
    check_numbers,
    check_packed,
    check_reset,
)
from linrnn.compute.layout import Ends, clear_first, ends, mirrored, n_sequences
from linrnn.compute.op import Op
from linrnn.errors import DTypeError, check_shape
from linrnn.ops.conv._fft import causal_product, cuts, piecewise
from linrnn.ops.linear.loop import LINEAR, loop
from linrnn.typing import CuSeqlens, Inexact, ResetMask


def fft_scan(
    a: Inexact[Tensor, " channels"],
    b: Inexact[Tensor, "batch time channels"],
    initial_state: Inexact[Tensor, "seqs channels"] | None = None,
    *,
    reset: ResetMask | None = None,
    cu_seqlens: CuSeqlens | None = None,
    reverse: bool = False,
    backend: str | None = None,
) -> tuple[Inexact[Tensor, "batch time channels"], Inexact[Tensor, "seqs channels"]]:
    r"""Solve ``h_t = a h_{t-1} + b_t`` with constant ``a`` as a causal convolution.

    Equation::

        h_t = a^{t+1} h_{-1} + sum_{s <= t} a^{t-s} b_s

    computed with FFTs of about 2 T: O(T log T), and absolute rather than relative accuracy, since
    the rounding error of an FFT is spread evenly over its outputs. So a huge input changes what
    comes before it in its row and channel: by up to 3 roundings of the largest number there, as
    measured from 19 to 16,384 steps. NaN, infinity or an overflow make it NaN. `linear_scan`
    is faster and more accurate; this is the independent second opinion. What resets and
    ``cu_seqlens`` cut apart is convolved apart, those of about one length together.

    Args:
        a: decay (channels,), real or complex, ``|a| <= 1`` or its powers overflow.
        b: input (batch, time, channels).
        initial_state: (batch, channels), one row for each packed sequence, zeros if None.
        reset, cu_seqlens, reverse: as in `linear_scan`.
        backend: all are the same, PyTorch's FFT.

    Returns:
        ``(h, final_state)`` as `linear_scan` does.

    Raises:
        ShapeError: shapes that do not fit together.
        DTypeError: other numbers than float32, float64, complex64 and complex128.
        DeviceError: tensors on different devices.
        ArgumentError: ``cu_seqlens`` that do not rise from 0 to ``time``.

    Example:
        >>> import torch
        >>> h, _ = fft_scan(torch.tensor([0.5]), torch.ones(1, 3, 1))
        >>> h.flatten()
        tensor([1.0000, 1.5000, 1.7500])
    """
    _check(a, b, initial_state, reset, cu_seqlens)
    check_flags("fft_scan", reverse=reverse)
    h, final = _OP(a, b, initial_state, reset, cu_seqlens, reverse, backend=backend)
    return h, final


def _shapes(a: Tensor, b: Tensor, *remaining: Any) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(a.dtype, b.dtype)
    seqs = n_sequences(b, remaining[2])
    return b.new_empty(b.shape, dtype=dtype), b.new_empty((seqs, b.shape[2]), dtype=dtype)


def _definition(
    a: Tensor,
    b: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
    *,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    if initial_state is None:
        initial_state = b.new_zeros(n_sequences(b, cu_seqlens), b.shape[2])
    a, b, state = _common(a, b, initial_state)
    if b.numel() == 0:
        return b.clone(), state.clone()
    if reset is not None and torch._C._functorch.is_batchedtensor(reset):
        # where the pieces lie is another matter for each call
        return loop(LINEAR, a, b, state, reset, cu_seqlens, reverse)
    if reverse:
        b, state, reset, cu_seqlens = mirrored(b, state, reset, cu_seqlens)
    if reset is None and cu_seqlens is None:
        h = _convolve(a, b, state)
        final = h[:, -1]
    else:
        edge = ends(b, cu_seqlens)
        h = _piecewise(a, b, state, reset, edge)
        final = state.index_put((edge.kept,), h[edge.row, edge.last])
    if not reverse:
        return h, final
    return h.flip(1), final if cu_seqlens is None else final.flip(0)


def _common(*tensors: Tensor) -> list[Tensor]:
    dtype = functools.reduce(torch.promote_types, [x.dtype for x in tensors])
    return [x.to(dtype) for x in tensors]


def _piecewise(a: Tensor, b: Tensor, state: Tensor, reset: Tensor | None, edge: Ends) -> Tensor:
    """All states, where a piece begins with each sequence, from its state, and at each reset."""
    start = cuts(b, reset, edge)
    first = torch.searchsorted(start, edge.row * b.shape[1] + edge.first)
    entering = clear_first(state[edge.kept], reset, edge)
    states = b.new_zeros(start.shape[0], b.shape[2]).index_put((first,), entering)
    return piecewise(b, start, lambda inputs, indices: _convolve(a, inputs, states[indices]))


def _convolve(a: Tensor, b: Tensor, initial_state: Tensor) -> Tensor:
    powers = _powers(a, b.shape[1])  # (T, C): a^0 .. a^{T-1}
    return causal_product(b, powers.t()) + (a * powers) * initial_state[:, None]


def _check(
    a: Tensor,
    b: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
) -> None:
    """Raise unless the arguments fit together."""
    where = "fft_scan"
    check_numbers(where, {"a": a, "b": b}, initial_state=initial_state)
    for name, x in (("a", a), ("b", b), ("initial_state", initial_state)):
        if x is not None and x.dtype in (torch.float16, torch.bfloat16):
            raise DTypeError(
                f"{where}: {name} must have at least 32 bits a number, got {x.dtype}. "
                f"Convert it with {name}.float()."
            )
    check_shape(where, "b", b.shape, {"batch": None, "time": None, "channels": None})
    batch, time, channels = b.shape
    seqs = check_packed(where, "b", b, cu_seqlens)
    check_shape(where, "a", a.shape, {"channels": channels})
    if initial_state is not None:
        rows = "batch" if cu_seqlens is None else "sequences"
        axes: dict[str, int | None] = {rows: seqs, "channels": channels}
        check_shape(where, "initial_state", initial_state.shape, axes)
        if initial_state.is_complex() and not (a.is_complex() or b.is_complex()):
            raise DTypeError(
                f"{where}: initial_state must be real like a and b, got {initial_state.dtype}. "
                "Make b complex, or pass initial_state.real."
            )
    check_reset(where, reset, batch, time)
    check_device(where, "b", b.device, a=a, initial_state=initial_state, reset=reset)


def _powers(a: Tensor, time: int) -> Tensor:
    """``a^0 .. a^{time-1}``, each from its binary digits in double precision."""
    base = a.to(torch.complex128 if a.is_complex() else torch.float64)
    powers, square = torch.ones_like(base)[None], base
    while len(powers) < time:
        powers, square = torch.cat([powers, powers * square]), square * square  # (2 n, ...)
    return powers[:time].to(a.dtype)


_OP = Op(
    "fft_scan",
    "Tensor a, Tensor b, Tensor? initial_state, Tensor? reset, Tensor? cu_seqlens, bool reverse",
    gradients=3,
    results=2,
    definition=_definition,
    shapes=_shapes,
    kernels={},
    opaque=True,
    lead=1,
)
