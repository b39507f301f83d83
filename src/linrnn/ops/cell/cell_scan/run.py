"""Choose the form that computes a call of `cell_scan`; define the operator that graphs hold."""

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from linrnn._process.ambient import Ambient
from linrnn.cells import Cell
from linrnn.compute.backend import BACKENDS, WRITTEN_FOR, _announce_slow, requested
from linrnn.compute.composed import composed
from linrnn.compute.derivatives import through_definition
from linrnn.compute.modes import eager, eager_apply, transformed
from linrnn.engine.graph import Program, parse
from linrnn.errors import BackendError, check_in
from linrnn.ops.cell.cell_scan._arguments import Layout, Leaves, Results
from linrnn.ops.cell.cell_scan._newton import NOTED, Convergence

FORMS = ("native", "scan", "loop", "newton")
"""How a cell can be computed; fastest first; last the form that must be requested."""
_REQUESTED: Ambient[str | None] = Ambient("form", lambda form: form is not None)


_NATIVE = {name: f"linrnn.ops.cell.cell_scan._{name}" for name in ("triton", "cpu")}
_WRITTEN_BY = {device: name for name, device in WRITTEN_FOR.items()}
_MODULES = _NATIVE | {name: f"linrnn.ops.cell.cell_scan._{name}" for name in FORMS[1:]}


@contextmanager
def use_form(form: str | None) -> Iterator[list[Convergence]]:
    """Compute every cell inside the ``with`` block in one form: that of a layer or a whole model.

    Args:
        form: as of `cell_scan`; None restores its own choice. It holds for this thread and task,
            as `use_backend` does; a call's own ``form=`` is stronger. A single step of a stream,
            and layers that PyTorch's own kernels compute, take it where they are cells.

    Yields:
        A list, to which each call that Newton's method solves adds its residual and rounds.

    Raises:
        UnknownNameError: no such form.
        BackendError: inside of the block, for a cell that the form cannot compute.

    Example:
        >>> import torch
        >>> from linrnn.mixers import UnICORNN
        >>> from linrnn.ops import use_form
        >>> with torch.no_grad(), use_form("newton") as found:
        ...     y, state = UnICORNN(8)(torch.randn(1, 500, 8))
        >>> found[0].rounds < 20
        True
    """
    if form is not None:
        check_in("use_form", "form", form, FORMS)
    noted: list[Convergence] = []
    with NOTED.set(noted), _REQUESTED.set(form):
        yield noted


def requested_form(explicit: str | None) -> tuple[str | None, str]:
    """The requested form and by what: the argument, or `use_form`."""
    form = _REQUESTED.get() if explicit is None else None
    if form is None:
        return explicit, "the argument form="
    return form, "linrnn.ops.use_form"


class CellKernels(Protocol):
    """A module that computes cells: the native machine, Triton, or Newton's method.

    There may be ``unavailable(device, dtype)``: why it cannot compute there, or None; the dtype is
    that of the outputs; and ``declines(program, leaves, layout)``: why it cannot compute this cell,
    or had better not. ``forward(program, leaves, layout, keep)`` returns outputs
    (batch, time, width) in ``layout.dtype``, final states (sequences, width) in the dtype of
    ``leaves.states``, and what it saves for the gradient, if ``keep`` (a list of tensors).
    ``backward(program, leaves, layout, saved, grad_outputs, grad_finals)`` returns the gradients
    as `Leaves` of the same lengths and dtypes; None stands for zeros. A form made of PyTorch's
    operators has ``results(program, leaves, layout, step, backend)`` in place of these two, and
    autograd derives it.

    Leaves of one width have been expanded to it, and may have any strides; there is at least one
    step and one number in each state.
    """

    forward: Callable[..., tuple[list[Tensor], list[Tensor], list[Tensor]]]
    backward: Callable[..., Leaves]


Step = Callable[..., tuple[list[Tensor], list[Tensor]]]
"""``step(states, inputs, parameters, matrices)`` to outputs and next states."""


