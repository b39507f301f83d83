"""Gradients that can be differentiated again, through a definition in PyTorch's operators."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from linrnn.compute.modes import eager, transformed

Gradients = list[Tensor | None]


def through_definition(
    definition: Callable[..., Tensor | tuple[Tensor, ...]],
    arguments: Sequence[Any],
    wanted: Sequence[bool],
    grads: Sequence[Tensor | None],
) -> Gradients:
    """Gradients of ``definition(*arguments)`` with respect to each wanted argument, by itself.

    An argument may be a function of another one, or be the same tensor. So what is differentiated
    are views of them: a gradient with respect to the argument itself would hold, beside its own
    part, what reaches it through the others, which autograd then adds a second time.

    Args:
        definition: of PyTorch's operators; returns one tensor or several.
        arguments: of the definition, tensors and others.
        wanted: for each of the first arguments whether its gradient is asked for; none of the rest.
        grads: cotangents of the results; None for zeros.

    Returns:
        For each entry of ``wanted`` the gradient, or None where it is not wanted. They have a graph
        of their own in grad mode.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        own = list(arguments)
        for i, want in enumerate(wanted):
            if want:
                # inside an operator nothing asks for a gradient
                x = arguments[i] if arguments[i].requires_grad else arguments[i].detach()
                own[i] = x.view_as(x) if x.requires_grad else x.requires_grad_()
        results = definition(*own)
    results = (results,) if isinstance(results, Tensor) else results
    # a result that depends on no wanted argument, as a final state does not on the readout
    pairs = [
        (y, g) for y, g in zip(results, grads, strict=True) if g is not None and y.requires_grad
    ]
    sources = [own[i] for i, want in enumerate(wanted) if want]
    if not pairs:
        found = iter([torch.zeros_like(x) for x in sources])
    else:
        outputs, cotangents = zip(*pairs, strict=True)
        found = iter(
            torch.autograd.grad(
                outputs, sources, cotangents, create_graph=create_graph, materialize_grads=True
            )
        )
    return [next(found) if want else None for want in wanted]


def fused(
    compute: Callable[..., Tensor], definition: Callable[..., Tensor], *arguments: Any
) -> Tensor:
    """``compute(*arguments)``, an operator of PyTorch that knows first derivatives only.

    Args:
        compute: fast, with a gradient.
        definition: the same of operators that can be differentiated to any order; what transforms
            and second derivatives go through.
        arguments: of both; those that are tensors of floating point first.
    """
    tensors = [x for x in arguments if isinstance(x, Tensor)]
    if transformed():
        return definition(*arguments)
    needs_graph = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if not needs_graph or not eager(*tensors):
        return compute(*arguments)
    y: Tensor = _Fused.apply(compute, definition, *arguments)
    return y


class _Fused(torch.autograd.Function):
    """Keeps the graph of ``compute`` for a gradient, which a further derivative leaves unused."""

    @staticmethod
    def forward(ctx: Any, compute: Any, definition: Any, *arguments: Any) -> Tensor:
        own = [
            x.detach().requires_grad_() if isinstance(x, Tensor) and x.requires_grad else x
            for x in arguments
        ]
        with torch.enable_grad():
            y: Tensor = compute(*own)
        ctx.graph = (y, own)
        ctx.definition, ctx.others = definition, [not isinstance(x, Tensor) for x in arguments]
        ctx.constants = [x for x in arguments if not isinstance(x, Tensor)]
        ctx.save_for_backward(*(x for x in arguments if isinstance(x, Tensor)))
        return y.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled() or not eager(grad):
            tensors, constants = iter(ctx.saved_tensors), iter(ctx.constants)
            arguments = [next(constants if other else tensors) for other in ctx.others]
            return None, None, *through_definition(ctx.definition, arguments, wanted, (grad,))
        y, own = ctx.graph
        sources = [x for x, want in zip(own, wanted, strict=True) if want]
        found = iter(torch.autograd.grad(y, sources, grad, retain_graph=True))
        return None, None, *(next(found) if want else None for want in wanted)
