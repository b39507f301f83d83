"""Products inside of ops: plain tensors that kernels may take, with a gradient of their own.

An `Op` is a public recurrence, with operators for tracers and laws. A product is called by one,
behind its operator; whatever is not plain and eager goes through the definition.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from linrnn.compute.backend import WRITTEN_FOR, another_requested, choose
from linrnn.compute.derivatives import through_definition
from linrnn.compute.modes import eager
from linrnn.compute.op import load

Results = tuple[Tensor, ...]


@runtime_checkable  # as the shape checker of the test run needs it to be
class Computes(Protocol):
    """Computes a product and its gradient."""

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """The results."""

    def backward(self, *inputs: Any) -> Sequence[Tensor | None]:
        """Gradients of the first arguments, from all, saved results and gradients of results."""


class Product:
    """``definition(*arguments)``, by the kernels of the fastest backend that has some.

    Args:
        name: in messages.
        definition: of PyTorch's operators, differentiable to any order; returns several tensors.
        gradients: how many of the first arguments, tensors or None, have a gradient.
        kernels: the module of each backend that has one, as an import path, with the functions
            ``forward(*arguments)``, ``backward(*arguments, *saved, *grads)`` and ``unavailable``.
        saved: results, by number, that ``backward`` reads.
        keeps: how many results more ``forward`` returns with ``keep=True``. ``backward`` reads
            them, after ``saved``. With 0 ``forward`` has no such argument.
        selects: ``backward`` has a last argument: which of the gradients are needed, a bool each.
        otherwise: kernels of PyTorch's operators, for plain tensors where no others can; without
            any it is the definition.
    """

    def __init__(
        self,
        name: str,
        definition: Callable[..., Results],
        *,
        gradients: int,
        kernels: Mapping[str, str],
        otherwise: Computes | None = None,
        saved: Sequence[int] = (),
        keeps: int = 0,
        selects: bool = False,
    ) -> None:
        self.name, self.definition, self.gradients, self.saved = name, definition, gradients, saved
        self.selects, self.keeps = selects, keeps
        self._modules, self._otherwise = tuple(kernels.items()), otherwise

    def __call__(self, *arguments: Any) -> Results:
        """The results."""
        kernels = self.kernels(arguments)
        if kernels is None:
            return self.definition(*arguments)
        wanting = [x.requires_grad for x in arguments[: self.gradients] if x is not None]
        if not (any(wanting) and torch.is_grad_enabled()):
            options = {"keep": False} if self.keeps else {}
            results: Results = kernels.forward(*arguments, **options)
            return results
        results = _Function.apply(self, kernels, *arguments)
        return results

    def explain(self, arguments: Sequence[Any], backend: str | None) -> str:
        """The backend that would compute a call, and why."""
        lead = arguments[0]
        return choose(self.name, self._modules, backend, lead.device, lead.dtype)[1]

    def backend(self, arguments: Sequence[Any]) -> str | None:
        """Return the backend that computes a call, or None where operators are recorded."""
        tensors = [x for x in arguments if isinstance(x, Tensor)]
        if not eager(*tensors):
            return None
        return choose(self.name, self._modules, None, tensors[0].device, tensors[0].dtype)[0]

    def _has_none_for(self, x: Tensor) -> bool:
        """Whether no kernel is for the device: to choose among some takes 10 microseconds."""
        if self._otherwise is not None or another_requested():
            return False
        kind = x.device.type
        return all([WRITTEN_FOR.get(name, kind) != kind for name, _ in self._modules])

    def kernels(self, arguments: Sequence[Any]) -> Computes | None:
        """Return the kernels that compute a call, or None where the definition does."""
        if not torch.compiler.is_compiling() and self._has_none_for(arguments[0]):
            return None
        name = self.backend(arguments)
        if name is None:
            return None
        modules = dict(self._modules)
        return load(modules[name]) if name in modules else self._otherwise


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, product: Product, kernels: Computes, *arguments: Any) -> Results:
        ctx.product, ctx.kernels = product, kernels
        ctx.constants = [None if isinstance(x, Tensor) else (x,) for x in arguments]
        if product.keeps:
            every: Results = kernels.forward(*arguments, keep=True)
            results, residuals = every[: -product.keeps], every[-product.keeps :]
        else:
            results, residuals = kernels.forward(*arguments), ()
        saved = [*(results[i] for i in product.saved), *residuals]
        ctx.save_for_backward(*(x for x in arguments if isinstance(x, Tensor)), *saved)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved, product = iter(ctx.saved_tensors), ctx.product
        arguments = [next(saved) if constant is None else constant[0] for constant in ctx.constants]
        needs_grad = ctx.needs_input_grad[2:][: product.gradients]
        if torch.is_grad_enabled() or not eager(*grads):
            gradients: Sequence[Tensor | None]
            gradients = through_definition(product.definition, arguments, needs_grad, grads)
        else:
            needs = (needs_grad,) if product.selects else ()
            gradients = ctx.kernels.backward(*arguments, *saved, *grads, *needs)
        return None, None, *gradients, *(None,) * (len(arguments) - product.gradients)
