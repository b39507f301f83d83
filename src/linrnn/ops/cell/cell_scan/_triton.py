"""A cell's recurrence in Triton, by kernels that are generated from its graph, and its adjoint.

``_triton_source.py`` writes them; here is decided which part of a call an instance owns. What is
kept for the gradient are the states after each step and the products with matrices; everything else
is computed again.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.compute import gpu
from linrnn.compute.launch import launch
from linrnn.compute.layout import dense, unit_channels
from linrnn.engine.derivatives import adjoint
from linrnn.engine.graph import CONTRACTIONS, ELEMENTWISE, SPREADS, Program
from linrnn.engine.widths import widths
from linrnn.ops.cell.cell_scan._arguments import Layout, Leaves
from linrnn.ops.cell.cell_scan._gradients import of_matrices, products_read
from linrnn.ops.cell.cell_scan._triton_form import (
    CHUNK,
    FEWEST,
    WIDEST,
    Form,
    Sides,
    choose_form,
    form_of_channels,
    reached,
)
from linrnn.ops.cell.cell_scan._triton_groups import GroupWriter
from linrnn.ops.cell.cell_scan._triton_source import Sizes, Task, load, write
from linrnn.ops.cell.cell_scan._triton_tiles import TileWriter
from linrnn.ops.linear.linear_scan import triton_plan
from linrnn.ops.linear.linear_scan.triton_plan import Plan

#: Numbers of 32 bits, sides rounded up to powers of two: of all matrices that stay in registers, of
#: one that is read at every step, and what is read of it at once.
RESIDENT = 8192
LARGEST = 65536
AT_ONCE = 16384
#: 32-bit registers of one thread that matrices may occupy, and those of rows under way.
OF_MATRICES = 32
OF_ROWS = 64
#: Numbers of 32 bits of one thread times operations of a step, in tiles. With 960 the gradient of
#: minGRU spills 2 registers, with 1552 that of minLSTM 394: compiled for an H100, Triton 3.7.1,
#: 2026-11-29.
#: Fewer fit where a warp has parts of several stretches: RG-LRU's gradient spills 5 with 880. More
#: fit in a tile that is handed over, which loads nothing ahead. With resets, rows are loaded ahead
#: up to the last of these: RG-LRU spills 6 with 636.
OF_TILES, OF_PARTS, OF_HANDED, OF_RESETS = 900, 800, 1350, 600
MOST_WARPS = 16
#: Bytes of a row that a thread of a walk loads at once.
VECTOR = 16
#: Operations of a step beside which a thread holds parameters of 8 channels: with 83, RG-LRU in
#: bfloat16 spills 4 registers. Compiled for an H100, not run.
OF_EIGHT = 70
#: Steps at once; and operations, since the compiler takes minutes for thousands of them.
MOST_STEPS = 8
MOST_OPERATIONS = 192
#: Steps whose rows are on their way: a step may take a load's latency over as many.
MOST_AHEAD = 32
_MAX_CELLS = 256  # cells whose programs stay cached


class Shape(NamedTuple):
    """The widths of a program's leaves and outputs, and the shapes of its matrices."""

    states: tuple[int, ...]
    inputs: tuple[int, ...]
    parameters: tuple[int, ...]
    matrices: tuple[tuple[int, ...], ...]
    outputs: tuple[int, ...]
    words: int
    """The number of 32-bit words of a number that is computed with."""

    def sides(self, matrix: int) -> tuple[int, int]:
        """Return the widths of the two vectors that a matrix multiplies."""
        *heads, m, n = self.matrices[matrix]
        return (m * heads[0], n * heads[0]) if heads else (m, n)

    def parts(self, program: Program) -> set[int]:
        """Into how many parts each matrix divides the channels; 0 stands for any number."""
        nodes = program.nodes
        used = {nodes[x.args[0]].attribute for x in nodes if x.op in CONTRACTIONS}
        counts = {x[0] if len(x) == 3 else 1 for x in (self.matrices[i] for i in used)}
        counts |= {1} if any(x.op in SPREADS for x in nodes) else set()
        vectors = {*self.states, *self.inputs, *self.parameters, *self.outputs}
        return counts or {0 if len(vectors) == 1 else 1}

    def numbers(self, program: Program) -> dict[int, int]:
        """Return the words that one instance holds of each matrix."""
        sides = {i: self.matrices[i][-2:] for i in program.leaves["matrix"]}
        return {
            i: self.words * gpu.power_of_two(m) * gpu.power_of_two(n) for i, (m, n) in sides.items()
        }


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    return gpu.unavailable(device, dtype)


