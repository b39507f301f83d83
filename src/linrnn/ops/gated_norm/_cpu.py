"""`gated_rms_norm` by the native kernel ``src/native/kernels/gated_norm.cpp``."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.in_place import Plan, operand, operand_fields, planned
from linrnn.compute.layout import accumulator_of, aligned, dense

_NORM = native.Kernel(
    "gated_norm",
    "act norm_first centre eps rows groups width "
    + operand_fields("x z weight bias q k v share skip skip_weight")
    + " y y_dtype backward parts "
    + operand_fields("grad")
    + " grad_x grad_z grad_q grad_k grad_v grad_skip sums",
)
#: The number of each function of the gate.
GATES = {"sigmoid": 0, "silu": 1, "none": 2}
_NO_GRADIENTS = (False, 0, *operand(None), *(0,) * 7)
_TENSORS = 10  # how many arguments are tensors or None


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot compute on that device and dtype, or None."""
    return native.unavailable(device, dtype, real=True, kernel="gated_norm")


def forward(*arguments: Any) -> tuple[Tensor]:
    """The output."""
    x, stored = arguments[0], arguments[-1]
    y = torch.empty(x.shape, dtype=stored or x.dtype, device="cpu")
    if y.numel():
        _run(arguments, *operand(y)[:2], *_NO_GRADIENTS)
    return (y,)


def plan(arguments: Any, y: Tensor) -> Plan | None:
    """A plan for calls like one that gave ``y``; None where a tensor is not read as it lies."""
    tensors = arguments[:_TENSORS]
    rows = [_rows(x) for x in tensors]
    if any(
        x is not None and x.data_ptr() != t.data_ptr() for x, t in zip(rows, tensors, strict=True)
    ):
        return None
    dtype, values = _values(arguments, rows)
    ends = (*operand(y)[:2], *_NO_GRADIENTS)
    record = _NORM.pack(native.DTYPES[dtype], native.threads(), *values, *ends)
    return planned(_NORM, record, ("x", "z", "weight", "bias"), tensors[:4], y)


def backward(*inputs: Any) -> tuple[Tensor | None, ...]:
    """Gradients of the ten tensors; None for those that are."""
    *arguments, grad = inputs
    x, z, weight, bias, q, k, v, share, skip, skip_weight = arguments[:_TENSORS]
    channels = x.shape[-1]
    # those of every row
    by_row = (x, z, q, k, v, skip)
    slopes = [
        None if t is None else torch.empty(t.shape, dtype=t.dtype, device="cpu") for t in by_row
    ]
    rows = x.numel() // max(channels, 1)
    parts = native.parts_of(rows // 32)
    of_channels = (weight, bias, share, skip_weight)
    summed = any(t is not None for t in of_channels)
    sums = torch.zeros(parts, 4, channels, dtype=torch.float64, device="cpu") if summed else None
    if x.numel():
        into = _rows(grad)  # a copy of it must live until the kernel is done
        ends = (native.pointer(t) for t in (*slopes, sums))
        _run(arguments, 0, 0, True, parts, *_by_group(into, arguments[_TENSORS]), *ends)
    totals = (None,) * 4 if sums is None else sums.sum(0).unbind(0)  # (channels,) each
    of_weight, of_bias, of_share, of_skip_weight = (
        None if t is None or total is None else total.to(t.dtype)
        for t, total in zip(of_channels, totals, strict=True)
    )
    of_x, of_z, *of_added, of_skip = slopes
    return of_x, of_z, of_weight, of_bias, *of_added, of_share, of_skip, of_skip_weight


def _rows(x: Tensor | None) -> Tensor | None:
    """Rows of channels as the kernel reads them, with any strides: (rows, channels)."""
    if x is None:
        return None
    x = x.reshape(-1, x.shape[-1])  # (rows, channels)
    return dense(x) if x.is_neg() or not aligned(x) else x


def _by_group(x: Tensor | None, groups: int) -> tuple[int, ...]:
    """Rows of channels as an operand whose heads are groups."""
    address, dtype, row, _, lane = operand(x, row=0, lane=1)
    return address, dtype, row, 0 if x is None else lane * (x.shape[1] // groups), lane


def _run(arguments: Any, *outputs: int) -> None:
    rows = [_rows(x) for x in arguments[:_TENSORS]]
    dtype, values = _values(arguments, rows)
    _NORM(dtype, *values, *outputs)


def _values(arguments: Any, rows: Sequence[Tensor | None]) -> tuple[torch.dtype, list[Any]]:
    """The dtype of the computation, and the fields of the record for the inputs."""
    (x, *_), (groups, eps, norm_first, gate, centre, _) = arguments[:_TENSORS], arguments[_TENSORS:]
    count, width = x.numel() // x.shape[-1], x.shape[-1] // groups
    operands = [word for t in rows for word in _by_group(t, groups)]
    values = [GATES[gate], norm_first, centre, eps, count, groups, width, *operands]
    return accumulator_of(*rows), values
