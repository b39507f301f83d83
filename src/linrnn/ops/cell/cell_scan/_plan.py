"""Calls of `cell_scan` that come again: see `linrnn.compute.replay`.

Beside what such calls have in common, the offsets of packed sequences are numbers that are looked
at.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from linrnn.cells import Cell
from linrnn.compute import native
from linrnn.compute.arguments import check_rising
from linrnn.compute.backend import requested
from linrnn.compute.op import watched
from linrnn.compute.replay import Replay, Replays, empty, kinds, outline, read_of
from linrnn.engine.assemble import Operand
from linrnn.engine.graph import Program
from linrnn.ops.cell.cell_scan import _cpu, run
from linrnn.ops.cell.cell_scan._arguments import WHERE, Call, Layout, Leaves

_FLAGS = frozenset((bool, int, str, type(None)))


class Signature(NamedTuple):
    """All that is looked at in a call, and the tensors whose numbers are not."""

    key: tuple[Any, ...]
    tensors: list[Tensor]
    """The states if they were given, then inputs, constants and matrices."""
    stateless: bool
    reset: Tensor | None
    cu_seqlens: Tensor | None
    keep: bool
    """Whether a gradient is wanted."""
    requests: tuple[tuple[str | None, str], tuple[str, str]]
    """The requested form and backend, each with what requests it."""


def signature(
    cell: Cell,
    arguments: Mapping[str, Any],
    state: Any,
    reset: Any,
    cu_seqlens: Any,
    *flags: Any,
) -> Signature | None:
    """The key under which calls are alike; None where a call must be looked at as a whole.

    It may be, unless all its tensors are plain ones on a CPU and nobody watches.

    Args:
        cell, arguments, state, reset, cu_seqlens: of the call.
        flags: its ``reverse, time, form, backend``.
    """
    if type(flags[0]) is not bool or not _FLAGS.issuperset(map(type, flags)) or watched():
        return None
    states = [] if state is None else [state] if isinstance(state, Tensor) else state
    names = (*cell.inputs, *cell.constants, *cell.matrices)
    if not isinstance(states, (list, tuple)) or len(arguments) != len(names):
        return None
    try:
        tensors = [*states, *[arguments[name] for name in names]]
    except KeyError:  # of another name
        return None
    of_tensors = kinds((reset, cu_seqlens, *tensors))
    if of_tensors is None or None in of_tensors[2:]:
        return None
    keep = torch.is_grad_enabled() and any([x.requires_grad for x in tensors])
    form, backend = run.requested_form(flags[2]), requested(flags[3])
    key = (*flags[:2], form[0], backend[0], keep, native.threads(), len(states), *of_tensors)
    return Signature(key, tensors, state is None, reset, cu_seqlens, keep, (form, backend))


class Plan:
    """A call of the machine whose record is written, but for addresses.

    In the gradient it has the place of kernels, see `linrnn.ops.cell.cell_scan.run.CellKernels`.

    Args:
        cell: what is computed.
        call: an example.
        sig: its signature.

    Raises:
        ValueError: a leaf is a copy of its argument; or, with a gradient, any other than itself;
            or there are several widths.
    """

    def __init__(self, cell: Cell, call: Call, sig: Signature) -> None:
        leaves, layout, channels = call
        self._program = cell.program
        parts = cell.is_complex or any(cell.traced.complex_outputs)
        #: Whether there is one output, and one state; None where they are made of parts.
        self._single = None if parts else (cell.traced.single, len(cell.states) == 1)
        self._layout = layout.marked(None, None)
        self._like = Leaves(*[[None] * len(group) for group in leaves]).like
        self._starts = list(leaves.states) if sig.stateless else []
        code, self._saved_indices = _cpu.forward_code(cell.program, leaves, layout, sig.keep)
        self._code = code  # whose program the record refers to
        tensors = _cpu.read(leaves)
        written = _cpu.room(code, tensors, leaves, layout)
        record, sizes, offsets = code.record(
            layout, leaves.states[0].dtype, tensors | written, leaves.states[0].shape[0]
        )
        if sizes:
            raise ValueError("values of several widths")
        self._marks = _cpu.MACHINE.places["reset"], _cpu.MACHINE.places["offsets"]
        if offsets is not layout.cu_seqlens:
            raise ValueError("offsets are a copy")
        words = code.words()
        sources = zip(_keys(tensors), _sources(cell, sig, leaves, tensors), strict=True)
        reads = [read_of((words[x], *source)) for x, source in sources if x in words]
        writes = [(words[x], i) for i, x in enumerate(_keys(written)) if x in words]
        self._replay = Replay("machine", record, reads, writes)
        n = len(cell.program.outputs)
        self._finals = [_outline(x, channels) for x in written["final"]]
        self._outputs = [_outline(x, channels) for x in written["output"][:n]]
        more = written["output"][n:]
        self._more = outline(more[0], (len(more), *more[0].shape)) if more else None

    def __call__(self, cell: Cell, sig: Signature) -> tuple[Any, Any] | None:
        """Outputs and final states; None where the machine cannot read where a tensor lies."""
        tensors = [*self._starts, *sig.tensors]
        if not sig.keep:
            results = self._run(tensors, sig.reset, sig.cu_seqlens)
            return None if results is None else self._results(cell, *results[:2])
        if not self._replay.readable(tensors):
            return None
        layout = self._layout.marked(sig.reset, sig.cu_seqlens)
        outputs = run.with_gradient(self, self._program, self._like, layout, *tensors)
        n = len(self._outputs)
        return self._results(cell, outputs[:n], outputs[n:])

    def _results(
        self, cell: Cell, outputs: Sequence[Tensor], finals: Sequence[Tensor]
    ) -> tuple[Any, Any]:
        if self._single is None:
            return run.joined(cell, outputs, finals)
        one_output, one_state = self._single
        last = finals[0] if one_state else tuple(finals)
        return outputs[0] if one_output else tuple(outputs), last

    def forward(
        self, program: Program, leaves: Leaves, layout: Layout, keep: bool
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """See `CellKernels`; the leaves are the arguments, which have been looked at."""
        results = self._run(leaves.flat(), layout.reset, layout.cu_seqlens)
        assert results is not None
        return results

    backward = staticmethod(_cpu.backward)

    def _run(
        self, tensors: Sequence[Tensor], reset: Tensor | None, cu_seqlens: Tensor | None
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]] | None:
        """Outputs, final states, and what the gradient reads."""
        marks = {}
        if reset is not None:
            marks[self._marks[0]] = reset
        if cu_seqlens is not None:
            check_rising(WHERE, cu_seqlens, self._layout.time)
            marks[self._marks[1]] = cu_seqlens
        finals, outputs = list(map(empty, self._finals)), list(map(empty, self._outputs))
        written = [*finals, *outputs]
        if self._more is not None:
            written += empty(self._more).unbind(0)  # (batch, *time, width) each
        if not self._replay.run(tensors, written, marks):
            return None
        first = len(finals)
        return outputs, finals, [written[first + i] for i in self._saved_indices]


def _keys(operands: _cpu.Operands) -> list[Operand]:
    return [(kind, i) for kind, group in operands.items() for i in range(len(group))]


def _sources(
    cell: Cell, sig: Signature, leaves: Leaves, tensors: _cpu.Operands
) -> list[tuple[int, int, int]]:
    """For each leaf the index of its argument, its offset in bytes and its alignment mask.

    ``tensors`` are what the machine reads: the leaves, or copies.
    """
    values = list(leaves.states) if sig.stateless else []
    owners = list(range(len(values)))
    names = (*cell.inputs, *cell.constants, *cell.matrices)
    for name in names if sig.stateless else (*cell.states, *names):
        owners += [len(values)] * (2 if name in cell.is_complex else 1)
        values.append(sig.tensors[len(values) - len(leaves.states) * sig.stateless])
    sources, copies = list[tuple[int, int, int]](), chain(*tensors.values())
    for leaf, x, owner in zip(leaves.flat(), copies, owners, strict=True):
        y = values[owner]
        as_it_is = (x.data_ptr(), x.shape, x.stride(), x.dtype)
        if sig.keep and as_it_is != (y.data_ptr(), y.shape, y.stride(), y.dtype):
            raise ValueError("a leaf is not its argument")
        same_memory = x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
        if x.data_ptr() != leaf.data_ptr() or not same_memory:
            raise ValueError("a leaf is a copy")
        sources.append((owner, x.data_ptr() - y.data_ptr(), x.element_size() - 1))
    return sources


def _outline(x: Tensor, channels: tuple[int, ...] | None) -> Tensor:
    """The outline of a result with all channel axes."""
    return outline(x, x.shape if channels is None else (*x.shape[:-1], *channels))


#: The plans of each cell, by the signature of a call; None where a call cannot be replayed. A plan
#: does not refer to its cell.
_plans: WeakKeyDictionary[Cell, Replays] = WeakKeyDictionary()


def again(cell: Cell, sig: Signature) -> tuple[Any, Any] | None:
    """The results of a call like one before, None where it must go the whole way."""
    plans = _plans.get(cell)
    plan: Plan | None = None if plans is None else plans.get(sig.key)
    if plan is None or run.kernels("cpu") is not _cpu or native.load()[0] is None:
        return None
    return plan(cell, sig)


def planned(cell: Cell, call: Call, sig: Signature, kernels: Any) -> Plan | None:
    """Plan a call of a new kind, and remember whether there is a plan.

    Args:
        cell, call, sig: what is called.
        kernels: the module that computes it.
    """
    plans = _plans.setdefault(cell, Replays())
    if sig.key in plans:  # whose plan cannot read these tensors where they lie
        return None
    leaves, layout, _ = call
    plan: Plan | None = None
    if kernels is _cpu and layout.time and all([h.numel() for h in leaves.states]):
        try:
            plan = Plan(cell, call, sig)
        except ValueError:
            plan = None
    plans.store(sig.key, plan)
    return plan
