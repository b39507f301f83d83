"""`gated_scan` by the native kernels in ``src/native/kernels/gated_scan.cpp``."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import (
    accumulator_dtype,
    checked_offsets,
    dense,
    n_sequences,
    unit_channels,
)
from linrnn.compute.native import array, pointer

_SCAN = native.Kernel(
    "gated_scan",
    "reverse backward gate positive seqs time channels offsets x x_part h reset initial start "
    "final grad_h grad_x grad_initial",
)
_LINE = 32  # channels a thread works on at least; not measured
# Passes over memory that the composition of PyTorch's operators makes for our one: counted, and not
# measured on a machine with that many threads.
_PASSES = 8


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return native.unavailable(device, dtype, real=True)


def declines(x: Tensor, *remaining: Any) -> str | None:
    """Why operators are faster.

    The kernel shares sequences and channels between threads but not time: where these keep less
    than one thread in eight busy, operators that do share time are faster, for all their passes.
    """
    units = n_sequences(x, remaining[2]) * -(-x.shape[-1] // _LINE)
    if native.threads() <= _PASSES * units:
        return None
    return "there are too few sequences and channels for the threads to share"


def forward(
    x: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    *options: Any,
) -> tuple[Tensor, Tensor]:
    """``(h, final_state)`` in one pass over the pre-activations."""
    x = unit_channels(x)
    batch, time, _, channels = x.shape
    h = torch.empty((batch, time, channels), dtype=x.dtype, device="cpu")
    compute_dtype = accumulator_dtype(x.dtype)
    final = torch.empty((n_sequences(x, cu_seqlens), channels), dtype=compute_dtype, device="cpu")
    _run(x, h, initial_state, reset, cu_seqlens, options, (final.data_ptr(), 0, 0, 0, 0, 0, 0, 0))
    return h, final


def backward(
    x: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    *remaining: Any,
) -> tuple[Tensor, Tensor]:
    """Gradients of ``(x, initial_state)`` in one pass over ``x``, ``h`` and ``grad_h``."""
    *options, h, grad_h, grad_final = remaining
    x, h, grad_h = unit_channels(x), unit_channels(h), unit_channels(grad_h)
    grad_final = dense(grad_final)
    grad_x = torch.empty(x.shape, dtype=x.dtype, device="cpu")
    grad_initial = torch.empty_like(grad_final)
    outputs = (grad_final.data_ptr(), *array(grad_h), *array(grad_x), grad_initial.data_ptr())
    _run(x, h, initial_state, reset, cu_seqlens, options, outputs, backward=True)
    return grad_x, grad_initial


def _run(
    x: Tensor,
    h: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    options: Sequence[Any],
    outputs: tuple[int, ...],
    *,
    backward: bool = False,
) -> None:
    _, time, parts, channels = x.shape
    positive, normalise, start, reverse = options
    initial_state = None if initial_state is None else dense(initial_state)
    cu_seqlens = checked_offsets("gated_scan", cu_seqlens, time)
    _SCAN(
        x.dtype,
        reverse,
        backward,
        0 if parts == 2 else 1 if normalise else 2,
        positive,
        n_sequences(x, cu_seqlens),
        time,
        channels,
        pointer(cu_seqlens),
        *array(x),
        x.stride(2),
        *array(h),
        *array(reset),
        pointer(initial_state),
        start,
        *outputs,
    )
