"""A cell's recurrence in Triton, by kernels that are generated from its graph, and its adjoint.

Here is decided which kernels a cell has and what each of them stores: for the gradient the states
after each step and the products with matrices; everything else is computed again. One kernel, its
options and its launch are a `Code`; ``_triton_source.py`` writes its source.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from linrnn.compute import gpu
from linrnn.engine.derivatives import adjoint
from linrnn.engine.graph import CONTRACTIONS, ELEMENTWISE, Program
from linrnn.ops.cell.cell_scan._arguments import Layout, Leaves
from linrnn.ops.cell.cell_scan._gradients import of_matrices, products_read
from linrnn.ops.cell.cell_scan._triton_code import LARGEST, RESIDENT, Code
from linrnn.ops.cell.cell_scan._triton_form import (
    Form,
    Sides,
    choose_form,
    form_of_channels,
    reached,
)
from linrnn.ops.cell.cell_scan._triton_shape import Shape, shape_of

_MAX_CELLS = 256  # cells whose programs stay cached


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return gpu.unavailable(device, dtype)


def declines(program: Program, leaves: Leaves, layout: Layout) -> str | None:
    """Why they cannot compute a cell, or None."""
    rows = {x.op: ELEMENTWISE[x.op] for x in program.nodes if x.op in ELEMENTWISE}
    missing = [op for op, row in rows.items() if row.triton is None]
    if missing:
        return f"they have no {min(missing)}"
    shape = shape_of(leaves, layout)
    parts = shape.parts(program)
    if len(parts) > 1:
        return "what mixes its channels divides them into different numbers of heads"
    (heads,) = parts
    widest = max(shape.widths(program)) * shape.words if 0 not in parts else 0
    if program.mixes and not program.matrices and widest > RESIDENT:
        return f"{widest // shape.words} channels do not fit in the registers of a program"
    odd = [n for x in (*shape[:3], shape.outputs) for n in x if heads and n % heads]
    if odd:
        return f"{odd[0]} channels cannot be divided among {heads} heads"
    numbers = {} if _form(program, shape, leaves, layout).sharers else shape.numbers(program)
    for i, n in numbers.items():
        if n > LARGEST:
            size = " x ".join(map(str, shape.matrices[i]))
            return f"{program.matrices[i]}, {size}, does not fit in the registers of a program"
    return None


def forward(
    program: Program, leaves: Leaves, layout: Layout, keep: bool
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Outputs and final states; and if a gradient is wanted what it reads.

    That is the states after each step, and the products with matrices.
    """
    cell, dtype = _cell(program, leaves, layout), leaves.states[0].dtype
    code, saved_outputs = cell.keeping(layout.dtype == dtype) if keep else (cell.forward, [])
    rows, n, first = layout.batch(leaves.states), len(program.outputs), leaves.states[0]
    written = [
        first.new_empty(rows, layout.time, width, dtype=layout.dtype if i < n else dtype)
        for i, width in enumerate(code.stored)
    ]
    finals = [torch.empty_like(h, memory_format=torch.contiguous_format) for h in leaves.states]
    tensors = {"input": leaves.inputs, "initial": leaves.states, "final": finals}
    code.run(leaves, layout, tensors | {"stored": written})
    saved = []
    for i, place in enumerate(saved_outputs):
        if isinstance(place, int):
            saved.append(written[place])
            continue
        width = leaves.states[i].shape[-1]  # of a state that is a number after every step
        saved.append(first.new_full((width,), place).expand(rows, layout.time, width))
    return written[:n], finals, saved


