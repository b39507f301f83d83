"""A short depthwise convolution along time: the definition, and operators over native kernels."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.ops import _causal_conv_cpu as cpu
from linrnn.ops._scan_op import _eager, _transformed

_INPUTS = "Tensor x, Tensor past, Tensor weight, Tensor? bias, Tensor? reset, bool silu"
_library = torch.library.Library("linrnn", "FRAGMENT")
_library.define(f"causal_conv({_INPUTS}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
_library.define(
    f"causal_conv_backward({_INPUTS}, Tensor grad_y) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


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
    arguments = (x, past, weight, bias, reset, silu)
    kernels = cpu.available(x.device.type, x.dtype)
    if not kernels or x.numel() == 0 or _transformed():
        return definition(*arguments)
    if not _eager(x, weight):
        y: Tensor = torch.ops.linrnn.causal_conv(*arguments)
        return y
    needs_graph = any(t is not None and t.requires_grad for t in (x, past, weight, bias))
    if torch.is_grad_enabled() and needs_graph:
        y = _CausalConv.apply(*arguments)
        return y
    return cpu.forward(*arguments)


def definition(
    x: Tensor, past: Tensor, weight: Tensor, bias: Tensor | None, reset: Tensor | None, silu: bool
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


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.silu = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
    x, past, weight, bias, reset = ctx.saved_tensors
    arguments = (x, past, weight, bias, reset, ctx.silu)
    wanted = ctx.needs_input_grad[:4]
    if torch.is_grad_enabled():
        sources = [t for t, want in zip(arguments, wanted, strict=False) if want]
        found = iter(
            torch.autograd.grad(
                definition(*arguments), sources, grad_y, create_graph=True, materialize_grads=True
            )
        )
        grads = tuple(next(found) if want else None for want in wanted)
    else:
        run = cpu.backward if _eager(x, grad_y) else torch.ops.linrnn.causal_conv_backward
        grads = run(*arguments, grad_y)
    return *(g if want else None for g, want in zip(grads, wanted, strict=True)), None, None


class _CausalConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        output = cpu.forward(*inputs)
        _keep_for_backward(ctx, inputs, output)
        return output

    backward = staticmethod(_differentiate)


def _shapes(x: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(x.shape)


def _backward_shapes(x: Tensor, past: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    bias = weight.new_empty(weight.shape[0])
    return x.new_empty(x.shape), past.new_empty(past.shape), weight.new_empty(weight.shape), bias


_library.impl("causal_conv", cpu.forward, "CompositeExplicitAutograd")
_library.impl("causal_conv_backward", cpu.backward, "CompositeExplicitAutograd")
torch.library.register_fake("linrnn::causal_conv", _shapes, lib=_library)
torch.library.register_fake("linrnn::causal_conv_backward", _backward_shapes, lib=_library)
torch.library.register_autograd(
    "linrnn::causal_conv", _differentiate, setup_context=_keep_for_backward, lib=_library
)
