"""Ops that nothing but their definition computes, and that take no backend.

A loop over time, a tree of halvings or a cut into blocks is written down for one length by a
tracer, and again at another. Behind an operator it stays Python, and the graph around it holds for
every batch and time. In eager mode the function is called as it is.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from linrnn.compute.derivatives import through_definition
from linrnn.compute.op import STOPPED, Arguments, Kernels, Op, Results, _ReachedError, apart
from linrnn.compute.precision import without_autocast

P = ParamSpec("P")
R = TypeVar("R", bound=tuple[Tensor, ...])
Explained = Callable[..., str]


class Composed(Op):
    """A differentiable function of tensors, and of lists of them, as an op.

    The operator computes outside of autocast. Its gradient computes the function once more and lets
    PyTorch differentiate it with respect to every tensor that asks for it.

    Args:
        name: of the operators and in messages.
        arguments: the schema, in the order of the function's arguments.
        function: returns a tuple of tensors; differentiable to any order.
        shapes: called with the same arguments, tensors shaped and typed like the results.
        lead: the argument whose device decides; of a list its first tensor.
        explained: called with the same arguments, says what computes a call where that is not
            always the same.
    """

    def __init__(
        self,
        name: str,
        arguments: str,
        function: Callable[..., Results],
        shapes: Callable[..., Results],
        *,
        lead: int,
        explained: Explained | None = None,
    ) -> None:
        self.function, self._explained = function, explained
        super().__init__(
            name,
            arguments,
            gradients=len(arguments.split(", ")),
            results=0,
            definition=self._composition,
            shapes=shapes,
            kernels={},
            opaque=True,
            lead=lead,
        )

    def __call__(self, *arguments: Any, backend: str | None = None) -> Any:
        """The results, by the function itself; in graphs and without memory by the operator."""
        if STOPPED.get():
            raise _ReachedError(self, arguments, backend)
        if torch.compiler.is_compiling() or self.leading(arguments).is_meta:
            return tuple(self.operator()(*arguments))
        return self.function(*arguments)

    def leading(self, arguments: Arguments) -> Tensor:
        """The tensor whose device decides."""
        lead: Any = arguments[self._lead]
        return cast(Tensor, lead if isinstance(lead, Tensor) else lead[0])

    def kernels(self, lead: Tensor, arguments: Arguments, backend: str | None) -> Kernels | None:
        """None, whatever the call: the function computes it."""
        return None

    def explain(self, arguments: Arguments, backend: str | None) -> str:
        """The code that computes a call, in words."""
        if self._explained is not None:
            return self._explained(*arguments)
        return "PyTorch's operators: nothing else computes it, on any device"

    def operands(self, arguments: Arguments, backend: str | None, *, keep: bool) -> Arguments:
        """Arguments of the operator: those of the call alone."""
        return arguments

    def decomposition(self, *inputs: Any) -> list[Tensor]:
        """The operator by the function."""
        return list(self.function(*inputs))

    def _composition(self, *arguments: Any, backend: str | None = None) -> Results:
        return self.function(*arguments)

    def _schemas(self, parts: list[str]) -> tuple[list[str], list[str]]:
        return parts, [*parts, "Tensor[] grads", "bool[] wanted"]

    def _run_operator(self, *arguments: Any) -> list[Tensor]:
        with without_autocast(self.leading(arguments).device):
            return apart(self.function(*arguments), arguments)

    def _fake(self, *arguments: Any) -> list[Tensor]:
        return list(self._shapes(*arguments))

    def _setup(self, ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
        leaves, ctx.structure = tree_flatten(list(inputs))
        ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in leaves))
        ctx.others = [None if isinstance(x, Tensor) else x for x in leaves]

    def _differentiate(self, ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
        """The gradient of the operator."""
        pairs = zip(ctx.saved_tensors, ctx.others, strict=True)
        arguments = tree_unflatten([x if y is None else y for x, y in pairs], ctx.structure)
        needs_grad = _flat_needs(arguments, ctx.needs_input_grad)
        if torch.is_grad_enabled():
            gradients = iter(self._gradients(arguments, grads, needs_grad))
        else:
            gradients = iter(self.operator("_backward")(*arguments, grads, needs_grad))
        each = tree_unflatten(
            [next(gradients) if want else None for want in needs_grad], ctx.structure
        )
        # a list of numbers is one argument without a gradient, and not a list of such
        needs = zip(each, ctx.needs_input_grad, strict=True)
        return tuple(g if isinstance(need, (list, tuple)) or need else None for g, need in needs)

    def _run_backward(self, *inputs: Any) -> list[Tensor]:
        *arguments, grads, needs_grad = inputs
        with torch.no_grad():
            return apart(self._gradients(arguments, grads, needs_grad), (arguments, grads))

    def _fake_backward(self, *inputs: Any) -> list[Tensor]:
        *arguments, _, needs_grad = inputs
        pairs = zip(tree_leaves(arguments), needs_grad, strict=True)
        return [x.new_empty(x.shape) for x, want in pairs if want]

    def _gradients(
        self, arguments: Arguments, grads: Sequence[Tensor], needs_grad: Sequence[bool]
    ) -> list[Tensor]:
        """The gradients of the leaves that need one; differentiable again in grad mode."""
        leaves, structure = tree_flatten(list(arguments))

        def definition(*leaves: Any) -> Results:
            return self.function(*tree_unflatten(list(leaves), structure))

        with without_autocast(self.leading(arguments).device):
            gradients = through_definition(definition, leaves, needs_grad, grads)
        return [g for g in gradients if g is not None]


def composed(
    name: str,
    arguments: str,
    shapes: Callable[P, R],
    *,
    lead: int = 0,
    explained: Explained | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a differentiable function of tensors: it becomes the op ``name``, a `Composed`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        op = Composed(name, arguments, function, shapes, lead=lead, explained=explained)
        typed = cast(Callable[P, R], op)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return typed(*args, **kwargs)

        return call

    return decorate


def _flat_needs(arguments: Arguments, needs: Sequence[Any]) -> list[bool]:
    """For every leaf of the arguments whether its gradient is needed."""
    flags: list[bool] = []
    for x, need in zip(arguments, needs, strict=True):
        if isinstance(need, (list, tuple)):
            flags += [bool(want) for want in tree_leaves(list(need))]
        else:
            flags += [bool(need)] * len(tree_leaves(x))
    return flags
