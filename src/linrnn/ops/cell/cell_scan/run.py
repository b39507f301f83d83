"""Choose the form that computes a call of `cell_scan`; define the operator that graphs hold."""

import functools
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from linrnn.compute.backend import BACKENDS, WRITTEN_FOR, _announce_slow, requested
from linrnn.compute.composed import composed
from linrnn.compute.derivatives import through_definition
from linrnn.compute.modes import eager, transformed
from linrnn.engine.graph import Program, parse
from linrnn.errors import BackendError, check_in
from linrnn.ops.cell.cell_scan._asked import FORMS, requested_form
from linrnn.ops.cell.cell_scan._loop import Step, loop
from linrnn.ops.cell.cell_scan._problem import Layout, Leaves, Results
from linrnn.ops.cell.cell_scan._scan import obstacle, scan

_NATIVE = {name: f"linrnn.ops.cell.cell_scan._{name}" for name in ("triton", "cpu")}
_NEWTON = "linrnn.ops.cell.cell_scan._newton"


class CellKernels(Protocol):
    """A module that computes cells: the native machine, or Newton's method.

    ``unavailable(device, dtype)``: why it cannot compute there, or None; the dtype is that of the
    outputs. There may be ``declines(program, leaves, layout)``: why it cannot compute this cell, or
    had better not; None otherwise. ``forward(program, leaves, layout, keep)`` returns outputs
    (batch, time, width) in ``layout.dtype``, final states (sequences, width) in the dtype of
    ``leaves.states``, and what it saves for the gradient, if ``keep`` (a list of tensors).
    ``backward(program, leaves, layout, saved, grad_outputs, grad_finals)`` returns the gradients
    as `Leaves` of the same lengths and dtypes; None stands for zeros.

    Leaves of one width have been expanded to it, and may have any strides; there is at least one
    step and one number in each state.
    """

    unavailable: Callable[..., str | None]
    forward: Callable[..., tuple[list[Tensor], list[Tensor], list[Tensor]]]
    backward: Callable[..., Leaves]


class Choice(NamedTuple):
    """A form, the backend it computes on, and why it was taken."""

    form: str
    backend: str | None
    why: str
    kernels: Any = None


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
    kind = _kind(leaves.states[0].device)
    reasons: dict[str, str | None] = {"native": _native_obstacle(kind, program, leaves, layout)}
    return reasons | {"scan": obstacle(program), "loop": None, "newton": None}


def _kind(device: torch.device) -> str:
    return next((n for n, where in WRITTEN_FOR.items() if where == device.type), "cpu")


def _native_obstacle(kind: str, program: Program, leaves: Leaves, layout: Layout) -> str | None:
    kernels = _module(_NATIVE[kind])
    if kernels is None:
        return f"there are no {kind} kernels for cells"
    reason: str | None = kernels.unavailable(leaves.states[0].device, layout.dtype)
    declines = getattr(kernels, "declines", None)
    if reason is None and declines is not None:
        reason = declines(program, leaves, layout)
    return reason


def choose(
    program: Program, leaves: Leaves, layout: Layout, form: str | None, backend: str | None
) -> Choice:
    """The form that computes a call.

    Raises:
        BackendError: the requested form or backend cannot.
        UnknownNameError: there is none of that name.
    """
    name, asked_by = requested(backend)
    check_in("cell_scan", "backend", name, (*BACKENDS, "auto"))
    form, why = requested_form(form)
    if form is not None:
        check_in("cell_scan", "form", form, FORMS)
        return _choose_form(program, leaves, layout, form, name, why)
    if name in _NATIVE:
        reason = _native_obstacle(name, program, leaves, layout)
        if reason is not None:
            raise BackendError(
                f"cell_scan: backend {name!r} (requested by {asked_by}) cannot compute this "
                f"call: {reason}. Use backend='tree', which runs everywhere."
            )
        return Choice(
            "native", name, f"native: {name} requested by {asked_by}", _module(_NATIVE[name])
        )
    if name == "auto":
        kind = _kind(leaves.states[0].device)
        if _native_obstacle(kind, program, leaves, layout) is None:
            return _native(leaves, "the fastest that supports the call")
        _announce(leaves, layout)
    if name == "auto" and layout.time == 1:
        return Choice("loop", None, "loop: one step is one call of the function")
    if name != "reference" and obstacle(program) is None:
        return Choice("scan", None if name == "auto" else name, "scan: all steps at once, by scans")
    return Choice(
        "loop", None, f"loop: {'the fastest that supports the call' if name == 'auto' else name}"
    )


