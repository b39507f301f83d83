"""A short depthwise convolution along time: the definition, and operators over native kernels."""

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.ops._op import Op
from linrnn.ops.past import recall


def causal_conv(
    x: Tensor, past: Tensor, weight: Tensor, bias: Tensor | None, reset: Tensor | None, silu: bool
) -> Tensor:
    """``bias + sum_j weight[:, width-1-j] x_{t-j}``, in the dtype of ``x``.

    Args:
        x: (batch, time, channels).
        past: the ``width - 1`` inputs before the first, oldest first.
        weight: (channels, width).
        bias: (channels) or None.
        reset: boolean (batch, time), or None; no sum reaches over a True.
        silu: apply SiLU.
    """
    y: Tensor = _OP(x, past, weight, bias, reset, silu)
    return y


def definition(
    x: Tensor,
    past: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    reset: Tensor | None,
    silu: bool,
    *,
    backend: str | None = None,
) -> Tensor:
    """In PyTorch operations: on any device, differentiable to any order."""
    wide = torch.promote_types(weight.dtype, past.dtype)
    y = torch.zeros_like(x, dtype=wide) if bias is None else bias.to(wide)
    width = weight.shape[1]
    for j in range(width):
        y = y + weight[:, width - 1 - j] * recall(x, past, j, reset)
    return (F.silu(y) if silu else y).to(x.dtype)


_OP = Op(
    "causal_conv",
    "Tensor x, Tensor past, Tensor weight, Tensor? bias, Tensor? reset, bool silu",
    gradients=4,
    results=1,
    definition=definition,
    shapes=lambda x, *rest: x.new_empty(x.shape),
    kernels={"cpu": "linrnn.ops.causal_conv._cpu"},
)
