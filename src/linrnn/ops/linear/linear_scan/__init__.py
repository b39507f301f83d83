"""`linear_scan`: check the arguments, pick a backend, compute, differentiate."""

from math import prod
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
from linrnn.compute.layout import accumulator_dtype
from linrnn.compute.sequence_parallel import IN_PIECES, current, refuse
from linrnn.errors import DTypeError, ShapeError, check_shape
from linrnn.ops.linear.linear_scan.inverse import backward_in_time, note, watching
from linrnn.ops.linear.linear_scan.op import linear
from linrnn.typing import CuSeqlens, Inexact, ResetMask

_STEP_DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def linear_scan(
    a: Inexact[Tensor, "..."],
    b: Inexact[Tensor, "batch time *channels"],
    initial_state: Inexact[Tensor, "seqs *channels"] | None = None,
    *,
    reset: ResetMask | None = None,
    cu_seqlens: CuSeqlens | None = None,
    reverse: bool = False,
    backend: str | None = None,
) -> tuple[Inexact[Tensor, "batch time *channels"], Inexact[Tensor, "seqs *channels"]]:
    r"""Solve the diagonal linear recurrence along time.

    Equation::

        h_t = a_t * h_{t-1} + b_t        t = 0 .. T-1,  h_{-1} = initial_state (0 if None)

    elementwise over any channel axes, real or complex.

    Args:
        a: decay, dimensionless, of the shape of ``b`` (axes of size 1 broadcast), or constant in
            time with the channel axes alone: ``b.shape[2:]``.
        b: input of shape (batch, time, *channels). float16, bfloat16, float32, float64,
            complex64 or complex128; ``a`` and ``b`` are promoted to a common dtype.
        initial_state: state before the first step, (batch, *channels); one row for each packed
            sequence when ``cu_seqlens`` is given.
        reset: boolean (batch, time); True clears the state before that step, so ``h_t = b_t``.
        cu_seqlens: offsets ``[0, n_0, n_0 + n_1, ..., time]`` of sequences packed one after the
            other into a single row (batch must be 1); each starts from its own initial state.
        reverse: run from the last step to the first: ``h_t = a_t * h_{t+1} + b_t``, the initial
            state enters at the last step and the final state is ``h_0``.
        backend: ``reference``, ``tree``, ``cpu``, ``triton``; None takes what `use_backend` or
            ``LINRNN_BACKEND`` asks for, else the fastest that supports the call. One step
            from an initial state is a single `torch.addcmul` unless this argument is given.

    Inside of `linrnn.ops.sequence_parallel` ``b`` is this process's piece of the sequence.

    Returns:
        ``(h, final_state)``: every state, in the dtype and shape of ``b``; and the last one,
        (batch, *channels), or (sequences, *channels) when packed. float16 and bfloat16 inputs are
        accumulated, and the final state returned, in float32. Gradients flow to ``a``, ``b`` and
        ``initial_state`` from both results, to any order.

    Raises:
        ShapeError: shapes that do not fit together.
        DTypeError: integers, booleans, or a complex state for a real recurrence.
        DeviceError: tensors on different devices.
        ArgumentError: ``cu_seqlens`` that do not rise from 0 to ``time``.
        BackendError: the requested backend cannot compute this call.

    Example:
        >>> import torch
        >>> from linrnn.ops import linear_scan
        >>> b = torch.tensor([[[1.0], [1.0], [1.0]]])       # (batch=1, time=3, channels=1)
        >>> h, final = linear_scan(torch.tensor([0.5]), b)
        >>> h.flatten(), final
        (tensor([1.0000, 1.5000, 1.7500]), tensor([[1.7500]]))

    Reference:
        The parallel form: G. E. Blelloch, "Prefix sums and their applications", 1990; the adjoint
        is the same recurrence backward in time (Martin and Cundy 2018, arXiv:1709.04057).
    """
    if (group := current()) is not None:
        if cu_seqlens is not None:
            refuse("linear_scan", "cu_seqlens must be None", "Mark the begins with reset.")
        marks: Any = {"reset": reset, "reverse": reverse, "backend": backend}
        in_pieces = IN_PIECES["linear_scan"]
        h, final = in_pieces(a, b, initial_state, group=group[0], **marks)
        return h, final
    if initial_state is not None and (watch := watching()) is not None:
        if watch.backward:
            return backward_in_time(local_scan, a, b, initial_state)
        note(watch, a, b.shape[1], b.ndim - 2, reset)
    return local_scan(a, b, initial_state, reset, cu_seqlens, reverse, backend)