def backward(
    program: Program,
    leaves: Leaves,
    layout: Layout,
    saved: Sequence[Tensor],
    grad_outputs: Sequence[Tensor],
    grad_finals: Sequence[Tensor],
) -> Leaves:
    """The gradients of all leaves."""
    cell, dtype = _cell(program, leaves, layout), leaves.states[0].dtype
    stored = leaves.inputs[0].dtype if leaves.inputs else dtype  # inputs have one dtype
    code, of_factors = cell.backward(stored == dtype)
    rows, first = layout.batch(leaves.states), leaves.states[0]
    n, n_states = len(cell.with_gradient), len(leaves.states)
    program_inputs = [*leaves.inputs, *saved[:n_states], *grad_outputs, *saved[n_states:]]
    written = [
        first.new_empty(rows, layout.time, width, dtype=stored if i < n else dtype)
        for i, width in enumerate(code.stored)
    ]
    grads = [torch.empty_like(h, memory_format=torch.contiguous_format) for h in leaves.states]
    # a row for each sequence, or tile of it, added in a fixed order: the same bits in every run
    of_sums = len(first) * code.tiles(layout.time, first)
    sums = [first.new_empty(of_sums, x.shape[-1], dtype=torch.float64) for x in leaves.parameters]
    tensors = {"input": program_inputs, "before": leaves.states}
    tensors |= {"initial": grad_finals, "final": grads}
    code.run(leaves, layout, tensors | {"stored": written, "sum": sums}, adjoint=True)
    gradients = dict(zip(cell.with_gradient, written, strict=False))
    inputs = [
        gradients[i]
        if i in gradients
        else torch.zeros_like(x, memory_format=torch.contiguous_format)
        for i, x in enumerate(leaves.inputs)
    ]
    summed = {i for i, _ in cell.adjoint.sums}
    parameters = [
        sums[i].sum(0).to(dtype) if i in summed else torch.zeros_like(x)
        for i, x in enumerate(leaves.parameters)
    ]
    tables = {"input": program_inputs, "stored": written}
    products = ((i, tables[left][x], tables[right][y]) for i, (left, x), (right, y) in of_factors)
    return Leaves(grads, inputs, parameters, of_matrices(leaves.matrices, products))


def form(program: Program, leaves: Leaves, layout: Layout) -> Form:
    """How a call's kernels are laid out, and why."""
    return _form(program, shape_of(leaves, layout), leaves, layout)


#: By program, shape and all else that they depend on; they keep their programs, and so identities.
_forms: dict[tuple[Any, ...], tuple[Program, Form]] = {}


def _form(program: Program, shape: Shape, leaves: Leaves, layout: Layout) -> Form:
    first, marks = leaves.states[0], (layout.half_products, gpu.allows_tf32())
    dtypes = (layout.dtype, *(x.dtype for x in leaves.inputs))
    key = (id(program), shape, *first.shape, layout.time, first.device, *marks, *dtypes)
    if key not in _forms:
        if len(_forms) >= _MAX_CELLS:
            _forms.clear()
        _forms[key] = program, _new_form(program, shape, leaves, layout)
    return _forms[key][1]


