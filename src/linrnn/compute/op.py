"""An op, described once: what PyTorch and its compilers want to know follows from the description.

Two operators, ``linrnn::<name>`` and ``linrnn::<name>_backward``, are what tracers and exporters
see. Plain tensors in eager mode take the same functions as a `torch.autograd.Function`, at a third
of an operator's cost a call. Transforms of `torch.func`, empty inputs and second derivatives go
through the definition.
"""

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from linrnn._process.ambient import Ambient
from linrnn.compute.arguments import traced
from linrnn.compute.backend import BACKENDS, WRITTEN_FOR, choose, requested
from linrnn.compute.derivatives import Gradients, through_definition
from linrnn.compute.layout import dense
from linrnn.compute.modes import eager, eager_apply, transformed
from linrnn.compute.precision import without_autocast

Arguments = Sequence[Any]
Results = tuple[Tensor, ...]

#: Every op that has been described, by name.
ALL: dict[str, "Op"] = {}

_library = torch.library.Library("linrnn", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag,)


@runtime_checkable  # as the shape checker of the test run needs it to be
class Kernels(Protocol):
    """A module that computes an op on one backend.

    ``forward(*arguments, *extras)`` returns the results; an extra is a tensor to be filled for the
    gradient, or None. ``backward(*arguments, *saved, *extras, *grads)`` returns a gradient, or
    None, for each of the first arguments. There may be ``declines(*arguments)``: why, though the
    kernels could, operators are the better way: those of the backend ``tree``, else the definition.
    Results in ``SPARSE_GRADS``, by number, have None for a gradient where nobody reads them.
    There may be ``form(*arguments)``: how its kernels are laid out for a call, and why, in words.
    """

    forward: Callable[..., Any]
    backward: Callable[..., Sequence[Tensor | None]]

    def unavailable(self, device: torch.device, dtype: torch.dtype) -> str | None:
        """Why it cannot compute on that device and dtype, or None when it can."""


