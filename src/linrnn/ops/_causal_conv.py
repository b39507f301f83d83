"""A short depthwise convolution along time: the definition, and operators over native kernels."""

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.ops._op import Op


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


def recall(x: Tensor, past: Tensor, delay: int, reset: Tensor | None = None) -> Tensor:
    """``x_{t - delay}``, zero where a reset lies between the two.

    Args:
        x: (batch, time, channels).
        past: what came before ``x``, (batch, at least ``delay``, channels).
        delay: steps back, 0 or more.
        reset: boolean (batch, time); True where a new sequence starts.

    Example:
        >>> x = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1)
        >>> recall(x, torch.zeros(1, 1, 1), 1).flatten()
        tensor([0., 1., 2.])
    """
    if delay == 0:
        return x
    time, before = x.shape[1], past[:, past.shape[1] - delay :]
    y = torch.cat([before.to(x.dtype), x], 1)[:, :time]
    if reset is None:
        return y
    started = F.pad(reset.cumsum(1), (delay, 0))  # sequences begun up to t, and up to t - delay
    return torch.where((started[:, delay:] == started[:, :time])[..., None], y, 0)


_OP = Op(
    "causal_conv",
    "Tensor x, Tensor past, Tensor weight, Tensor? bias, Tensor? reset, bool silu",
    gradients=4,
    results=1,
    definition=definition,
    shapes=lambda x, *rest: x.new_empty(x.shape),
    kernels={"cpu": "linrnn.ops._causal_conv_cpu"},
)
