"""A cell's recurrence on the native machine, ``src/native/kernels/machine.cpp``, and its adjoint.

Programs are assembled once for a cell; a call makes the record, mostly addresses, and reads nothing
of the graph.
"""

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import all_dense, all_unit_channels, checked_offsets
from linrnn.compute.native import DTYPES, array, pointer
from linrnn.compute.parts import like_parts
from linrnn.engine.assemble import Assembler, Operand
from linrnn.engine.derivatives import adjoint
from linrnn.engine.graph import ELEMENTWISE, SPREADS, Program
from linrnn.errors import BackendError
from linrnn.ops.cell.cell_scan._arguments import Layout, Leaves
from linrnn.ops.cell.cell_scan._gradients import of_matrices, products_read

MACHINE = native.Kernel(
    "machine",
    "reverse backward seqs time channels offsets reset program operands every again kept half "
    "widths again_widths",
)
_MAX_CELLS = 256  # cells whose programs stay cached
_PER_STEP = ("input", "output", "factor")
_OPERAND_WORDS = 4
_HERE = torch.device("cpu")  # whatever the default device is
_WINDOW = -1
_HALF_FUNCTIONS = 2  # HALF_FUNCTIONS of src/native/machine_args.h

Operands = dict[str, Sequence[Any]]
"""By the kinds of `Operand`: tensors, None where an output is not wanted, the number of a window,
which holds some steps only. ``window``: how wide each of these is."""


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the machine cannot compute on that device and dtype, or None."""
    reason = native.unavailable(device, dtype, real=True)
    if reason is None and not operations():
        return "the native kernels are of a version without the machine; reinstall linrnn"
    return reason


def declines(program: Program, leaves: Leaves, layout: Layout) -> str | None:
    """Why the machine cannot compute a cell, or None."""
    native_ops = (*ELEMENTWISE, *SPREADS)
    missing = {x.op for x in program.nodes if x.op in native_ops}.difference(operations())
    if missing:
        return f"the native kernels are of a version without {min(missing)}; reinstall linrnn"
    return None


def forward(
    program: Program, leaves: Leaves, layout: Layout, keep: bool
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Outputs and final states; and if a gradient is wanted what it reads.

    These are the states after each step, the products with matrices and the folds; or, with
    checkpoints, the states after some steps.
    """
    code, saved_outputs = forward_code(program, leaves, layout, keep)
    operands, every, n = read(leaves), _every(layout) if keep else 0, len(program.outputs)
    tensors = operands | room(code, operands, leaves, layout, few=bool(every))
    marks: list[Tensor] = []
    if every:
        steps = (layout.batch(leaves.states), layout.time // every)
        marks = _fresh(steps, [h.shape[-1] for h in leaves.states], leaves.states[0].dtype)
    written = tensors["output"]
    code.run(layout, leaves.states[0].dtype, tensors, leaves.states[0].shape[0], marks=marks)
    return list(written[:n]), list(tensors["final"]), marks or [written[i] for i in saved_outputs]


def forward_code(
    program: Program, leaves: Leaves, layout: Layout, keep: bool
) -> "tuple[_Code, list[int]]":
    """Return the program that `forward` runs, and which of its outputs the adjoint reads."""
    cell = _cell(program, tuple(layout.starts))
    return cell.keeping(layout.dtype == leaves.states[0].dtype) if keep else (cell.forward, [])


def read(leaves: Leaves) -> Operands:
    """The leaves as the machine reads them, by kinds of `Operand`: themselves or copies."""
    return {
        "initial": all_dense(leaves.states),
        "input": all_unit_channels(leaves.inputs),
        "parameter": all_dense(leaves.parameters),
        "matrix": all_dense(leaves.matrices),
    }


def room(
    code: "_Code", operands: Operands, leaves: Leaves, layout: Layout, *, few: bool = False
) -> Operands:
    """Tensors to be written, by kinds of `Operand`; the program's outputs come first.

    Args:
        code, leaves, layout: of the call.
        operands: what `read` found.
        few: None instead of all but the program's outputs.
    """
    states, dtype = leaves.states, leaves.states[0].dtype
    steps = (layout.batch(states), layout.time)
    outputs = [torch.empty((*steps, n), dtype=layout.dtype, device=_HERE) for n in layout.widths]
    more = range(len(outputs), len(code.outputs))
    finals = [torch.empty(h.shape, dtype=dtype, device=_HERE) for h in states]
    if few:
        return {"final": finals, "output": [*outputs, *(None for _ in more)]}
    widths = code.operand_widths(operands | {"output": outputs}, "output", more)
    return {"final": finals, "output": outputs + _fresh(steps, widths, dtype)}


def backward(
    program: Program,
    leaves: Leaves,
    layout: Layout,
    saved: Sequence[Tensor],
    grad_outputs: Sequence[Tensor],
    grad_finals: Sequence[Tensor],
) -> Leaves:
    """The gradients of all leaves."""
    cell = _cell(program, tuple(layout.starts))
    code = cell.backward
    dtype, steps = leaves.states[0].dtype, (layout.batch(leaves.states), layout.time)
    stored = leaves.inputs[0].dtype if leaves.inputs else dtype  # all have one
    fresh = like_parts(leaves.inputs) if len(code.outputs) == len(leaves.inputs) else None
    if fresh is None:
        fresh = _fresh(steps, [leaves.inputs[i].shape[-1] for i in code.outputs], stored)
    gradients = dict(zip(code.outputs, fresh, strict=True))
    grads = [torch.empty(h.shape, dtype=dtype, device=_HERE) for h in leaves.states]
    sums = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in leaves.parameters]
    n_states = len(leaves.states)
    step = read(leaves)
    recompute, saved_values = (
        _recompute_code(cell, step, layout) if layout.checkpoint else (None, saved)
    )
    of_step, of_products = saved_values[:n_states], saved_values[n_states:]
    output_grads = all_unit_channels(grad_outputs)
    tensors: Operands = step | {
        "input": [*step["input"], *of_step, *output_grads, *of_products],
        "before": step["initial"],
        "initial": all_dense(grad_finals),
        "final": grads,
        "output": list(gradients.values()),
        "sum": sums,
    }
    if recompute is not None:
        tensors["window"] = _window_widths(*recompute)
    factors = code.operand_widths(tensors, "factor", range(code.assembled.factors))
    tensors["factor"] = _fresh(steps, factors, stored if layout.half_products else dtype)
    marks = saved if layout.checkpoint else ()
    seqs = leaves.states[0].shape[0]
    code.run(layout, dtype, tensors, seqs, adjoint=True, marks=marks, recompute=recompute)
    of_inputs = [
        gradients[i] if i in gradients else torch.zeros(x.shape, dtype=x.dtype, device=_HERE)
        for i, x in enumerate(leaves.inputs)
    ]
    products = (
        (i, tensors[left][m], tensors[right][n])
        for i, (left, m), (right, n) in code.assembled.products
    )
    of_weights = of_matrices(leaves.matrices, products, layout.half_products)
    return Leaves(grads, of_inputs, sums, of_weights)


