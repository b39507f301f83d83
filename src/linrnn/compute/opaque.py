"""Computations whose Python depends on the length, as operators that no compiler looks into.

A loop over time, a tree of halvings or a cut into blocks is written down for one length by a
tracer, and again at another. Behind an operator it stays Python, and the graph around it holds for
every batch and time. In eager mode the function is called as it is.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from linrnn.compute.derivatives import through_definition
from linrnn.compute.op import apart
from linrnn.compute.precision import without_autocast

P = ParamSpec("P")
R = TypeVar("R", bound=tuple[Tensor, ...])
ALL: list[str] = []
"""The operators that are registered so far."""

_library = torch.library.Library("linrnn", "FRAGMENT")


def opaque(
    name: str, inputs: str, shapes: Callable[P, R]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a differentiable function of tensors: a compiler sees ``linrnn::<name>``.

    The operator computes outside of autocast. Its gradient, ``linrnn::<name>_backward``, computes
    the function once more and lets PyTorch differentiate it.

    Args:
        name: of the operator.
        inputs: its arguments, in the order of the function's, as PyTorch writes a schema.
        shapes: called with the same arguments, tensors shaped and typed like the results.
    """
    ALL.append(name)
    _library.define(f"{name}({inputs}) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))
    _library.define(
        f"{name}_backward({inputs}, Tensor[] grads, bool[] wanted) -> Tensor[]",
        tags=(torch.Tag.pt2_compliant_tag,),
    )

    def decorate(run: Callable[P, R]) -> Callable[P, R]:
        _register(name, run, shapes)
        operator = getattr(torch.ops.linrnn, name).default

        @functools.wraps(run)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if torch.compiler.is_compiling() or _device(args).type == "meta":
                return cast(R, tuple(operator(*args, **kwargs)))
            return run(*args, **kwargs)

        return call

    return decorate


def _register(name: str, run: Callable[..., Any], shapes: Callable[..., Any]) -> None:
    def forward(*args: Any) -> list[Tensor]:
        with without_autocast(_device(args)):
            return apart(run(*args), args)

    def backward(*args: Any) -> list[Tensor]:
        *args, grads, wanted = args  # type: ignore[assignment]
        with torch.no_grad():
            return apart(_differentiate(run, args, grads, wanted), (args, grads))

    def backward_shapes(*args: Any) -> list[Tensor]:
        wanted = zip(tree_leaves(list(args[:-2])), args[-1], strict=True)
        return [x.new_empty(x.shape) for x, want in wanted if want]

    def keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
        flat, ctx.structure = tree_flatten(list(inputs))
        ctx.places = [i for i, x in enumerate(flat) if isinstance(x, Tensor)]
        ctx.save_for_backward(*(flat[i] for i in ctx.places))
        ctx.others = [None if isinstance(x, Tensor) else x for x in flat]

    def differentiate(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
        flat = list(ctx.others)
        for place, x in zip(ctx.places, ctx.saved_tensors, strict=True):
            flat[place] = x
        args = tree_unflatten(flat, ctx.structure)
        wanted = _wanted(args, ctx.needs_input_grad)
        if torch.is_grad_enabled():
            found = iter(_differentiate(run, args, grads, wanted))
        else:
            operator = getattr(torch.ops.linrnn, f"{name}_backward").default
            found = iter(operator(*args, grads, wanted))
        results = [next(found) if want else None for want in wanted]
        grads = tree_unflatten(results, ctx.structure)
        # a list of numbers is one argument without a gradient, and not a list of such
        pairs = zip(grads, ctx.needs_input_grad, strict=True)
        return tuple(g if isinstance(need, (list, tuple)) or need else None for g, need in pairs)

    _library.impl(name, forward, "CompositeExplicitAutograd")
    _library.impl(f"{name}_backward", backward, "CompositeExplicitAutograd")
    torch.library.register_fake(f"linrnn::{name}", lambda *a: list(shapes(*a)), lib=_library)
    torch.library.register_fake(f"linrnn::{name}_backward", backward_shapes, lib=_library)
    torch.library.register_autograd(
        f"linrnn::{name}", differentiate, setup_context=keep, lib=_library
    )


def _differentiate(
    run: Callable[..., Any], args: Any, grads: list[Tensor], wanted: list[bool]
) -> list[Tensor]:
    """Gradients of the wanted arguments; in grad mode such that can be differentiated again."""
    flat, structure = tree_flatten(list(args))

    def definition(*leaves: Any) -> Any:
        with without_autocast(_device(leaves)):
            return run(*tree_unflatten(list(leaves), structure))

    return [g for g in through_definition(definition, flat, wanted, grads) if g is not None]


def _wanted(args: Any, needs: Any) -> list[bool]:
    """For every number and tensor among the arguments whether its gradient is asked for."""
    found: list[bool] = []
    for x, need in zip(args, needs, strict=True):
        if isinstance(need, (list, tuple)):
            found += [bool(want) for want in tree_leaves(list(need))]
        else:
            found += [bool(need)] * len(tree_leaves(x))
    return found


def _device(args: Any) -> torch.device:
    return next(_tensors(args)).device


def _tensors(args: Any) -> Iterator[Tensor]:
    """Those of arguments and of lists of them; a step feels what it costs to look at all."""
    for x in args:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, (list, tuple)):
            yield from _tensors(x)