def _new_form(program: Program, shape: Shape, leaves: Leaves, layout: Layout) -> Form:
    if not any(x.op in CONTRACTIONS for x in program.nodes):
        rows, width = layout.batch(leaves.states), leaves.states[0].shape[-1]
        sizes = (rows, layout.time, width)
        dtype = leaves.inputs[0].dtype if leaves.inputs else layout.dtype  # inputs have one
        first = leaves.states[0]
        return form_of_channels(program, sizes, len(first), dtype, first.device)
    (heads,) = shape.parts(program)
    used = program.leaves["matrix"]
    sides = (reached(shape.matrices[i][-2:]) for i in used)
    of_node = zip(program.nodes, shape.widths(program), strict=True)
    of_nodes = {n for x, n in of_node if x.op not in ("constant", "matrix")}
    vectors = {*of_nodes, *shape.states, *shape.outputs}
    widths = tuple(sorted(n // heads for n in vectors))
    first, products = leaves.states[0], [x for x in program.nodes if x.op in CONTRACTIONS]
    read = [first.element_size()] * (len(shape.states) + len(products))
    read += [2 if layout.half_products else 4] * len(products)
    read += [x.element_size() for x in leaves.inputs] + [layout.dtype.itemsize] * len(shape.outputs)
    row = sum(read) * max(reached(widths))
    of_heads = Sides(heads, tuple((m, n) for m, n in sides), widths, row)
    of_call = (len(first), layout.time, first.device, layout.half_products)
    return choose_form(program, of_heads, *of_call, first.dtype == torch.float64)


#: Of which matrix, and its two factors: each a kind of tensor, and which.
_Product = tuple[int, tuple[str, int], tuple[str, int]]


class _Cell:
    """All kernels of a cell for arguments of some widths, each written when it is first needed."""

    def __init__(
        self, program: Program, starts: tuple[float, ...], shape: Shape, form: Form
    ) -> None:
        self.program, self.starts, self.shape, self.form = program, starts, shape, form
        self._keeping: dict[bool, tuple[Code, list[int | float]]] = {}
        self._backward: dict[bool, tuple[Code, list[_Product]]] = {}

    def _of(self, nodes: Sequence[tuple[int, int]]) -> Code:
        return Code(self.program, self.shape, nodes, self.starts, self.form)

    @property
    def _outputs(self) -> list[tuple[int, int]]:
        return list(zip(self.program.outputs, self.shape.outputs, strict=True))

    @cached_property
    def forward(self) -> Code:
        """The kernel that writes outputs and final states."""
        return self._of(self._outputs)

    def keeping(self, share: bool) -> tuple[Code, list[int | float]]:
        """The kernel that also keeps what the adjoint reads, and which of what it stores that is.

        A state that is a number after every step is not stored; that number stands for it.

        Args:
            share: an output that is a state is kept as that.
        """
        if share not in self._keeping:
            stored, places = self._outputs, list[int | float]()
            states = zip(self.program.next_states, self.shape.states, strict=True)
            for pair in (*states, *self._products.items()):
                node = self.program.nodes[pair[0]]
                if node.op == "constant":
                    places.append(float(node.attribute))
                elif not share or pair not in stored:
                    stored.append(pair)
                    places.append(len(stored) - 1)
                else:
                    places.append(stored.index(pair))
            self._keeping[share] = self._of(stored), places
        return self._keeping[share]

    @cached_property
    def _products(self) -> dict[int, int]:
        """The products and folds that are kept, and their widths."""
        read_nodes = products_read(self.program)
        nodes = self.shape.widths(self.program) if read_nodes else []
        return {i: nodes[i] for i in read_nodes}

    @cached_property
    def _full_adjoint(self) -> Program:
        return adjoint(self.program, tuple(self._products))

    @cached_property
    def adjoint(self) -> Program:
        """Its outputs are the gradients of those inputs that have one."""
        program = self._full_adjoint
        return replace(program, outputs=tuple(program.outputs[i] for i in self.with_gradient))

    @cached_property
    def with_gradient(self) -> list[int]:
        """The inputs whose gradient is not 0 everywhere."""
        program = self._full_adjoint
        return [i for i, x in enumerate(program.outputs) if program.nodes[x].op != "constant"]

    def backward(self, share: bool) -> tuple[Code, list[_Product]]:
        """The kernel of the adjoint, and the products that are the gradients of matrices.

        Args:
            share: a factor of them that is the gradient of an input is not stored twice.
        """
        if share not in self._backward:
            self._backward[share] = self._of_adjoint(share)
        return self._backward[share]

    def _of_adjoint(self, share: bool) -> tuple[Code, list[_Product]]:
        shape, first, program = self.shape, len(self.program.inputs), self.adjoint
        previous = tuple(range(first, first + len(self.program.states)))
        shape = shape._replace(
            inputs=(*shape.inputs, *shape.states, *shape.outputs, *self._products.values()),
            outputs=tuple(shape.inputs[i] for i in self.with_gradient),
        )
        stored = list(zip(program.outputs, shape.outputs, strict=True))
        places = {node: i for i, node in enumerate(program.outputs)} if share else {}

        def operand(node: int, width: int) -> tuple[str, int]:
            index = program.nodes[node].attribute
            if program.nodes[node].op == "input" and index not in previous:
                return "input", int(index or 0)
            if node not in places:
                places[node] = len(stored)
                stored.append((node, width))
            return "stored", places[node]

        products: list[_Product] = []
        for i, *sides in program.products:
            left, right = map(operand, sides, shape.sides(i))
            products.append((i, left, right))
        code = Code(program, shape, stored, self.starts, self.form, previous)
        return code, products


_cells: dict[tuple[int, tuple[float, ...], Shape, Form], _Cell] = {}


def _cell(program: Program, leaves: Leaves, layout: Layout) -> _Cell:
    """Found by the identity of a program, whose nodes take long to compare."""
    shape = shape_of(leaves, layout)
    form = _form(program, shape, leaves, layout)
    key = (id(program), tuple(layout.starts), shape, form)
    cell = _cells.get(key)
    if cell is None:
        if len(_cells) >= _MAX_CELLS:
            _cells.clear()
        cell = _cells[key] = _Cell(program, *key[1:])  # keeps the program, and so its identity
    return cell
