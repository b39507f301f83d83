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
    needs_grad: Sequence[bool],
    grads: Sequence[Tensor | None],
) -> Gradients:
    """Gradients of ``definition(*arguments)`` for each argument that needs one, by itself.

    An argument may be a function of another one, or be the same tensor. So what is differentiated
    are views of them: a gradient with respect to the argument itself would hold, beside its own
    part, what reaches it through the others, which autograd then adds a second time.

    Args:
        definition: of PyTorch's operators; returns one tensor or several.
        arguments: of the definition, tensors and others.
        needs_grad: for each of the first arguments, whether to compute its gradient; the remaining
            arguments have none.
        grads: cotangents of the results; None for zeros.

    Returns:
        For each entry of ``needs_grad`` the gradient, or None where it is False. In grad mode the
        gradients have a graph of their own.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        views = list(arguments)
        for i, want in enumerate(needs_grad):
            if want:
                # inside an operator nothing asks for a gradient
                x = arguments[i] if arguments[i].requires_grad else arguments[i].detach()
                views[i] = x.view_as(x) if x.requires_grad else x.requires_grad_()
        results = definition(*views)
    results = (results,) if isinstance(results, Tensor) else results
    # without a result that depends on none of these, as a final state does not on the readout
    pairs = [
        (y, g) for y, g in zip(results, grads, strict=True) if g is not None and y.requires_grad
    ]
    sources = [views[i] for i, want in enumerate(needs_grad) if want]
    if not pairs or not sources:
        gradients = iter([torch.zeros_like(x) for x in sources])
    else:
        outputs, cotangents = zip(*pairs, strict=True)
        gradients = iter(
            torch.autograd.grad(
                outputs, sources, cotangents, create_graph=create_graph, materialize_grads=True
            )
        )
    return [next(gradients) if want else None for want in needs_grad]


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
        leaves = [
            x.detach().requires_grad_() if isinstance(x, Tensor) and x.requires_grad else x
            for x in arguments
        ]
        with torch.enable_grad():
            y: Tensor = compute(*leaves)
        ctx.graph = (y, leaves)
        ctx.definition, ctx.is_constant = definition, [not isinstance(x, Tensor) for x in arguments]
        ctx.constants = [x for x in arguments if not isinstance(x, Tensor)]
        ctx.save_for_backward(*(x for x in arguments if isinstance(x, Tensor)))
        return y.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needs_grad = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled() or not eager(grad):
            tensors, constants = iter(ctx.saved_tensors), iter(ctx.constants)
            arguments = [
                next(constants if is_constant else tensors) for is_constant in ctx.is_constant
            ]
            return None, None, *through_definition(ctx.definition, arguments, needs_grad, (grad,))
        y, leaves = ctx.graph
        sources = [x for x, want in zip(leaves, needs_grad, strict=True) if want]
        # PyTorch's attention to no rows does not look at its mask
        every = torch.autograd.grad(y, sources, grad, retain_graph=True, materialize_grads=True)
        gradients = iter(every)
        return None, None, *(next(gradients) if want else None for want in needs_grad)


def recomputed(function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
    """``function(*tensors)``, of which nothing is kept for the gradient but the tensors.

    The gradient computes it once more, and so do further derivatives. The function depends on no
    other tensor that has a gradient.
    """
    linked = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if not linked or not eager(*tensors):
        return function(*tensors)
    results: tuple[Tensor, ...] = _Recomputed.apply(function, *tensors)
    return results


class _Recomputed(torch.autograd.Function):
    """A function whose gradient is that of the same function, computed when it is needed."""

    @staticmethod
    def forward(ctx: Any, function: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.function = function
        ctx.save_for_backward(*tensors)
        return tuple(function(*tensors))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        needs_grad = ctx.needs_input_grad[1:]
        gradients = through_definition(ctx.function, ctx.saved_tensors, needs_grad, grads)
        return None, *gradients
