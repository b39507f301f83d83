"""`gated_scan` by the native kernels in ``src/native/kernels/gated_scan.cpp``."""

import struct

import torch
from torch import Tensor

from linrnn.ops import _native
from linrnn.ops._layout import accumulator_dtype, dense, unit_channels
from linrnn.ops._native import DTYPES, pointer

# the fields of GatedArgs, in order
_RECORD = struct.Struct("=26qd")
_LINE = 32  # channels a thread works on at least
_PASSES = 8  # over memory, that the composition of PyTorch's operators makes for our one


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return _native.unavailable(device, dtype, real=True)


def declines(x: Tensor, *rest: object) -> str | None:
    """Why operators are faster.

    The kernel shares sequences and channels between threads but not time: where these keep less
    than one thread in eight busy, operators that do share time are faster, for all their passes.
    """
    units = len(x) * -(-x.shape[-1] // _LINE)
    if _native.threads() <= _PASSES * units:
        return None
    return "there are too few sequences and channels for the threads to share"


def forward(
    x: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    positive: bool,
    normalise: bool,
    start: float,
) -> tuple[Tensor, Tensor]:
    """``(h, final_state)`` in one pass over the pre-activations."""
    x = unit_channels(x)
    batch, time, _, channels = x.shape
    h = torch.empty((batch, time, channels), dtype=x.dtype)
    final = torch.empty((batch, channels), dtype=accumulator_dtype(x.dtype))
    if initial_state is not None:
        initial_state = dense(initial_state)
    states = (pointer(initial_state), final.data_ptr(), 0, 0)
    _run(x, h, None, reset, (positive, normalise, start), states)
    return h, final


def backward(
    x: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    positive: bool,
    normalise: bool,
    start: float,
    h: Tensor,
    grad_h: Tensor,
    grad_final: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of ``(x, initial_state)`` in one pass over ``x``, ``h`` and ``grad_h``."""
    x, h, grad_h = unit_channels(x), unit_channels(h), unit_channels(grad_h)
    grad_final = dense(grad_final)
    grad_x = torch.empty(x.shape, dtype=x.dtype)
    grad_initial = torch.empty_like(grad_final)
    if initial_state is not None:
        initial_state = dense(initial_state)
    states = (
        pointer(initial_state),
        grad_final.data_ptr(),
        grad_x.data_ptr(),
        grad_initial.data_ptr(),
    )
    _run(x, h, grad_h, reset, (positive, normalise, start), states)
    return grad_x, grad_initial


def _run(
    x: Tensor,
    h: Tensor,
    grad_h: Tensor | None,
    reset: Tensor | None,
    kind: tuple[bool, bool, float],
    states: tuple[int, int, int, int],
) -> None:
    batch, time, parts, channels = x.shape
    positive, normalise, start = kind
    sequence, step, part, _ = x.stride()
    record = _RECORD.pack(
        _RECORD.size,
        DTYPES[x.dtype],
        _native.threads(),
        grad_h is not None,
        0 if parts == 2 else 1 if normalise else 2,
        positive,
        batch,
        time,
        channels,
        x.data_ptr(),
        sequence,
        step,
        part,
        h.data_ptr(),
        *h.stride()[:2],
        *((0, 0, 0) if grad_h is None else (grad_h.data_ptr(), *grad_h.stride()[:2])),
        *((0, 0, 0) if reset is None else (reset.data_ptr(), *reset.stride())),
        *states,
        start,
    )
    _native.run("gated_scan", record)