def _recompute_code(
    cell: "_Cell", step: Operands, layout: Layout
) -> tuple[tuple["_Code", Operands], list[int]]:
    """Return the program that recomputes states between checkpoints, and its windows."""
    code, places = cell.keeping(layout.dtype == step["initial"][0].dtype)
    windows = [places.index(x) for x in places]
    outputs = [places.index(i) if i in places else None for i in range(len(code.outputs))]
    tensors = step | {"final": [None] * len(step["initial"]), "output": outputs}
    return (code, tensors), windows


def _window_widths(code: "_Code", tensors: Operands) -> list[int]:
    """Return the width of each window, by its number."""
    places = {x: i for i, x in enumerate(tensors["output"]) if x is not None}
    widths = code.operand_widths(tensors, "output", list(places.values()))
    by_number = [0] * (max(places) + 1)  # a number may be left out
    for window, width in zip(places, widths, strict=True):
        by_number[window] = width
    return by_number


def _every(layout: Layout) -> int:
    """After how many steps states are kept, beyond the last where none is; 0: after each."""
    return min(layout.checkpoint or 0, layout.time + 1)


def _fresh(steps: tuple[int, int], widths: Sequence[int], dtype: torch.dtype) -> list[Tensor]:
    """Tensors to be written; side by side, for memory is mapped in large pieces."""
    if not widths:
        return []
    if len({*widths}) == 1:
        together = torch.empty((len(widths), *steps, widths[0]), dtype=dtype, device=_HERE)
        return list(together.unbind(0))  # (batch, time, width) each
    return [torch.empty((*steps, n), dtype=dtype, device=_HERE) for n in widths]


