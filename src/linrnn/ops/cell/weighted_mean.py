"""The weighted mean of RWKV-4 along time: by a separate kernel in bfloat16, else as a cell."""

from typing import Any

import torch
from torch import Tensor

from linrnn.compute.modes import eager
from linrnn.compute.product import Product
from linrnn.ops.cell.cell_scan import cell_scan, requested_form
from linrnn.ops.linear.weighted_mean import wkv

#: Numbers that repay a call of the kernel.
_WORTH = 1 << 14


def wkv_scan(
    k: Tensor,
    v: Tensor,
    r: Tensor,
    decay: Tensor,
    bonus: Tensor,
    state: tuple[Tensor, Tensor],
    reset: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """`linrnn.ops.cell_scan` of `linrnn.ops.linear.weighted_mean.wkv`.

    A kernel computes calls with keys, values and gates in bfloat16 where the processor multiplies
    bfloat16 numbers itself. States are float32 there too.

    Args:
        k, v, r: (batch, time, channels).
        decay, bonus: (channels,).
        state: the mean and the logarithm of its weights before the first step, (batch, channels).
        reset: boolean (batch, time).

    Returns:
        The outputs, and the state after the last step.

    Example:
        >>> x, zero = torch.zeros(1, 3, 1), torch.zeros(1)
        >>> y, last = wkv_scan(x, x + 2, x, zero, zero, (zero[None], zero[None] - 1e30))
        >>> y.flatten()
        tensor([1., 1., 1.])
    """
    if _has_kernel(k, v, r, decay, bonus, *state):
        y, *last = _WKV(k, v, r, decay, bonus, *state, reset)
        return y, (last[0], last[1])
    y, (mean, log_norm) = _as_cell(k, v, r, decay, bonus, *state, reset)
    return y, (mean, log_norm)


def _has_kernel(k: Tensor, *remaining: Tensor) -> bool:
    v, r, *rows = remaining
    if {x.dtype for x in (k, v, r)} != {torch.bfloat16} or k.shape[1] < 2 or k.numel() < _WORTH:
        return False
    single = all([x.dtype is torch.float32 for x in rows])
    if not (single and k.is_cpu and requested_form(None)[0] is None and eager(k, *remaining)):
        return False
    return _WKV.backend([k]) == "cpu"


def _as_cell(
    k: Tensor,
    v: Tensor,
    r: Tensor,
    decay: Tensor,
    bonus: Tensor,
    mean: Tensor,
    log_norm: Tensor,
    reset: Tensor | None,
) -> tuple[Tensor, Any]:
    inputs: dict[str, Any] = {"k": k, "v": v, "r": r, "decay": decay, "bonus": bonus}
    return cell_scan(wkv, **inputs, state=(mean, log_norm), reset=reset)


def _definition(*arguments: Any) -> tuple[Tensor, ...]:
    """As a cell: differentiable to any order."""
    y, last = _as_cell(*arguments)
    return y, *last


_WKV = Product(
    "wkv",
    _definition,
    gradients=7,
    kernels={"cpu": "linrnn.ops.cell._wkv_cpu"},
    keeps=1,
)
