"""The causal convolution by the native kernels in ``src/native/kernels/causal_conv.cpp``."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import (
    accumulator_dtype,
    aligned,
    checked_offsets,
    dense,
    n_sequences,
    unit_channels,
)
from linrnn.compute.native import array, pointer

_CONV = native.Kernel(
    "causal_conv",
    "reverse silu seqs time channels width offsets x reset x_channel y_channel past weight bias "
    "y backward rows grad_x grad_past sums",
)
#: Rows of partial sums over steps: their number bounds the memory, not the threads.
_MOST_ROWS = 16


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return native.unavailable(device, dtype, real=True)


def forward(
    x: Tensor,
    past: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    silu: bool,
    reverse: bool,
) -> Tensor:
    """The output, whose steps lie side by side where those of ``x`` do."""
    arguments = (x, past, weight, bias, reset, cu_seqlens, silu, reverse)
    if not _along_time(arguments):
        y = torch.empty(x.shape, dtype=x.dtype, device="cpu")
        _run(arguments, y, 0, 0, 0, 0, 0, 0, 0)
        return y
    batch, time, channels = x.shape
    # (B, T, C)
    y = torch.empty((batch, channels, time), dtype=x.dtype, device="cpu").mT
    _run(arguments, y, 0, 0, 0, 0, 0, 0, 0, along_time=True)
    return y


def backward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of ``x``, ``past``, ``weight`` and ``bias``."""
    *arguments, grad_y = inputs
    x, past, weight = arguments[:3]
    channels, width = weight.shape
    compute_dtype = accumulator_dtype(x.dtype)
    grad_x = torch.empty(x.shape, dtype=x.dtype, device="cpu")
    grad_past = torch.zeros(past.shape, dtype=compute_dtype, device="cpu")
    rows = min(_MOST_ROWS, max(1, x.shape[0] * x.shape[1] // 32))
    sums = torch.zeros(rows, width + 1, channels, dtype=torch.float64, device="cpu")
    grad_y = unit_channels(grad_y)
    outputs = (*array(grad_x), grad_past.data_ptr(), sums.data_ptr())
    _run(arguments, grad_y, True, rows, *outputs)
    total = sums.sum(0)
    # (C, width)
    grad_weight = total[:width].T.to(weight.dtype, copy=True, memory_format=torch.contiguous_format)
    grad_bias = total[width].to(weight.dtype, copy=True)
    return grad_x, grad_past.to(past.dtype), grad_weight, grad_bias


def _along_time(arguments: Sequence[Any]) -> bool:
    """Whether the kernel reads ``x`` as it is, channel by channel: a transposed (B, C, T)."""
    x, *_, reset, cu_seqlens, _, reverse = arguments
    if reverse or reset is not None or cu_seqlens is not None:
        return False
    return x.stride(1) == 1 != x.stride(2) and not x.is_neg() and aligned(x)


def _run(arguments: Sequence[Any], y: Tensor, *outputs: int, along_time: bool = False) -> None:
    x, past, weight, bias, reset, cu_seqlens, silu, reverse = arguments
    compute_dtype = accumulator_dtype(x.dtype)
    _, time, channels = x.shape
    x, past = x if along_time else unit_channels(x), dense(past.to(compute_dtype))
    taps = dense(weight.to(compute_dtype).T)  # (width, channels)
    bias = None if bias is None else dense(bias.to(compute_dtype))
    cu_seqlens = checked_offsets("causal_conv", cu_seqlens, time)
    _CONV(
        x.dtype,
        *(reverse, silu, n_sequences(x, cu_seqlens), time, channels, taps.shape[0]),
        pointer(cu_seqlens),
        *array(x),
        *array(reset),
        *((x.stride(2), y.stride(2)) if along_time else (1, 1)),
        *(past.data_ptr(), taps.data_ptr(), pointer(bias)),
        *array(y),
        *outputs,
    )
