"""`gated_scan` as PyTorch operators: native kernel or composition, shapes, gradients.

``linrnn::gated_scan`` and its adjoint ``linrnn::gated_scan_backward`` are what compilers and
exporters see; plain tensors in eager mode take the same functions at less cost a call. A gradient
that will itself be differentiated is composed of differentiable operations.
"""

from typing import Any, cast

import torch
from torch import Tensor

from linrnn.ops import _gated_scan_composite as composite
from linrnn.ops import _gated_scan_cpu as cpu
from linrnn.ops._derivatives import through_definition
from linrnn.ops._layout import accumulator_dtype
from linrnn.ops._modes import eager, transformed

_KIND = "bool positive, bool normalise, float start"
_library = torch.library.Library("linrnn", "FRAGMENT")
_library.define(
    f"gated_scan(Tensor x, Tensor? initial_state, Tensor? reset, {_KIND}) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "gated_scan_backward(Tensor x, Tensor h, Tensor? initial_state, Tensor? reset, "
    f"Tensor grad_h, Tensor grad_final, {_KIND}) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def apply(
    x: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    positive: bool,
    normalise: bool,
    start: float,
) -> tuple[Tensor, Tensor]:
    """``(h, final_state)`` of checked arguments."""
    arguments = (x, initial_state, reset, positive, normalise, start)
    if x.device.type != "cpu":  # a compiler fuses the composition better than it could an operator
        h, final = composite.gated_scan(*arguments)
    elif not eager(x):
        h, final = torch.ops.linrnn.gated_scan(*arguments)
    elif transformed() or not cpu.available(x):
        h, final = composite.gated_scan(*arguments)
    elif torch.is_grad_enabled():
        h, final = _GatedScan.apply(*arguments)
    else:
        h, final = _forward(*arguments)
    return h, final


def _forward(
    x: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    positive: bool,
    normalise: bool,
    start: float,
) -> tuple[Tensor, Tensor]:
    arguments = (x, initial_state, reset, positive, normalise, start)
    if x.numel() == 0:
        h, final = _shapes(*arguments)
        return h, final.fill_(start) if initial_state is None else final.copy_(initial_state)
    run = cpu.gated_scan if cpu.available(x) else composite.gated_scan
    return run(*arguments)


def _adjoint(
    x: Tensor,
    h: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    grad_h: Tensor,
    grad_final: Tensor,
    *kind: Any,
) -> tuple[Tensor, Tensor]:
    if x.numel() == 0:
        return torch.zeros_like(x, memory_format=torch.contiguous_format), grad_final.clone()
    if cpu.available(x):
        return cpu.gated_scan_backward(x, h, initial_state, reset, grad_h, grad_final, *kind)
    state = grad_final.new_full(grad_final.shape, kind[2])
    state = state if initial_state is None else initial_state
    arguments = (x, state, reset, *kind)
    found = through_definition(composite.gated_scan, arguments, (True, True), (grad_h, grad_final))
    grad_x, grad_initial = cast(list[Tensor], found)
    return grad_x.contiguous(), grad_initial


def _shapes(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    batch, time, _, channels = x.shape
    final = x.new_empty((batch, channels), dtype=accumulator_dtype(x.dtype))
    return x.new_empty((batch, time, channels)), final


def _adjoint_shapes(x: Tensor, h: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), torch.empty_like(rest[3], memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, initial_state, reset, *ctx.kind = inputs
    ctx.save_for_backward(x, output[0], initial_state, reset)


def _backward(ctx: Any, grad_h: Tensor, grad_final: Tensor) -> tuple[Tensor | None, ...]:
    x, h, initial_state, reset = ctx.saved_tensors
    rest = (None,) * 4
    if torch.is_grad_enabled():
        arguments = (x, initial_state, reset, *ctx.kind)
        wanted = ctx.needs_input_grad[:2]
        found = through_definition(composite.gated_scan, arguments, wanted, (grad_h, grad_final))
        return *found, *rest
    run: Any = _adjoint if eager(x, grad_h) else torch.ops.linrnn.gated_scan_backward
    grad_x, grad_initial = run(x, h, initial_state, reset, grad_h, grad_final, *ctx.kind)
    return grad_x, None if initial_state is None else grad_initial, *rest


class _GatedScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        output = _forward(*inputs)
        _keep(ctx, inputs, output)
        return output

    backward = staticmethod(_backward)


_library.impl("gated_scan", _forward, "CompositeExplicitAutograd")
_library.impl("gated_scan_backward", _adjoint, "CompositeExplicitAutograd")
torch.library.register_fake("linrnn::gated_scan", _shapes, lib=_library)
torch.library.register_fake("linrnn::gated_scan_backward", _adjoint_shapes, lib=_library)
torch.library.register_autograd("linrnn::gated_scan", _backward, setup_context=_keep, lib=_library)
