"""`linear_scan` by the native kernels in ``src/native/kernels/scan.cpp``."""

import torch
from torch import Tensor

from linrnn.ops import _native
from linrnn.ops._layout import (
    checked_offsets,
    dense,
    empty_results,
    n_sequences,
    unit_channels,
)
from linrnn.ops._native import array, pointer

_FIELDS = (
    "reverse backward constant seqs time channels offsets a b h reset "
    "initial final grad_a grad_b grad_initial"
)
_SCAN, LOG_SCAN = _native.Kernel("scan", _FIELDS), _native.Kernel("log_scan", _FIELDS)


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return _native.unavailable(device, dtype)


def forward(
    a: Tensor,
    b: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """``h_t = a_t * h_{t-1} + b_t``."""
    a, b, initial_state, cu_seqlens = _prepare(a, b, initial_state, cu_seqlens)
    h, final = empty_results(b, cu_seqlens)
    _run(a, b, h, reset, cu_seqlens, reverse, (pointer(initial_state), final.data_ptr(), 0, 0, 0))
    return h, final


def backward(
    a: Tensor,
    b: None,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
    h: Tensor,
    grad_h: Tensor,
    grad_final: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The adjoint in one pass over ``a``, ``h`` and ``grad_h``."""
    a, grad_h, initial_state, cu_seqlens = _prepare(a, grad_h, initial_state, cu_seqlens)
    h, grad_final = unit_channels(h), dense(grad_final)
    grad_a = torch.empty_like(a, memory_format=torch.contiguous_format)
    grad_b = torch.empty_like(h, memory_format=torch.contiguous_format)
    grad_initial = torch.empty_like(grad_final)
    outputs = (grad_a.data_ptr(), grad_b.data_ptr(), grad_initial.data_ptr())
    states = (pointer(initial_state), grad_final.data_ptr(), *outputs)
    _run(a, grad_h, h, reset, cu_seqlens, reverse, states, backward=True)
    return grad_a, grad_b, grad_initial


def _run(
    a: Tensor,
    b: Tensor,
    h: Tensor,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
    states: tuple[int, int, int, int, int],
    *,
    backward: bool = False,
    kernel: _native.Kernel = _SCAN,
) -> None:
    _, time, channels = h.shape
    constant = a.ndim == 1
    kernel(
        h.dtype,
        reverse,
        backward,
        constant,
        n_sequences(h, cu_seqlens),
        time,
        channels,
        pointer(cu_seqlens),
        *((a.data_ptr(), 0, 0) if constant else array(a)),
        *array(b),
        *array(h),
        *array(reset),
        *states,
    )


def _prepare(
    a: Tensor, b: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Inputs as the kernel reads them: any batch and time strides, channels side by side."""
    if initial_state is not None:
        initial_state = dense(initial_state)
    cu_seqlens = checked_offsets("linear_scan", cu_seqlens, b.shape[1])
    return unit_channels(a), unit_channels(b), initial_state, cu_seqlens