class _Code:
    """An assembled program, and how its operands are found among the tensors of a call."""

    def __init__(
        self,
        program: Program,
        starts: Sequence[float],
        previous: Sequence[int] = (),
        passing: Sequence[int] = (),
        outputs: Sequence[int] | None = None,
    ) -> None:
        self.program = program
        outputs = program.outputs if outputs is None else outputs
        self.outputs = list(range(len(outputs)))
        #: Whether the machine is told widths though all are equal, so that rows stay whole: for a
        #: roll, and for an adjoint without what mixes channels in its step, whose sums then have
        #: one order with checkpoints and without. Where a product with a matrix is, they do anyway.
        self._always_widths = (
            program.mixes
            and not program.leaves["matrix"]
            and (program.mixed or any([x.op == "roll" for x in program.nodes]))
        )
        assembler = Assembler(program, outputs, operations(), starts, previous, passing)
        self.assembled = assembler.assembled()
        self._code_buffer = ctypes.create_string_buffer(
            self.assembled.code, len(self.assembled.code)
        )
        self._address = ctypes.addressof(self._code_buffer)

    def operands(self, dtype: torch.dtype, tensors: Operands) -> list[int]:
        """Return address, strides and dtype of each operand, as the machine reads them."""
        values: list[int] = []
        for kind, number in self.assembled.operands:
            x = tensors[kind][number]
            if x is None:
                values += (0, 0, 0, DTYPES[dtype])
            elif isinstance(x, int):
                values += (x, _WINDOW, 0, DTYPES[dtype])
            elif kind in _PER_STEP:
                values += (x.data_ptr(), *x.stride()[:2], DTYPES[x.dtype])
            elif kind == "matrix":
                heads = x.shape[0] if x.ndim == 3 else 1
                values += (x.data_ptr(), heads, 0, DTYPES[x.dtype])
            else:
                values += (x.data_ptr(), x.stride(0), 0, DTYPES[x.dtype])
        return values

    def widths(self, tensors: Operands) -> list[int]:
        """Return the width of each class of values; 0 where no tensor shows it."""
        class_widths, windows = [], tensors.get("window", ())
        for members in self.assembled.widths:
            size = 0
            for (kind, number), axis in members:
                group = tensors.get(kind, ())
                if number < len(group):  # the others are yet to be written
                    size = _size(group[number], kind, axis, windows)
                if size:
                    break
            class_widths.append(size)
        for _ in self.assembled.ratios:
            for wider, narrower, n in self.assembled.ratios:
                class_widths[wider] = class_widths[wider] or n * class_widths[narrower]
                class_widths[narrower] = class_widths[narrower] or class_widths[wider] // n
        return class_widths

    def operand_widths(self, tensors: Operands, kind: str, numbers: Sequence[int]) -> list[int]:
        """Return the widths of operands that are yet to be allocated."""
        if not numbers:
            return []
        sizes = self.widths(tensors)
        pairs = zip(sizes, self.assembled.widths, strict=True)
        width_of = {x: n for n, members in pairs for x, _ in members}
        operand_widths = [width_of[kind, i] for i in numbers]
        if not all(operand_widths):  # the machine would write beyond it
            raise BackendError(
                f"cell_scan: every {kind} must have a width that an argument says, got one of "
                "none. Use form='loop'."
            )
        return operand_widths

    def run(self, *call: Any, **options: Any) -> None:
        """Compute; arguments as of `record`."""
        record, *referred = self.record(*call, **options)
        native.run("machine", record)
        del referred  # until now

    def record(
        self,
        layout: Layout,
        dtype: torch.dtype,
        tensors: Operands,
        seqs: int,
        *,
        adjoint: bool = False,
        marks: Sequence[Tensor] = (),
        recompute: "tuple[_Code, Operands] | None" = None,
    ) -> tuple[bytes, list[Any], Tensor | None]:
        """Build the machine's record; with it, the memory that it refers to, None if there is none.

        These are the widths of both programs, and the offsets, which may be a copy of those given.

        Args:
            layout, dtype: of the call.
            tensors: see `Operands`.
            seqs: how many sequences there are.
            adjoint: against time.
            marks: the states after every few steps.
            recompute: of an adjoint, what computes the states between them.
        """
        values, address, recompute_widths = self.operands(dtype, tensors), 0, list[int]()
        if recompute is not None:
            address, recompute_widths = recompute[0]._address, recompute[0].widths(recompute[1])
            values += recompute[0].operands(dtype, recompute[1])
        n_operands = len(values) // _OPERAND_WORDS
        for x in marks:
            values += (x.data_ptr(), *x.stride()[:2], DTYPES[x.dtype])
        offsets = checked_offsets("cell_scan", layout.cu_seqlens, layout.time)
        class_widths = self.widths(tensors)
        every = {*class_widths, *recompute_widths} - {0}  # 0: not a value
        pass_widths = (
            len(every) > 1
            or self._always_widths
            or (recompute is not None and recompute[0]._always_widths)
        )
        sizes = list[Any]()
        if pass_widths:
            sizes += [(ctypes.c_int64 * len(x))(*x) for x in (class_widths, recompute_widths)]
        header = MACHINE.pack(
            DTYPES[dtype],
            native.threads(),
            layout.reverse,
            adjoint,
            seqs,
            layout.time,
            max(every),
            pointer(offsets),
            *array(layout.reset),
            self._address,
            len(self.assembled.operands),
            _every(layout) if marks else 0,
            address,
            n_operands,
            layout.half_products + _HALF_FUNCTIONS * (layout.dtype is torch.bfloat16),
            *(map(ctypes.addressof, sizes) if sizes else (0, 0)),
        )
        return header + struct.pack(f"={len(values)}q", *values), sizes, offsets

    def words(self) -> dict[Operand, int]:
        """Which word of a record is the address of each operand."""
        first = MACHINE.places[None]
        return {x: first + _OPERAND_WORDS * i for i, x in enumerate(self.assembled.operands)}