def declines(program: Program, leaves: Leaves, layout: Layout) -> str | None:
    """Why they cannot compute a cell, or None."""
    rows = {x.op: ELEMENTWISE[x.op] for x in program.nodes if x.op in ELEMENTWISE}
    missing = [op for op, row in rows.items() if row.triton is None]
    if missing:
        return f"they have no {min(missing)}"
    shape = _shape(leaves, layout)
    parts = shape.parts(program)
    if len(parts) > 1:
        return "what mixes its channels divides them into different numbers of heads"
    (heads,) = parts
    widest = max(_widths(program, shape)) * shape.words if 0 not in parts else 0
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
    return _form(program, _shape(leaves, layout), leaves, layout)


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
    of_node = zip(program.nodes, _widths(program, shape), strict=True)
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


def _shape(leaves: Leaves, layout: Layout) -> Shape:
    states, inputs, parameters = (tuple(x.shape[-1] for x in group) for group in leaves[:3])
    matrices = tuple(tuple(w.shape) for w in leaves.matrices)
    words = leaves.states[0].dtype.itemsize // 4
    return Shape(states, inputs, parameters, matrices, tuple(layout.widths), words)


#: Of which matrix, and its two factors: each a kind of tensor, and which.
_Product = tuple[int, tuple[str, int], tuple[str, int]]


