"""The causal convolution by the native kernels in ``src/native/kernels/causal_conv.cpp``."""

import struct

import torch
from torch import Tensor

from linrnn.ops import _native
from linrnn.ops._layout import accumulator_dtype, dense, unit_channels
from linrnn.ops._native import DTYPES, pointer

# the fields of CausalConvArgs in src/native/causal_conv_args.h, in order
_RECORD = struct.Struct("=25q")
#: Rows of partial sums over steps: their number bounds the memory, not the threads.
_MOST_ROWS = 16


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return _native.unavailable(device, dtype, real=True)


def forward(
    x: Tensor, past: Tensor, weight: Tensor, bias: Tensor | None, reset: Tensor | None, silu: bool
) -> Tensor:
    """The output."""
    y = torch.empty(x.shape, dtype=x.dtype)
    _run(x, past, weight, bias, reset, silu, y, 0, (0, 0, 0))
    return y


def backward(
    x: Tensor,
    past: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    reset: Tensor | None,
    silu: bool,
    grad_y: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of ``x``, ``past``, ``weight`` and ``bias``."""
    channels, width = weight.shape
    wide = accumulator_dtype(x.dtype)
    grad_x = torch.empty(x.shape, dtype=x.dtype)
    grad_past = torch.zeros(past.shape, dtype=wide)
    rows = min(_MOST_ROWS, max(1, x.shape[0] * x.shape[1] // 32))
    sums = torch.zeros(rows, width + 1, channels, dtype=torch.float64)
    outputs = (grad_x.data_ptr(), grad_past.data_ptr(), sums.data_ptr())
    _run(x, past, weight, bias, reset, silu, unit_channels(grad_y), rows, outputs)
    total = sums.sum(0)
    grad_weight = total[:width].T.to(weight.dtype, copy=True, memory_format=torch.contiguous_format)
    grad_bias = total[width].to(weight.dtype, copy=True)
    return grad_x, grad_past.to(past.dtype), grad_weight, grad_bias


def _run(
    x: Tensor,
    past: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    reset: Tensor | None,
    silu: bool,
    y: Tensor,
    rows: int,
    outputs: tuple[int, int, int],
) -> None:
    wide = accumulator_dtype(x.dtype)
    x, past, taps = unit_channels(x), dense(past.to(wide)), dense(weight.to(wide).T)
    bias = None if bias is None else dense(bias.to(wide))
    record = _RECORD.pack(
        _RECORD.size,
        DTYPES[x.dtype],
        _native.threads(),
        rows > 0,
        silu,
        *x.shape,
        len(taps),
        rows,
        *(x.data_ptr(), *x.stride()[:2]),
        *((0, 0, 0) if reset is None else (reset.data_ptr(), *reset.stride())),
        *(y.data_ptr(), *y.stride()[:2]),
        past.data_ptr(),
        taps.data_ptr(),
        pointer(bias),
        *outputs,
    )
    _native.run("causal_conv", record)