class Choice(NamedTuple):
    """A form, the backend it computes on, and why it was taken."""

    form: str
    backend: str | None
    why: str
    kernels: Any
    """The module that computes it."""


@functools.cache
def _module(name: str) -> Any:
    """The kernels in a module, None where it is not there."""
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


def has_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether kernels compute cells there, unless something else was requested."""
    kind = _kind(device)
    module = kernels(kind)
    allowed = requested(None)[0] in ("auto", kind)
    return allowed and module is not None and module.unavailable(device, dtype) is None


def kernels(kind: str) -> Any:
    """The native kernels of a kind, None where there are none."""
    return _module(_NATIVE[kind])


def problems(device: torch.device, dtype: torch.dtype) -> dict[str, str | None]:
    """Each backend, and why it cannot compute any cell on that device and dtype, or None."""
    modules = {name: _module(where) for name, where in _NATIVE.items()}
    return {n: modules[n].unavailable(device, dtype) if n in modules else None for n in BACKENDS}


def obstacles(program: Program, leaves: Leaves, layout: Layout) -> dict[str, str | None]:
    """Each form, and why it cannot compute a call, or None."""
    names = (_kind(leaves.states[0].device), *FORMS[1:])
    reasons = [_obstacle(name, program, leaves, layout) for name in names]
    return dict(zip(FORMS, reasons, strict=True))


def _kind(device: torch.device) -> str:
    return _WRITTEN_BY.get(device.type, "cpu")


def _obstacle(name: str, program: Program, leaves: Leaves, layout: Layout) -> str | None:
    """Why native kernels of a kind, or another form, cannot compute a call, or None."""
    module = _module(_MODULES[name])
    if module is None:
        return f"there are no {name} kernels for cells"
    unavailable = getattr(module, "unavailable", None)
    declines = getattr(module, "declines", None)
    reason: str | None = None
    if unavailable is not None:
        reason = unavailable(leaves.states[0].device, layout.dtype)
    if reason is None and declines is not None:
        reason = declines(program, leaves, layout)
    return reason


def choose(
    program: Program,
    leaves: Leaves,
    layout: Layout,
    form_request: tuple[str | None, str],
    backend_request: tuple[str, str],
) -> Choice:
    """The form that computes a call.

    Args:
        program, leaves, layout: of the call.
        form_request, backend_request: what is requested and by what, as `requested_form` and
            `requested` say.

    Raises:
        BackendError: the requested form or backend cannot.
        UnknownNameError: there is none of that name.
    """
    form, form_source = form_request
    name, backend_source = backend_request
    check_in("cell_scan", "backend", name, (*BACKENDS, "auto"))
    if form is not None:
        check_in("cell_scan", "form", form, FORMS)
        return _choose_form(program, leaves, layout, form, name, form_source)
    if name in _NATIVE:
        reason = _obstacle(name, program, leaves, layout)
        if reason is not None:
            raise BackendError(
                f"cell_scan: backend {name!r} (requested by {backend_source}) cannot compute this "
                f"call: {reason}. Use backend='tree', which runs everywhere."
            )
        return _choice("native", name, f"{name} requested by {backend_source}")
    fastest = "the fastest that supports the call" if name == "auto" else name
    if name == "auto":
        kind = _kind(leaves.states[0].device)
        if _obstacle(kind, program, leaves, layout) is None:
            return _choice("native", kind, f"{fastest}, on {kind}")
        _announce(leaves, layout)
    if name == "auto" and layout.time == 1:
        return _choice("loop", None, "one step is one call of the function")
    if name != "reference" and _obstacle("scan", program, leaves, layout) is None:
        backend = None if name == "auto" else name
        return _choice("scan", backend, "all steps at once, by scans")
    return _choice("loop", None, fastest)


def _choice(form: str, backend: str | None, why: str) -> Choice:
    kind = backend if form == "native" else form
    return Choice(form, backend, f"{form}: {why}", _module(_MODULES[kind or "cpu"]))


def _announce(leaves: Leaves, layout: Layout) -> None:
    """Say that kernels which are there cannot run on this machine."""
    device = leaves.states[0].device
    kind = _WRITTEN_BY.get(device.type)
    kernels = _module(_NATIVE[kind]) if kind else None
    reason = kernels.unavailable(device, layout.dtype) if kernels else None
    if reason is not None:
        _announce_slow("cell_scan", "tree", f"{kind} cannot ({reason})")


def _choose_form(
    program: Program, leaves: Leaves, layout: Layout, form: str, name: str, asked_by: str
) -> Choice:
    kind = name if name in _NATIVE else _kind(leaves.states[0].device)
    reason = _obstacle(kind if form == "native" else form, program, leaves, layout)
    if reason is not None:
        raise BackendError(
            f"cell_scan: form {form!r} must be one that can compute this cell, got one, requested "
            f"by {asked_by}, that cannot: {reason}. Leave it away."
        )
    why = f"requested by {asked_by}"
    if form == "native":
        return _choice(form, kind, f"{why}, on {kind}")
    return _choice(form, None if name == "auto" else name, why)


def explain(
    program: Program, leaves: Leaves, layout: Layout, form: str | None, backend: str | None
) -> str:
    """Say what would compute a call, and what keeps the cell from other forms."""
    chosen = choose(program, leaves, layout, requested_form(form), requested(backend))
    problems = obstacles(program, leaves, layout)
    refusals = [f"{x} cannot ({why})" for x, why in problems.items() if why and x != chosen.form]
    why = chosen.why
    is_empty = not layout.time or not all(h.numel() for h in leaves.states)
    if hasattr(chosen.kernels, "form") and not is_empty:  # of native kernels on a GPU
        why = f"{why}, as {chosen.kernels.form(program, leaves, layout).why}"
    return "; ".join([why, *refusals])


def compute(
    chosen: Choice, program: Program, leaves: Leaves, layout: Layout, step: Step | None = None
) -> Results:
    """Outputs and final states, in a form; ``step`` is the function the program was read from."""
    tensors = leaves.flat()
    modified = transformed()
    empty = not layout.time or not all([h.numel() for h in leaves.states])
    if modified and not (empty or chosen.form == "scan"):
        step = None  # the graph is real; transforms do not know all of complex arithmetic
    kernels = _module(_MODULES["loop"]) if empty else chosen.kernels
    if hasattr(kernels, "results"):
        outputs, finals = kernels.results(program, leaves, layout, step, chosen.backend)
    elif modified or not eager(*tensors):
        outputs, finals = definition(program, leaves, layout, step)
    elif torch.is_grad_enabled() and any([x.requires_grad for x in tensors]):
        results = with_gradient(kernels, program, leaves.like, layout, *tensors)
        n = len(layout.widths)
        outputs, finals = list(results[:n]), list(results[n:])
    else:
        outputs, finals, _ = kernels.forward(program, leaves, layout, False)
    return outputs, finals


def joined(cell: Cell, outputs: Sequence[Tensor], finals: Sequence[Tensor]) -> tuple[Any, Any]:
    """The pair that `cell_scan` returns, of outputs and final states part by part."""
    last = cell.joined(0, finals)
    return cell.outputs(outputs), last[0] if len(last) == 1 else tuple(last)


def definition(
    program: Program, leaves: Leaves, layout: Layout, step: Step | None = None
) -> Results:
    """Compute a call by PyTorch's operators: differentiable to any order, in every mode."""
    scans = layout.time != 1 and _obstacle("scan", program, leaves, layout) is None
    by_operators = _module(_MODULES["scan" if scans else "loop"])
    results: Results = by_operators.results(program, leaves, layout, step)
    return results


