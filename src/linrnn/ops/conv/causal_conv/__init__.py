"""`causal_conv`: a short depthwise convolution along time, with what came before as its state."""

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.arguments import (
    check_device,
    check_flags,
    check_numbers,
    check_packed,
    check_reset,
)
from linrnn.compute.layout import accumulator_dtype, mirrored
from linrnn.compute.op import Op
from linrnn.errors import check_shape
from linrnn.ops.conv.past import last_inputs, recall
from linrnn.typing import CuSeqlens, Float, ResetMask


def causal_conv(
    x: Float[Tensor, "batch time channels"],
    weight: Float[Tensor, "channels width"],
    bias: Float[Tensor, " channels"] | None = None,
    initial_state: Float[Tensor, "seqs past channels"] | None = None,
    *,
    silu: bool = False,
    reset: ResetMask | None = None,
    cu_seqlens: CuSeqlens | None = None,
    reverse: bool = False,
    backend: str | None = None,
) -> tuple[Float[Tensor, "batch time channels"], Float[Tensor, "seqs past channels"]]:
    r"""Convolve every channel with its own few taps, reaching back in time only.

    Equation::

        v_t = bias + sum_{j < width} weight[:, width-1-j] * x_{t-j}      y = v, or silu(v)

    Args:
        x: input, real. A transposed (batch, channels, time) is read without a copy, unless there
            are resets, offsets or ``reverse``; ``y`` then lies in memory as ``x`` does.
        weight: taps of every channel, the oldest input's first.
        bias: of every channel, or None.
        initial_state: the ``width - 1`` inputs before the first, oldest first, one row for each
            packed sequence; None is zeros.
        silu: apply SiLU, in the same pass.
        reset: boolean (batch, time); no sum reaches over a True.
        cu_seqlens, reverse: as in `linear_scan`; in reverse, the past is what comes after.
        backend: ``cpu`` or ``triton`` for the kernel; any other is a sum of shifted inputs; None
            takes what `use_backend` or ``LINRNN_BACKEND`` asks for, else the fastest that supports
            the call.

    Returns:
        ``(y, final_state)``: the outputs in the dtype of ``x``, and the last ``width - 1`` inputs,
        float32 for half precision, which is computed in float32. Gradients flow to ``x``,
        ``weight``, ``bias`` and ``initial_state`` from both, to any order.

    Raises:
        ShapeError, DTypeError, DeviceError: tensors that do not fit together.
        ArgumentError: ``cu_seqlens`` that do not rise from 0 to ``time``.
        BackendError: the requested backend cannot compute this call.

    Example:
        >>> import torch
        >>> from linrnn.ops import causal_conv
        >>> x = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1)
        >>> y, last = causal_conv(x, torch.ones(1, 2))
        >>> y.flatten(), last.flatten()
        (tensor([1., 3., 5.]), tensor([3.]))
    """
    where = "causal_conv"
    optional = {"bias": bias, "initial_state": initial_state}
    check_numbers(where, {"x": x, "weight": weight}, real=True, **optional)
    check_flags(where, silu=silu, reverse=reverse)
    check_shape(where, "x", x.shape, {"batch": None, "time": None, "channels": None})
    batch, time, channels = x.shape
    check_shape(where, "weight", weight.shape, {"channels": channels, "width": None})
    taps = weight.shape[1]
    if taps == 0:
        check_shape(where, "weight", weight.shape, {"channels": channels, "width": 1})
    if bias is not None:
        check_shape(where, "bias", bias.shape, {"channels": channels})
    seqs = check_packed(where, "x", x, cu_seqlens)
    rows = "batch" if cu_seqlens is None else "sequences"
    store = x.dtype
    if torch.float64 in (weight.dtype, None if bias is None else bias.dtype):
        store = torch.float64
    compute_dtype = accumulator_dtype(store)
    if initial_state is None:
        initial_state = x.new_zeros(seqs, taps - 1, channels, dtype=compute_dtype)
    axes: dict[str, int | None] = {rows: seqs, "past": taps - 1, "channels": channels}
    check_shape(where, "initial_state", initial_state.shape, axes)
    check_reset(where, reset, batch, time)
    check_device(
        where, "x", x.device, weight=weight, bias=bias, initial_state=initial_state, reset=reset
    )
    weight, past = weight.to(compute_dtype), initial_state.to(compute_dtype)
    bias = None if bias is None else bias.to(compute_dtype)
    return convolve(x.to(store), past, weight, bias, reset, cu_seqlens, silu, reverse, backend)


def convolve(
    x: Tensor,
    past: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    reset: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    silu: bool = False,
    reverse: bool = False,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """`causal_conv` of checked arguments."""
    y = _OP(x, past, weight, bias, reset, cu_seqlens, silu, reverse, backend=backend)
    return y, last_inputs(x, past, reset, cu_seqlens, reverse)


def _definition(
    x: Tensor,
    past: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    silu: bool,
    reverse: bool,
    *,
    backend: str | None = None,
) -> Tensor:
    """In PyTorch operations: on any device, differentiable to any order."""
    if reverse:
        x, past, reset, cu_seqlens = mirrored(x, past, reset, cu_seqlens)
    store, compute_dtype = x.dtype, torch.promote_types(weight.dtype, past.dtype)
    x = x.to(compute_dtype)  # beside which the past keeps its precision
    y = torch.zeros_like(x) if bias is None else bias.to(compute_dtype)
    width = weight.shape[1]
    for j in range(width):
        y = y + weight[:, width - 1 - j] * recall(x, past, j, reset, cu_seqlens)
    y = (F.silu(y) if silu else y).to(store)
    return y.flip(1) if reverse else y


_OP = Op(
    "causal_conv",
    "Tensor x, Tensor past, Tensor weight, Tensor? bias, Tensor? reset, Tensor? cu_seqlens, "
    "bool silu, bool reverse",
    gradients=4,
    results=1,
    definition=_definition,
    shapes=lambda x, *rest: x.new_empty(x.shape),
    kernels={
        "triton": "linrnn.ops.conv.causal_conv._triton",
        "cpu": "linrnn.ops.conv.causal_conv._cpu",
    },
)