def local_scan(
    a: Tensor,
    b: Tensor,
    initial_state: Tensor | None = None,
    reset: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    reverse: bool = False,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """`linear_scan` of what this process holds, wherever it is called."""
    unmarked = reset is None and cu_seqlens is None and backend is None
    if unmarked and initial_state is not None and _is_plain_step(a, b, initial_state):
        h = torch.addcmul(b, a, initial_state.unsqueeze(1))  # (B, 1, *channels), cheap
        return h, h.squeeze(1).clone()  # (B, 1, *channels), (B, *channels)
    check_flags("linear_scan", reverse=reverse)
    a, b, initial_state = check_arguments("linear_scan", a, b, initial_state, reset, cu_seqlens)
    streams = b.shape[1] == 1 and cu_seqlens is None
    if streams and initial_state is not None and backend is None:
        return _one_step(a, b, initial_state, reset)
    arguments = flat_channels(a, b, initial_state)
    h, final = linear(*arguments, reset, cu_seqlens, reverse, backend=backend)
    return unflat_channels(h, final, b.shape)


def _is_plain_step(a: Tensor, b: Tensor, initial_state: Tensor) -> bool:
    """One step whose arguments need neither promotion nor a complaint."""
    if not (
        isinstance(a, Tensor)
        and isinstance(b, Tensor)
        and isinstance(initial_state, Tensor)
        and b.layout is a.layout is initial_state.layout is torch.strided
        and not (a.is_nested or b.is_nested or initial_state.is_nested)
        and initial_state.ndim
        and initial_state.unsqueeze(1).shape == b.shape
    ):
        return False
    dtype, device = b.dtype, b.device
    return (
        a.dtype is dtype
        and initial_state.dtype is dtype
        and dtype in _STEP_DTYPES
        and a.device == device
        and initial_state.device == device
        and (a.shape == b.shape or a.shape == b.shape[2:])
    )


def _one_step(
    a: Tensor, b: Tensor, initial_state: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A single step needs no kernel: streaming one token at a time costs half as much without."""
    if reset is not None:
        cleared = reset.reshape(b.shape[0], *[1] * (initial_state.ndim - 1))  # (B, 1, ...)
        initial_state = torch.where(cleared, 0, initial_state)
    decay = a.squeeze(1) if a.ndim == b.ndim else a  # (*channels,) or (B, *channels)
    # (B, *channels)
    state = torch.addcmul(b.squeeze(1).to(initial_state.dtype), decay, initial_state)
    return state.unsqueeze(1).to(b.dtype, copy=True), state  # (B, 1, *channels), (B, *channels)


def flat_channels(
    a: Tensor, b: Tensor, initial_state: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Checked arguments with one channel axis, which is what the kernels know."""
    batch, time, *channels = b.shape
    if len(channels) == 1:
        return a, b, initial_state
    width = prod(channels)
    # (C,) or (B, T, C)
    a = a.reshape((width,) if a.ndim == len(channels) else (batch, time, width))
    if initial_state is not None:
        initial_state = initial_state.reshape(initial_state.shape[0], width)  # (S, C)
    return a, b.reshape(batch, time, width), initial_state  # b: (B, T, C)


def unflat_channels(h: Tensor, final: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Results with the channel axes of the input's ``shape`` again."""
    if len(shape) == 3:
        return h, final
    # (B, T, *channels), (B, *channels)
    return h.reshape(shape), final.reshape(final.shape[0], *shape[2:])


def check_arguments(
    where: str,
    a: Tensor,
    b: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Check every argument against ``b``; promote ``a``, ``b`` and the state to one dtype."""
    check_numbers(where, {"a": a, "b": b}, initial_state=initial_state)
    if b.ndim < 2:
        raise ShapeError(
            f"{where}: b must have shape (batch, time, *channels), got {tuple(b.shape)}. "
            "Add the batch axis with b[None]."
        )
    if a.ndim == b.ndim - 2:
        fits = a.shape == b.shape[2:]
    else:
        fits = a.ndim == b.ndim and all(m in (1, n) for m, n in zip(a.shape, b.shape, strict=True))
    if not fits:
        raise ShapeError(
            f"{where}: a must have the shape of b {tuple(b.shape)}, or, constant in time, "
            f"its channel axes {tuple(b.shape[2:])}, got {tuple(a.shape)}."
        )
    batch, time, *channels = b.shape
    seqs = check_packed(where, "b", b, cu_seqlens)
    if initial_state is not None:
        axes = {"sequences" if cu_seqlens is not None else "batch": seqs}
        axes |= {f"channels{i}": n for i, n in enumerate(channels)}
        check_shape(where, "initial_state", initial_state.shape, axes)
    check_reset(where, reset, batch, time)
    check_device(where, "b", b.device, a=a, initial_state=initial_state, reset=reset)
    dtype = torch.promote_types(a.dtype, b.dtype)
    if initial_state is not None:
        if initial_state.is_complex() and not dtype.is_complex:
            raise DTypeError(
                f"{where}: initial_state must be real like a and b, got {initial_state.dtype}. "
                "Make b complex, or pass initial_state.real."
            )
        initial_state = initial_state.to(accumulator_dtype(dtype))
    if a.ndim == b.ndim and a.shape != b.shape:
        a = a.expand(b.shape)  # (B, T, *channels)
    return a.to(dtype), b.to(dtype), initial_state