class _Function(torch.autograd.Function):
    """A cell by kernels."""

    @staticmethod
    def forward(
        ctx: Any, kernels: Any, program: Program, like: Any, layout: Layout, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        leaves = like(tensors)
        outputs, finals, saved = kernels.forward(program, leaves, layout, True)
        ctx.kernels, ctx.program, ctx.like = kernels, program, like
        marks = (layout.reset, layout.cu_seqlens)
        ctx.save_for_backward(*tensors, *marks, *saved)
        ctx.layout = layout.marked(None, None)
        ctx.count = len(tensors)
        return (*outputs, *finals)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        stored = ctx.saved_tensors  # once: checkpointing gives them out no second time
        tensors, (reset, cu_seqlens, *saved) = stored[: ctx.count], stored[ctx.count :]
        layout = ctx.layout.marked(reset, cu_seqlens)
        needs_grad = ctx.needs_input_grad[4:]
        if torch.is_grad_enabled() or not eager(*grads):
            computed = _by_definition(ctx.program, ctx.like, layout, tensors, needs_grad, grads)
        else:
            n = len(layout.widths)
            arguments = (ctx.program, ctx.like(tensors), layout, saved, grads[:n], grads[n:])
            computed = ctx.kernels.backward(*arguments).flat()
        gradients = [g if want else None for g, want in zip(computed, needs_grad, strict=True)]
        return None, None, None, None, *gradients


#: A cell by kernels, of arguments as of `_Function.forward`.
with_gradient = eager_apply(_Function)


def _by_definition(
    program: Program,
    like: Any,
    layout: Layout,
    tensors: Sequence[Tensor],
    needs_grad: Sequence[bool],
    grads: Sequence[Tensor],
) -> list[Tensor | None]:
    """Gradients that can be differentiated again."""

    def results(*flat: Tensor) -> tuple[Tensor, ...]:
        outputs, finals = definition(program, like(flat), layout)
        return (*outputs, *finals)

    return through_definition(results, tensors, needs_grad, grads)


def _shapes(
    states: list[Tensor],
    inputs: list[Tensor],
    parameters: list[Tensor],
    matrices: list[Tensor],
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    time: int,
    reverse: bool,
    starts: list[float],
    dtype: torch.dtype,
    widths: list[int],
    program: str,
    form: str | None,
    backend: str | None,
) -> tuple[Tensor, ...]:
    rows = states[0].shape[0] if cu_seqlens is None else 1
    outputs = (states[0].new_empty(rows, time, n, dtype=dtype) for n in widths)
    return (*outputs, *(h.new_empty(h.shape) for h in states))


def _explained(*arguments: Any) -> str:
    *call, program, form, backend = arguments
    leaves, layout = Leaves(*call[:4]), Layout(*call[4:])
    return explain(parse(program), leaves, layout, form, backend)


@composed(
    "cell_scan",
    "Tensor[] states, Tensor[] inputs, Tensor[] parameters, Tensor[] matrices, Tensor? reset, "
    "Tensor? cu_seqlens, SymInt time, bool reverse, float[] starts, ScalarType dtype, "
    "SymInt[] widths, str program, str? form, str? backend",
    _shapes,
    explained=_explained,
)
def of_text(
    states: list[Tensor],
    inputs: list[Tensor],
    parameters: list[Tensor],
    matrices: list[Tensor],
    reset: Tensor | None,
    cu_seqlens: Tensor | None,
    time: int,
    reverse: bool,
    starts: list[float],
    dtype: torch.dtype,
    widths: list[int],
    program: str,
    form: str | None,
    backend: str | None,
) -> tuple[Tensor, ...]:
    """Outputs, then final states; the cell is the text of its program."""
    leaves = Leaves(states, inputs, parameters, matrices)
    layout = Layout(reset, cu_seqlens, time, reverse, starts, dtype, widths)
    parsed = parse(program)
    chosen = choose(parsed, leaves, layout, requested_form(form), requested(backend))
    outputs, finals = compute(chosen, parsed, leaves, layout)
    return (*outputs, *finals)
