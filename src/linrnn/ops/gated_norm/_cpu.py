"""`gated_rms_norm` by the native kernel ``src/native/kernels/gated_norm.cpp``."""

from typing import Any

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.in_place import operand, operand_fields
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
#: Parts of the rows, each with a sum of its own: their number follows from shapes, never threads.
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
    x, z, weight, groups, eps, norm_first, silu = arguments
    tensors = [t for t in (x, z, weight) if t is not None]
    exact = torch.float64 in [t.dtype for t in tensors]
    rows, gates = _rows(x), _rows(z)
    weight = None if weight is None else _rows(weight)
    assert rows is not None
    _NORM(
        torch.float64 if exact else torch.float32,
        *(silu, norm_first, eps, len(rows), groups, x.shape[-1] // groups),
        *(word for t in (rows, gates, weight) for word in _by_group(t, groups)),
        *outputs,
    )