def _announce(leaves: Leaves, layout: Layout) -> None:
    """Say that kernels which are there cannot run on this machine."""
    device = leaves.states[0].device
    kind = next((n for n, where in WRITTEN_FOR.items() if where == device.type), None)
    kernels = _module(_NATIVE[kind]) if kind else None
    reason = kernels.unavailable(device, layout.dtype) if kernels else None
    if reason is not None:
        _announce_slow("cell_scan", "tree", f"{kind} cannot ({reason})")


def _choose_form(
    program: Program, leaves: Leaves, layout: Layout, form: str, name: str, asked_by: str
) -> Choice:
    kind = name if form == "native" and name in _NATIVE else None
    if kind is not None:
        reason = _native_obstacle(kind, program, leaves, layout)
    else:
        reason = obstacles(program, leaves, layout)[form]
    if reason is not None:
        raise BackendError(
            f"cell_scan: form {form!r} must be one that can compute this cell, got one, requested "
            f"by {asked_by}, that cannot: {reason}. Leave it away."
        )
    why = f"requested by {asked_by}"
    if form == "native":
        return _native(leaves, why, kind)
    backend = None if name == "auto" else name
    return Choice(form, backend, f"{form}: {why}", _module(_NEWTON) if form == "newton" else None)


def _native(leaves: Leaves, why: str, kind: str | None = None) -> Choice:
    device = leaves.states[0].device.type
    kind = kind or next(n for n, where in WRITTEN_FOR.items() if where == device)
    return Choice("native", kind, f"native: {why}, on {kind}", _module(_NATIVE[kind]))


def explain(
    program: Program, leaves: Leaves, layout: Layout, form: str | None, backend: str | None
) -> str:
    """Say what would compute a call, and what keeps the cell from other forms."""
    chosen = choose(program, leaves, layout, form, backend)
    problems = obstacles(program, leaves, layout)
    refusals = [f"{x} cannot ({why})" for x, why in problems.items() if why and x != chosen.form]
    return "; ".join([chosen.why, *refusals])


def compute(
    program: Program,
    leaves: Leaves,
    layout: Layout,
    form: str | None,
    backend: str | None,
    step: Step | None = None,
) -> Results:
    """Outputs and final states, in the requested form or the fastest that supports the call."""
    chosen = choose(program, leaves, layout, form, backend)
    if not layout.time or not all(h.numel() for h in leaves.states):
        return loop(program, leaves, layout, step)
    if chosen.form == "scan":
        return scan(program, leaves, layout, chosen.backend)
    tensors = leaves.flat()
    modified = transformed()
    if modified:  # the graph is real; transforms do not know all of complex arithmetic
        step = None
    if chosen.kernels is None:
        return loop(program, leaves, layout, step)
    if modified or not all(map(eager, tensors)):
        return definition(program, leaves, layout, step)
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        results = _Function.apply(chosen.kernels, program, leaves.like, layout, *tensors)
        n = len(layout.widths)
        return list(results[:n]), list(results[n:])
    outputs, finals, _ = chosen.kernels.forward(program, leaves, layout, False)
    return outputs, finals


def definition(
    program: Program, leaves: Leaves, layout: Layout, step: Step | None = None
) -> Results:
    """Compute a call by PyTorch's operators: differentiable to any order, in every mode."""
    if layout.time != 1 and obstacle(program) is None:
        return scan(program, leaves, layout)
    return loop(program, leaves, layout, step)


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
        ctx.layout = layout._replace(reset=None, cu_seqlens=None)
        ctx.count = len(tensors)
        return (*outputs, *finals)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        stored = ctx.saved_tensors  # once: checkpointing gives them out no second time
        tensors, (reset, cu_seqlens, *saved) = stored[: ctx.count], stored[ctx.count :]
        layout = ctx.layout._replace(reset=reset, cu_seqlens=cu_seqlens)
        needs_grad = ctx.needs_input_grad[4:]
        if torch.is_grad_enabled() or not eager(*grads):
            computed = _by_definition(ctx.program, ctx.like, layout, tensors, needs_grad, grads)
        else:
            n = len(layout.widths)
            arguments = (ctx.program, ctx.like(tensors), layout, saved, grads[:n], grads[n:])
            computed = ctx.kernels.backward(*arguments).flat()
        gradients = (g if want else None for g, want in zip(computed, needs_grad, strict=True))
        return None, None, None, None, *gradients


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
    outputs, finals = compute(parse(program), leaves, layout, form, backend)
    return (*outputs, *finals)