class _Code:
    """A kernel, and how its arguments are found among the tensors of a call."""

    def __init__(
        self,
        program: Program,
        shape: Shape,
        stored: Sequence[tuple[int, int]],
        starts: tuple[float, ...],
        form: Form,
        previous: tuple[int, ...] = (),
    ) -> None:
        (heads,) = shape.parts(program)
        self.form = form
        self.heads, self.stored = heads, [width for _, width in stored]
        self.widths, sizes = _sizes(program, shape, self.stored, heads)
        nodes = tuple(node for node, _ in stored)
        if form.sharers:
            task = Task(program, nodes, starts, previous, True, True, form.sharers)
            self.source = GroupWriter(task, sizes).source()
            return
        if form.plan is not None:
            self.source = TileWriter(Task(program, nodes, starts, previous), sizes).source()
            return
        numbers = [0, *shape.numbers(program).values()]
        resident = sum(numbers) <= RESIDENT
        threads = (sum(numbers) if resident else min(max(numbers), AT_ONCE)) // OF_MATRICES
        self.warps = min(
            max(gpu.power_of_two(max(threads, max(self.widths) // 4) // 32), 1), MOST_WARPS
        )
        self.source = write(Task(program, nodes, starts, previous, heads > 0, resident), sizes)

    @cached_property
    def kernel(self) -> Any:
        """Made by the first call that runs on it."""
        return load(self.source.text)

    def run(
        self,
        leaves: Leaves,
        layout: Layout,
        tensors: dict[str, Sequence[Tensor]],
        *,
        adjoint: bool = False,
    ) -> None:
        """Compute; tensors by the kinds of `Operand`, and those of ``leaves``."""
        tensors = tensors | {"parameter": leaves.parameters, "matrix": leaves.matrices}
        tensors["turned"] = [w.mT for w in leaves.matrices]
        first = leaves.states[0]
        arguments: list[Any] = []
        for kind, number in self.source.operands:
            x = tensors[kind][number]
            arguments += _steps(unit_channels(x)) if kind == "input" else (dense(x),)
        offsets = layout.cu_seqlens
        if offsets is not None:
            offsets = offsets.to(first.device, torch.long).contiguous()
        parts, options = self.tile(len(first), leaves)
        arguments += [*_steps(layout.reset), offsets, layout.time, parts, *self.widths]
        programs = len(first) * parts
        if self.form.sharers:
            groups = parts * -(-len(first) // self.form.rows)
            programs = groups * self.form.sharers
            arguments += [len(first), *self._meeting(groups, first.device)]
        elif self.form.plan is not None:
            lanes, tiles = programs, self.tiles(layout.time, first)
            programs = lanes * tiles
            arguments += [lanes, tiles, *self._handed(lanes * tiles, first)]
            options["AHEAD"] = options["AHEAD"] and self._has_room(layout, first)
        with torch.cuda.device_of(first):
            flip = layout.reverse != adjoint
            launch(self.kernel, programs, *arguments, FLIP=flip, **options)

    def _meeting(self, groups: int, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
        """Counters, which are 0, and room for what instances tell one another, if they do."""
        if self.form.sharers == 1:
            return None, None
        blocks = reached(self.widths)
        numbers = 2 * self.form.rows * sum(blocks[k] for k in self.source.published)
        dtype = torch.bfloat16 if self.form.half else torch.float32
        arrived = torch.zeros(groups, dtype=torch.int32, device=device)
        return arrived, torch.empty(groups * numbers, dtype=dtype, device=device)

    def tiles(self, time: int, state: Tensor) -> int:
        """How many instances share a sequence and block of channels."""
        if self.form.plan is None or not self.form.plan.chained:
            return 1
        stretches, steps = self._tile(state)
        return -(-time // (stretches * steps))

    def _handed(self, instances: int, state: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Flags, which are 0, and room for maps, by which tiles hand their states over."""
        assert self.form.plan is not None
        if not self.form.plan.chained:
            return None, None
        scanned = instances * self.source.scans
        flags = torch.zeros(2 * scanned + 1, dtype=torch.int32, device=state.device)
        # a product, a sum and a state, of pairs if numbers are complex
        return flags, state.new_empty(6 * scanned * self.form.plan.block)

    def _tile(self, state: Tensor) -> tuple[int, int]:
        """Stretches of a tile and steps of each: what registers hold, and what compiles soon."""
        plan, weight = self.form.plan, self.source.weight
        assert plan is not None
        most, stretches = OF_HANDED if plan.chained else OF_TILES, plan.stretches
        of_step = state.dtype.itemsize // 4 * weight
        while stretches > plan.warps and _numbers(plan, stretches) * of_step > OF_PARTS:
            stretches //= 2
        steps = most // (_numbers(plan, stretches) * of_step)
        steps = max(1, min(steps, MOST_STEPS, 2 * MOST_OPERATIONS // weight))
        return stretches, 1 << (steps.bit_length() - 1)

    def _has_room(self, layout: Layout, state: Tensor) -> bool:
        """Whether there are registers for the rows of the next tile, beside resets."""
        plan, (stretches, steps) = self.form.plan, self._tile(state)
        assert plan is not None
        numbers = _numbers(plan, stretches) * steps * (state.dtype.itemsize // 4)
        return layout.reset is None or numbers * self.source.weight <= OF_RESETS

    def _of_tiles(self, state: Tensor) -> dict[str, Any]:
        """The options of a kernel whose warps share tiles."""
        plan, (stretches, steps) = self.form.plan, self._tile(state)
        assert plan is not None
        return {
            "DTYPE": triton_plan.dtype_of(state.dtype), "WARPS": stretches, "STEPS": steps,
            "AHEAD": not plan.chained, "CHAINED": plan.chained, "GROUP": plan.group,
            "BLOCK_0": plan.block, "num_warps": plan.warps, "enable_fp_fusion": True,
        }  # fmt: skip

    def _of_groups(self) -> dict[str, Any]:
        """The options of a kernel for groups of sequences."""
        tl, (_, sharers, rows, warps, half, _) = gpu.language(), self.form
        precision = "tf32" if half or gpu.allows_tf32() else "tf32x3"
        matrix = tl.bfloat16 if half else tl.float32
        # a product as exact as float32 has operands in two parts, too many for a warp's registers
        exact = sharers > 1 and precision == "tf32x3"
        split = min(warps, min(reached(self.widths)) // FEWEST) if exact else 1
        options = {
            "DTYPE": tl.float32, "ROWS": rows, "SHARERS": sharers,
            "CHUNK": CHUNK if sharers > 1 else WIDEST, "PRECISION": precision,
            "SPLIT": split,
            # the interpreter multiplies no bfloat16; their products are exact in float32
            "MATRIX": matrix, "DOT": tl.float32 if gpu.interprets() else matrix,
            "enable_fp_fusion": True,
            # a load of what others publish must not be moved to a step before
            "num_warps": warps, "num_stages": 1,
        }  # fmt: skip
        together = {"launch_cooperative_grid": True} if sharers > 1 else {}
        return options | together | _named(reached(self.widths))

    def tile(self, seqs: int, leaves: Leaves) -> tuple[int, dict[str, Any]]:
        """The parts of the channels, and what the kernel is compiled for."""
        if self.form.sharers:
            return self.heads, self._of_groups()
        if self.form.plan is not None:
            return self.form.plan.blocks, self._of_tiles(leaves.states[0])
        tl, dtype = gpu.language(), leaves.states[0].dtype
        words = dtype.itemsize // 4
        options = {"DTYPE": tl.float64 if words == 2 else tl.float32, "enable_fp_fusion": True}
        if self.heads:
            blocks = [gpu.power_of_two(n) for n in self.widths]
            options["AT_ONCE"] = AT_ONCE // words
            options |= {"UNROLL": 1, "AHEAD": 1, "num_warps": self.warps}
            return self.heads, options | _named(blocks)
        busy = gpu.ENOUGH * gpu.processors(leaves.states[0].device)
        (width,) = self.widths
        # a thread loads 128 bits of a row, unless that leaves too few programs
        vector = VECTOR // min((x.dtype.itemsize for x in leaves.inputs), default=4)
        has_parameters = any(x.kind == "parameter" for x in self.source.operands)
        if has_parameters and self.source.weight > OF_EIGHT:
            vector = min(vector, 4)
        while vector > 1 and seqs * -(-width // (32 * vector)) < busy:
            vector //= 2
        rows = sum(x.kind == "input" for x in self.source.operands)
        of_step = max(rows, 1) * vector * words
        steps = min(OF_ROWS // (2 * of_step), MOST_OPERATIONS // self.source.weight)
        unroll = min(MOST_STEPS, max(1, gpu.power_of_two(steps + 1) // 2))
        # steps at once are limited by what compiles soon, and those on their way by registers
        ahead = min(OF_ROWS // of_step, MOST_AHEAD) // unroll
        options |= {"AT_ONCE": 0, "UNROLL": unroll, "AHEAD": max(1, ahead)}
        return -(-width // (32 * vector)), options | {"num_warps": 1} | _named([32 * vector])


def _numbers(plan: Plan, stretches: int) -> int:
    """How many numbers of a row a thread has."""
    return max(plan.block * stretches // (32 * plan.warps), 1)


def _named(blocks: Sequence[int]) -> dict[str, int]:
    return {f"BLOCK_{k}": n for k, n in enumerate(blocks)}


def _steps(x: Tensor | None) -> tuple[Tensor | None, int, int]:
    return (None, 0, 0) if x is None else (x, x.stride(0), x.stride(1))


def _widths(program: Program, shape: Shape) -> list[int]:
    """The width of each node, of all heads."""
    leaves = [[(n,) for n in group] for group in shape[:3]]
    kinds = dict(zip(("state", "input", "parameter"), leaves, strict=True))
    return widths("cell_scan", program, {**kinds, "matrix": shape.matrices})


def _sizes(
    program: Program, shape: Shape, stored: Sequence[int], heads: int
) -> tuple[list[int], Sizes]:
    """The different widths of an instance's values, and which value has which."""
    if heads:
        nodes = _widths(program, shape)
        of_node = zip(program.nodes, nodes, strict=True)
        nodes = [shape.states[0] if x.op in ("constant", "matrix") else n for x, n in of_node]
    else:
        nodes = [shape.states[0]] * len(program.nodes)
    sides = [shape.sides(i) for i in range(len(shape.matrices))] if heads else []
    flat = {*nodes, *shape.states, *stored, *shape.parameters, *(n for pair in sides for n in pair)}
    every = sorted(flat)
    place = {n: k for k, n in enumerate(every)}

    def placed(sizes: Sequence[int]) -> tuple[int, ...]:
        return tuple(place[n] for n in sizes)

    matrices = tuple((place[m], place[n]) for m, n in sides)
    vectors = placed(nodes), placed(shape.states), placed(stored), placed(shape.parameters)
    return [n // max(heads, 1) for n in every], Sizes(*vectors, matrices)


class _Cell:
    """All kernels of a cell for arguments of some widths, each written when it is first needed."""

    def __init__(
        self, program: Program, starts: tuple[float, ...], shape: Shape, form: Form
    ) -> None:
        self.program, self.starts, self.shape, self.form = program, starts, shape, form
        self._keeping: dict[bool, tuple[_Code, list[int | float]]] = {}
        self._backward: dict[bool, tuple[_Code, list[_Product]]] = {}

    def _of(self, nodes: Sequence[tuple[int, int]]) -> _Code:
        return _Code(self.program, self.shape, nodes, self.starts, self.form)

    @property
    def _outputs(self) -> list[tuple[int, int]]:
        return list(zip(self.program.outputs, self.shape.outputs, strict=True))

    @cached_property
    def forward(self) -> _Code:
        """The kernel that writes outputs and final states."""
        return self._of(self._outputs)

    def keeping(self, share: bool) -> tuple[_Code, list[int | float]]:
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
        nodes = _widths(self.program, self.shape) if read_nodes else []
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

    def backward(self, share: bool) -> tuple[_Code, list[_Product]]:
        """The kernel of the adjoint, and the products that are the gradients of matrices.

        Args:
            share: a factor of them that is the gradient of an input is not stored twice.
        """
        if share not in self._backward:
            self._backward[share] = self._of_adjoint(share)
        return self._backward[share]

    def _of_adjoint(self, share: bool) -> tuple[_Code, list[_Product]]:
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
        code = _Code(program, shape, stored, self.starts, self.form, previous)
        return code, products


_cells: dict[tuple[int, tuple[float, ...], Shape, Form], _Cell] = {}


def _cell(program: Program, leaves: Leaves, layout: Layout) -> _Cell:
    """Found by the identity of a program, whose nodes take long to compare."""
    shape = _shape(leaves, layout)
    form = _form(program, shape, leaves, layout)
    key = (id(program), tuple(layout.starts), shape, form)
    cell = _cells.get(key)
    if cell is None:
        if len(_cells) >= _MAX_CELLS:
            _cells.clear()
        cell = _cells[key] = _Cell(program, *key[1:])  # keeps the program, and so its identity
    return cell
