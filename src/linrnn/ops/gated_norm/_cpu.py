"""`gated_rms_norm` by the native kernel ``src/native/kernels/gated_norm.cpp``."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.in_place import Plan, operand, operand_fields, planned
from linrnn.compute.layout import aligned, dense

_NORM = native.Kernel(
    "gated_norm",
    "silu norm_first eps rows groups width "
    + operand_fields("x z weight")
    + " y y_dtype backward parts "
    + operand_fields("grad")
    + " grad_x grad_z sums",
)
_NO_GRADIENTS = (False, 0, *operand(None), 0, 0, 0)
#: Parts of the rows, each summed alone: their number follows from shapes, never threads.
_MOST_PARTS = 16


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot compute on that device and dtype, or None."""
    return native.unavailable(device, dtype, real=True, kernel="gated_norm")


def forward(*arguments: Any) -> tuple[Tensor]:
    """The output."""
    x = arguments[0]
    y = torch.empty(x.shape, dtype=x.dtype)
    if y.numel():
        _run(arguments, *operand(y)[:2], *_NO_GRADIENTS)
    return (y,)


def plan(arguments: Any, y: Tensor) -> Plan | None:
    """A plan for calls like one that gave ``y``; None where a tensor is not read as it lies."""
    tensors = arguments[:3]
    rows = [_rows(x) for x in tensors]
    if any(
        x is not None and x.data_ptr() != t.data_ptr() for x, t in zip(rows, tensors, strict=True)
    ):
        return None
    dtype, values = _values(arguments, rows)
    ends = (*operand(y)[:2], *_NO_GRADIENTS)
    record = _NORM.pack(native.DTYPES[dtype], native.threads(), *values, *ends)
    return planned(_NORM, record, ("x", "z", "weight"), tensors, y)


def backward(*inputs: Any) -> tuple[Tensor | None, ...]:
    """Gradients of ``x``, ``z`` and ``weight``; None for those that are."""
    *arguments, grad = inputs
    x, z, weight = arguments[:3]
    channels = x.shape[-1]
    grad_x = torch.empty(x.shape, dtype=x.dtype)
    grad_z = None if z is None else torch.empty(z.shape, dtype=z.dtype)
    rows = x.numel() // max(channels, 1)
    parts = min(_MOST_PARTS, max(1, rows // 32))
    sums = None if weight is None else torch.zeros(parts, channels, dtype=torch.float64)
    if x.numel():
        outputs = (native.pointer(t) for t in (grad_x, grad_z, sums))
        into = _rows(grad)  # a copy of it must live until the kernel is done
        _run(arguments, 0, 0, True, parts, *_by_group(into, arguments[3]), *outputs)
    return grad_x, grad_z, None if sums is None else sums.sum(0).to(weight.dtype)


def _rows(x: Tensor | None) -> Tensor | None:
    """Rows of channels as the kernel reads them, with any strides: (rows, channels)."""
    if x is None:
        return None
    x = x.reshape(-1, x.shape[-1])
    return dense(x) if x.is_neg() or not aligned(x) else x


def _by_group(x: Tensor | None, groups: int) -> tuple[int, ...]:
    """Rows of channels as an operand whose heads are groups."""
    address, dtype, row, _, lane = operand(x, row=0, lane=1)
    return address, dtype, row, 0 if x is None else lane * (x.shape[1] // groups), lane


def _run(arguments: Any, *outputs: int) -> None:
    rows = [_rows(x) for x in arguments[:3]]
    dtype, values = _values(arguments, rows)
    _NORM(dtype, *values, *outputs)


def _values(arguments: Any, rows: Sequence[Tensor | None]) -> tuple[torch.dtype, list[Any]]:
    """The dtype of the computation, and the fields of the record for the inputs."""
    x, _, _, groups, eps, norm_first, silu = arguments
    count, width = x.numel() // x.shape[-1], x.shape[-1] // groups
    exact = any(t is not None and t.dtype == torch.float64 for t in rows)
    operands = [word for t in rows for word in _by_group(t, groups)]
    values = [silu, norm_first, eps, count, groups, width, *operands]
    return torch.float64 if exact else torch.float32, values
