"""`linear_scan` as PyTorch operators: dispatch to a backend, shapes for the compiler, gradients.

Two operators, ``linrnn::scan`` and its adjoint ``linrnn::scan_backward``, each differentiable
through the other, so gradients of any order exist while every one is a single kernel call.

On plain tensors in eager mode the same functions run as `torch.autograd.Function`, at a third of
an operator's cost a call; tracing, exporting and tensor subclasses see the operators,
`torch.func` a third form.
"""

from typing import Any

import torch
from torch import Tensor

from linrnn.ops._backend import choose, load_scan
from linrnn.ops._layout import (
    empty_results,
    ends,
    previous_state,
    shift_time,
)
from linrnn.ops._modes import eager, transformed
from linrnn.ops._scan_transforms import transformed_scan

_LAYOUT = "Tensor? initial_state, Tensor? reset, Tensor? cu_seqlens"
_library = torch.library.Library("linrnn", "DEF")
_library.define(
    f"scan(Tensor a, Tensor b, {_LAYOUT}, bool reverse, str? backend) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    f"scan_backward(Tensor a, Tensor h, {_LAYOUT}, Tensor grad_h, Tensor grad_final, "
    "bool reverse, str? backend) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def apply(
    a: Tensor,
    b: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
    backend: str | None,
) -> tuple[Tensor, Tensor]:
    """``(h, final_state)`` for flattened channels: see `ScanBackend` for the shapes."""
    arguments = (a, b, initial_state, reset, cu_seqlens, reverse, backend)
    if not eager(a, b):
        h, final = torch.ops.linrnn.scan(*arguments)
    elif not torch.is_grad_enabled() and not transformed():
        h, final = _scan(*arguments)
    elif transformed():
        h, final = transformed_scan(_scan, *arguments)
    else:
        h, final = _Scan.apply(*arguments)
    return h, final


def _scan(
    a: Tensor,
    b: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
    backend: str | None,
) -> tuple[Tensor, Tensor]:
    if b.numel() == 0:
        h, final = _scan_shapes(a, b, initial_state, reset, cu_seqlens, reverse, backend)
        return h, final.zero_() if initial_state is None else final.copy_(initial_state)
    name, _ = choose(backend, b.device, b.dtype)
    return load_scan(name).scan(a, b, initial_state, reset, cu_seqlens, reverse)


def _scan_backward(
    a: Tensor,
    h: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    grad_h: Tensor,
    grad_final: Tensor,
    reverse: bool,
    backend: str | None,
) -> tuple[Tensor, Tensor, Tensor]:
    if h.numel() == 0:
        return torch.zeros_like(a), torch.empty_like(h), grad_final.clone()
    name, _ = choose(backend, h.device, h.dtype)
    return load_scan(name).scan_backward(
        a, h, initial_state, reset, cu_seqlens, grad_h, grad_final, reverse
    )


def _scan_shapes(a: Tensor, b: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return empty_results(b, rest[2])


def _scan_backward_shapes(a: Tensor, h: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    grad_final = rest[4]
    grad_a = torch.empty(a.shape, dtype=a.dtype, device=a.device)
    return (
        grad_a,
        torch.empty(h.shape, dtype=h.dtype, device=h.device),
        torch.empty_like(grad_final),
    )


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    a, _, initial_state, reset, cu_seqlens, ctx.reverse, ctx.backend = inputs
    ctx.save_for_backward(a, output[0], initial_state, reset, cu_seqlens)


def _backward(ctx: Any, grad_h: Tensor, grad_final: Tensor) -> tuple[Tensor | None, ...]:
    a, h, initial_state, reset, cu_seqlens = ctx.saved_tensors
    run: Any = torch.ops.linrnn.scan_backward
    if eager(a, grad_h):
        run = _ScanBackward.apply if torch.is_grad_enabled() else _scan_backward
    grad_a, grad_b, grad_h0 = run(
        a, h, initial_state, reset, cu_seqlens, grad_h, grad_final, ctx.reverse, ctx.backend
    )
    return grad_a, grad_b, None if initial_state is None else grad_h0, None, None, None, None


def _keep_for_second(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    a, h, initial_state, reset, cu_seqlens, _, _, ctx.reverse, ctx.backend = inputs
    ctx.save_for_backward(a, h, initial_state, reset, cu_seqlens, output[1])


def _second_backward(
    ctx: Any, into_a: Tensor, into_b: Tensor, into_h0: Tensor
) -> tuple[Tensor | None, ...]:
    """Adjoint of the adjoint.

    With delta = grad_b, the map is ``delta_t = grad_h_t + conj(a_{t+1}) delta_{t+1}``,
    ``grad_a_t = delta_t conj(h_{t-1})`` and ``grad_h0 = conj(a_0) delta_0``. Cotangents of the
    three results therefore run forward through the original recurrence,
    ``s_t = a_t s_{t-1} + into_b_t + into_a_t h_{t-1}`` from ``s_{-1} = into_h0``, and
    ``s_t`` is the cotangent of ``grad_h_t``, ``conj(s_{t-1}) delta_t`` that of ``a_t``.
    """
    a, h, initial_state, reset, cu_seqlens, delta = ctx.saved_tensors
    layout = (reset, cu_seqlens, ctx.reverse)
    if a.ndim == 1:
        into_a = into_a.expand(h.shape)
    before = previous_state(h, initial_state, *layout)
    s, s_final = apply(a, into_b + into_a * before, into_h0, *layout, ctx.backend)
    for_a = previous_state(s, into_h0, *layout).conj() * delta
    for_h, for_h0 = _previous_adjoint(into_a.conj() * delta, initial_state, *layout)
    for_a = for_a.sum((0, 1)) if a.ndim == 1 else for_a
    return for_a, for_h, for_h0, None, None, s, s_final, None, None


def _previous_adjoint(
    grad: Tensor,
    initial_state: Tensor | None,
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor | None]:
    """Send the cotangent of `previous_state` back to the states and to the initial state."""
    if reset is not None:
        grad = torch.where(reset[..., None], 0, grad)
    edge = ends(grad, cu_seqlens, reverse)
    inner = grad.index_put((edge.row, edge.first), grad.new_zeros(()))
    for_h = shift_time(inner, 1 if reverse else -1)
    if initial_state is None:
        return for_h, None
    entering = grad[edge.row, edge.first].to(initial_state.dtype)
    return for_h, torch.zeros_like(initial_state).index_put((edge.kept,), entering)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        # keeping inputs here rather than in setup_context halves the cost of a small call
        output = _scan(*inputs)
        _keep_for_backward(ctx, inputs, output)
        return output

    backward = staticmethod(_backward)


class _ScanBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        output = _scan_backward(*inputs)
        _keep_for_second(ctx, inputs, output)
        return output

    backward = staticmethod(_second_backward)


def _register(name: str, run: Any, shapes: Any, keep: Any, backward: Any) -> None:
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"linrnn::{name}", shapes, lib=_library)
    torch.library.register_autograd(f"linrnn::{name}", backward, setup_context=keep, lib=_library)


_register("scan", _scan, _scan_shapes, _keep_for_backward, _backward)
_register(
    "scan_backward", _scan_backward, _scan_backward_shapes, _keep_for_second, _second_backward
)