def _size(x: Any, kind: str, axis: int, windows: Sequence[int]) -> int:
    """Return the size of an axis; 0 for what is neither a tensor nor a window of known width."""
    if not isinstance(x, Tensor):
        return windows[x] if isinstance(x, int) and windows else 0
    heads = x.shape[0] if kind == "matrix" and x.ndim == 3 else 1
    return heads * x.shape[axis]


class _Cell:
    """All programs of a cell, each assembled when it is first needed."""

    def __init__(self, program: Program, starts: Sequence[float]) -> None:
        self.program, self.starts = program, starts
        self._keeping: dict[bool, tuple[_Code, list[int]]] = {}

    @cached_property
    def forward(self) -> _Code:
        """The program alone."""
        return _Code(self.program, self.starts)

    def keeping(self, share: bool) -> tuple[_Code, list[int]]:
        """The program that also writes what the adjoint reads, and which outputs of it that is.

        Args:
            share: an output that is a state is kept as that. No two states are kept as one.
        """
        if share not in self._keeping:
            outputs, places = list(self.program.outputs), list[int]()
            states = len(self.program.states)
            for i, node in enumerate((*self.program.next_states, *self.products)):
                # each state has its own place: so do the windows of checkpoints
                used = places if i < states else ()
                candidates = [k for k, x in enumerate(outputs) if x == node and k not in used]
                if not share or not candidates:
                    outputs.append(node)
                places.append(candidates[0] if share and candidates else len(outputs) - 1)
            self._keeping[share] = _Code(self.program, self.starts, outputs=outputs), places
        return self._keeping[share]

    @cached_property
    def products(self) -> list[int]:
        """The products with matrices, and the folds, whose values the adjoint reads."""
        return products_read(self.program)

    @cached_property
    def backward(self) -> _Code:
        """The adjoint; its `outputs` are the inputs that have a gradient."""
        program = adjoint(self.program, tuple(self.products))
        nodes, first = program.nodes, len(self.program.inputs)
        with_gradient = {i: x for i, x in enumerate(program.outputs) if nodes[x].op != "constant"}
        previous = range(first, first + len(self.program.states))
        first_passing = first + len(self.program.states) + len(self.program.outputs)
        passing = range(first_passing, len(program.inputs))
        code = _Code(program, self.starts, previous, passing, list(with_gradient.values()))
        code.outputs = list(with_gradient)
        return code


_cells: dict[tuple[int, tuple[float, ...]], _Cell] = {}


def _cell(program: Program, starts: tuple[float, ...]) -> _Cell:
    """Found by the identity of a program, whose nodes take long to compare."""
    key = (id(program), starts)
    cell = _cells.get(key)
    if cell is None:
        if len(_cells) >= _MAX_CELLS:
            _cells.clear()
        cell = _cells[key] = _Cell(program, starts)  # keeps the program, and so its identity
    return cell


@cache
def operations() -> dict[str, int]:
    """The number of each operation of the machine, as the library says."""
    layout: Callable[[bytes], Any] = native.handle("machine").linrnn_record_layout
    names = (layout(b"machine operations") or b"").decode().split()
    return {name: i for i, name in enumerate(names)}