class Op:
    """A recurrence and everything that computes it; called with the arguments of its schema.

    Args:
        name: of the operators and in messages.
        arguments: the schema: tensors first, and first of these the ones with a gradient.
        gradients: how many have a gradient.
        results: how many results there are.
        definition: the results, composed of PyTorch's operators: runs anywhere, differentiable to
            any order. Takes ``backend=`` for the recurrences in it.
        shapes: called with the arguments, tensors shaped and typed like the results.
        kernels: the module of each backend that has one, as an import path.
        saved: results that the gradient reads.
        unread: arguments it does not read, and so does not keep, with a result of the same shape.
        extras: called with the kernels and the arguments: tensors that ``forward`` is to fill.
        n_extras: how many.
        adjoint: takes what ``backward`` of kernels does, to gradients that can be differentiated
            again; by default those of the definition.
        transform: takes the place of the definition inside `torch.func`.
        opaque: compilers must not look into the definition, whose Python depends on the length.
        lead: the argument whose device and dtype decide, and whether there is anything to do.
    """

    def __init__(
        self,
        name: str,
        arguments: str,
        *,
        gradients: int,
        results: int,
        definition: Callable[..., Any],
        shapes: Callable[..., Any],
        kernels: Mapping[str, str],
        saved: Sequence[int] = (),
        unread: Mapping[int, int] | None = None,
        extras: Callable[..., Results] | None = None,
        n_extras: int = 0,
        adjoint: Callable[..., Gradients] | None = None,
        transform: Callable[..., Any] | None = None,
        opaque: bool = False,
        lead: int = 0,
    ) -> None:
        self.name, self.gradients, self.results = name, gradients, results
        self.definition, self.transform = definition, transform or definition
        self._shapes, self._extras, self._adjoint = shapes, extras, adjoint
        self._modules, self._lead, self._opaque = dict(kernels), lead, opaque
        self._table = tuple(self._modules.items())
        self._saved, self._unread, self._n_extras = saved, dict(unread or {}), n_extras
        parts = arguments.split(", ")
        self._arguments = len(parts)
        self.names = [part.split()[-1] for part in parts]
        self._tensors = sum(part.startswith("Tensor") for part in parts)
        self._register(parts)
        ALL[name] = self

    def __call__(self, *arguments: Any, backend: str | None = None) -> Any:
        """The results, on the requested backend or the fastest that can compute them."""
        if STOPPED.get():
            raise _ReachedError(self, arguments, backend)
        tensors = [x for x in arguments[: self.gradients] if x is not None]
        keep = torch.is_grad_enabled() and any([x.requires_grad for x in tensors])
        lead = arguments[self._lead]
        if not eager(*tensors):
            if not _below_transforms() and self._in_graphs(lead.device.type, backend):
                return self._node(*arguments, keep, backend)
            return self.transform(*arguments, backend=backend)
        kernels = self.kernels(lead, arguments, backend)
        if kernels is None and self._opaque and lead.is_meta:
            return self._node(*arguments, keep, backend)
        if not keep or (kernels is None and lead.numel()):
            return self.compute(kernels, *arguments, backend=backend)
        # an empty call too: what no result depends on has a gradient of zeros
        outputs = _apply(self, kernels, *arguments)
        return outputs[0] if self.results == 1 else outputs

    def compute(self, kernels: Kernels | None, *arguments: Any, backend: str | None = None) -> Any:
        """The results, whatever is going on around the call; by kernels without a gradient."""
        if kernels is None:
            return self.definition(*arguments, backend=backend)
        outputs = self.run(kernels, arguments, keep=False)
        return outputs[0] if self.results == 1 else outputs

    def plain(self, *inputs: Any) -> Any:
        """The results for arguments followed by the backend, inside of a transform's own rules."""
        *arguments, backend = inputs
        kernels = self.kernels(arguments[self._lead], arguments, backend)
        return self.compute(kernels, *arguments, backend=backend)

    def operator(self, suffix: str = "") -> Any:
        """The operator as a graph has it."""
        return getattr(torch.ops.linrnn, self.name + suffix).default

    def operands(self, arguments: Arguments, backend: str | None, *, keep: bool) -> Arguments:
        """Arguments of the operator for a call of the op; ``keep`` with a gradient."""
        return (*arguments, keep, backend)

    def leading(self, arguments: Arguments) -> Tensor:
        """The tensor whose device and dtype decide."""
        lead: Tensor = arguments[self._lead]
        return lead

    def decomposition(self, *inputs: Any) -> list[Tensor]:
        """The operator by the definition, without what it keeps for a gradient."""
        *arguments, _, backend = inputs
        outputs = self.definition(*arguments, backend=backend)
        return [outputs] if isinstance(outputs, Tensor) else list(outputs)

    def kernels(self, lead: Tensor, arguments: Arguments, backend: str | None) -> Kernels | None:
        """The kernels that compute a call, or None where the definition does.

        Raises:
            BackendError, UnknownNameError: as `linrnn.compute.backend.choose`.
        """
        if lead.numel() == 0:
            return None
        name, _ = choose(self.name, self._table, backend, lead.device, lead.dtype)
        if name not in self._modules:
            return None
        kernels = load(self._modules[name])
        declines = getattr(kernels, "declines", None)
        if declines is not None and declines(*arguments):
            return load(self._modules["tree"]) if "tree" in self._modules else None
        return kernels

    def explain(self, arguments: Arguments, backend: str | None) -> str:
        """The backend that would compute a call, and why; if chosen automatically, why no other."""
        lead = arguments[self._lead]
        name, why = choose(self.name, self._table, backend, lead.device, lead.dtype)
        kernels = load(self._modules[name]) if name in self._modules else None
        declines = getattr(kernels, "declines", None)
        reason = None if declines is None else declines(*arguments)
        if reason:
            return f"composed of PyTorch's operators: {reason}"
        if lead.numel() and hasattr(kernels, "form"):
            why = f"{why}, as {cast(Any, kernels).form(*arguments)}"
        if requested(backend)[0] != "auto":
            return why
        problems = self.problems(lead.device, lead.dtype)
        rejected = [
            f"{candidate} cannot ({problems[candidate]})"
            if problems[candidate]
            else f"{candidate} is slower"
            for candidate in BACKENDS
            if candidate != name and f"{candidate} cannot" not in why
        ]
        return "; ".join([why, *rejected])

    def problems(self, device: torch.device, dtype: torch.dtype) -> dict[str, str | None]:
        """Each backend, and why it cannot compute on that device and dtype, or None."""
        reasons: dict[str, str | None] = {}
        for name in BACKENDS:
            module = self._modules.get(name)
            missing = None if name not in WRITTEN_FOR else "it has no kernel for this op"
            reasons[name] = load(module).unavailable(device, dtype) if module else missing
        return reasons

    def run(self, kernels: Kernels | None, arguments: Arguments, *, keep: bool) -> Results:
        """The results, and behind them the extras; None computes an empty call."""
        if kernels is None:
            outputs = self.definition(*arguments)
            return tuple(apart([outputs] if isinstance(outputs, Tensor) else outputs, arguments))
        extras = self._extras(kernels, *arguments) if keep and self._extras else ()
        outputs = kernels.forward(*arguments, *(extras or (None,) * self._n_extras))
        return (*((outputs,) if isinstance(outputs, Tensor) else outputs), *extras)

    def gradient(self, inputs: Arguments, needs_grad: Sequence[bool]) -> Gradients:
        """Gradients that can be differentiated again, from what ``backward`` of kernels takes."""
        arguments, grads = list(inputs[: self._arguments]), inputs[-self.results :]
        for i, result in self._unread.items():
            arguments[i] = grads[result]
        if self._adjoint is None or arguments[self._lead].numel() == 0:
            return through_definition(self.definition, arguments, needs_grad, grads)
        gradients = self._adjoint(*inputs)
        return [g if want else None for g, want in zip(gradients, needs_grad, strict=True)]

    def backward(
        self,
        arguments: Arguments,
        saved: Sequence[Tensor],
        grads: Sequence[Tensor],
        needs_grad: Sequence[bool] | None = None,
        *,
        backend: str | None = None,
    ) -> Any:
        """First derivatives of the first arguments, of all unless some need none.

        Args:
            arguments: of the call, None for those the gradient does not read.
            saved: the results it reads, and the extras.
            grads: of all results.
            needs_grad: which of the first arguments have one.
            backend: as the call's.
        """
        lead = arguments[self._lead]
        lead = grads[self._unread[self._lead]] if lead is None else lead
        kernels = self.kernels(lead, arguments, backend)
        inputs = (*arguments, *saved, *grads)
        if kernels is not None:
            return kernels.backward(*inputs)
        return self.gradient(inputs, needs_grad or (True,) * self.gradients)

    def keep(self, ctx: Any, arguments: Arguments, outputs: Results) -> None:
        """Save what the gradient needs."""
        tensors = list(arguments[: self._tensors])
        for i in self._unread:
            tensors[i] = None
        results = [outputs[i] for i in self._saved]
        ctx.save_for_backward(*tensors, *results, *outputs[self.results :])
        ctx.flags = arguments[self._tensors :]

    def kept(self, ctx: Any) -> tuple[Arguments, Results]:
        """The arguments, and what was saved beside them."""
        tensors = ctx.saved_tensors
        return (*tensors[: self._tensors], *ctx.flags), tensors[self._tensors :]

    def _node(self, *inputs: Any) -> Any:
        """The results, by the operator."""
        outputs = self.operator()(*inputs)
        return outputs[0] if self.results == 1 else tuple(outputs[: self.results])

    def _in_graphs(self, device: str, backend: str | None) -> bool:
        """Whether a graph holds the operator: elsewhere a compiler does better to look inside."""
        written = [name for name in self._modules if WRITTEN_FOR.get(name, device) == device]
        eligible = backend in (None, "auto") or backend in written
        return self._opaque or (bool(written) and eligible)

    def _register(self, parts: list[str]) -> None:
        name, back = self.name, f"{self.name}_backward"
        for operator, schema in zip((name, back), self._schemas(parts), strict=True):
            _library.define(f"{operator}({', '.join(schema)}) -> Tensor[]", tags=_TAGS)
        _library.impl(name, self._run_operator, "CompositeExplicitAutograd")
        _library.impl(back, self._run_backward, "CompositeExplicitAutograd")
        torch.library.register_fake(f"linrnn::{name}", self._fake, lib=_library)
        torch.library.register_fake(f"linrnn::{back}", self._fake_backward, lib=_library)
        torch.library.register_autograd(
            f"linrnn::{name}", self._differentiate, setup_context=self._setup, lib=_library
        )

    def _schemas(self, parts: list[str]) -> tuple[list[str], list[str]]:
        """Arguments of the operator, and of that of its gradient."""
        backward_parts = [
            part.replace("Tensor ", "Tensor? ") if i in self._unread else part
            for i, part in enumerate(parts)
        ]
        backward_parts += ["Tensor[] saved", "Tensor[] grads", "bool[] wanted", "str? backend"]
        return [*parts, "bool keep", "str? backend"], backward_parts

    def _run_operator(self, *inputs: Any) -> list[Tensor]:
        *arguments, keep, backend = inputs
        kernels = self.kernels(arguments[self._lead], arguments, backend)
        if kernels is not None:
            return list(self.run(kernels, arguments, keep=keep))
        with without_autocast(arguments[self._lead].device):
            return apart(self.decomposition(*inputs), arguments)

    def _fake(self, *inputs: Any) -> list[Tensor]:
        *arguments, keep, backend = inputs
        outputs = self._shapes(*arguments)
        results = (outputs,) if isinstance(outputs, Tensor) else outputs
        if not (keep and self._extras):
            return list(results)
        kernels = self.kernels(arguments[self._lead], arguments, backend)
        return [*results, *(() if kernels is None else self._extras(kernels, *arguments))]

    def _setup(self, ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
        *arguments, _, ctx.backend = inputs
        self.keep(ctx, arguments, tuple(output))

    def _differentiate(self, ctx: Any, grads: list[Tensor]) -> tuple[Tensor | None, ...]:
        """The gradient of the operator."""
        arguments, saved = self.kept(ctx)
        needs_grad, grads = ctx.needs_input_grad[: self.gradients], grads[: self.results]
        if torch.is_grad_enabled():
            gradients = self.gradient((*arguments, *saved, *grads), needs_grad)
        else:
            back = self.operator("_backward")
            computed = iter(back(*arguments, list(saved), grads, list(needs_grad), ctx.backend))
            gradients = [next(computed) if want else None for want in needs_grad]
        return *gradients, *(None,) * (self._arguments - self.gradients + 2)

    def _run_backward(self, *inputs: Any) -> list[Tensor]:
        *arguments, saved, grads, needs_grad, backend = inputs
        with without_autocast(grads[0].device):
            gradients = self.backward(arguments, saved, grads, needs_grad, backend=backend)
        pairs = zip(gradients, needs_grad, strict=True)
        return apart([cast(Tensor, g) for g, want in pairs if want], (arguments, saved, grads))

    def _fake_backward(self, *inputs: Any) -> list[Tensor]:
        grads, needs_grad = inputs[-3:-1]
        like = [grads[self._unread[i]] if i in self._unread else x for i, x in enumerate(inputs)]
        pairs = zip(like, needs_grad, strict=False)
        return [x.new_empty(x.shape) for x, want in pairs if want]


def _below_transforms() -> bool:
    """Inside a transform of `torch.func` that no compiler looks at: operators have no rules there.

    So it is under a dispatch mode as well, which would see the operator.
    """
    return transformed() and not torch.compiler.is_compiling()


class _ReachedError(Exception):
    """A call of an op that was not made."""


#: Inside, no op computes: it raises what it was called with.
STOPPED: Ambient[bool] = Ambient("stopped", lambda stopped: stopped)


def reached(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The op that a call of ``function`` comes to first, with its arguments and its backend.

    Nothing is computed. None where the call comes to no op.
    """
    try:
        with STOPPED.set(True):
            function(*args, **kwargs)
    except _ReachedError as call:
        return call.args
    return None


def watched() -> bool:
    """Whether somebody records or transforms what is called, or only asks what would be."""
    return bool(STOPPED.get()) or not eager() or traced()


class _Function(torch.autograd.Function):
    """An op in eager mode. Keeping inputs in setup_context would double a small call's cost."""

    @staticmethod
    def forward(ctx: Any, op: Op, kernels: Kernels | None, *arguments: Any) -> Results:
        outputs = op.run(kernels, arguments, keep=True)
        ctx.op, ctx.kernels, ctx.like = op, kernels, None
        if hasattr(kernels, "SPARSE_GRADS"):
            ctx.set_materialize_grads(False)  # spares a kernel that writes zeros
            ctx.like = [(y.shape, y.dtype, y.device) for y in outputs[: op.results]]
        op.keep(ctx, arguments, outputs)
        return outputs[: op.results]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        op: Op = ctx.op
        arguments, saved = op.kept(ctx)
        needs_grad = ctx.needs_input_grad[2 : 2 + op.gradients]
        present = [g for g in grads if g is not None]
        if ctx.kernels is None or torch.is_grad_enabled() or not eager(*present):
            inputs = (*arguments, *saved, *_filled(grads, ctx.like, ()))
            gradients: Sequence[Tensor | None] = op.gradient(inputs, needs_grad)
        else:
            filled = grads
            if ctx.like is not None:
                filled = _filled(grads, ctx.like, ctx.kernels.SPARSE_GRADS)
            gradients = ctx.kernels.backward(*arguments, *saved, *filled)
        masked = [g if want else None for g, want in zip(gradients, needs_grad, strict=True)]
        return None, None, *masked, *(None,) * (len(arguments) - op.gradients)


_apply = eager_apply(_Function)


def _filled(
    grads: Sequence[Tensor | None], like: Any, sparse: Sequence[int]
) -> tuple[Tensor | None, ...]:
    """Gradients of results; zeros for those that nobody reads, unless they may be None."""
    return tuple(
        torch.zeros(like[i][0], dtype=like[i][1], device=like[i][2])
        if g is None and i not in sparse
        else g
        for i, g in enumerate(grads)
    )


@functools.cache
def load(module: str) -> Kernels:
    """The kernels in a module, which the first call that runs on them imports."""
    return cast(Kernels, importlib.import_module(module))


def apart(outputs: Iterable[Tensor], inputs: Any) -> list[Tensor]:
    """Results as an operator must return them: dense, and sharing memory with nothing."""
    memories = {_memory(x) for x in tree_leaves(list(inputs)) if isinstance(x, Tensor)}
    results = []
    for y in map(dense, outputs):
        results.append(y.clone() if _memory(y) in memories else y)
        memories.add(_memory(results[-1]))
    return results


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()
