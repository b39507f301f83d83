"""A program as a Triton kernel: its source as text, and the module that text becomes.

One instance owns one sequence and a part of the channels, keeps the states in registers and walks
along time. A part is a block of channels; with matrices it is a head, or all channels where these
are dense, or where channels are repeated or summed up. Small matrices stay in registers, larger
ones are read again at every step, out of a cache. Rows of the next steps are on their way while
those of the present ones are used.

The adjoint (`linrnn.engine.derivatives`) is a program of the same kind; what differs is that some
inputs are the states before a step, which are those kept after the step before, and that sums and
the factors of products are results.
"""

import functools
import hashlib
import importlib
import linecache
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from linrnn.engine.graph import CONTRACTIONS, ELEMENTWISE, SPREADS, Node, Program, levels


class Sizes(NamedTuple):
    """The width class of each value; values of equal width have the same number, counted from 0."""

    nodes: tuple[int, ...]
    """The classes of a program's nodes; meaningless for constants, which fit any width."""
    states: tuple[int, ...]
    stored: tuple[int, ...]
    sums: tuple[int, ...]
    matrices: tuple[tuple[int, int], ...]
    """Rows and columns of a matrix, or of one head of it."""

    @property
    def different(self) -> int:
        """How many widths there are."""
        vectors = (*self.nodes, *self.states, *self.stored, *self.sums)
        return 1 + max(*vectors, *(x for pair in self.matrices for x in pair))


class Task(NamedTuple):
    """The description of one kernel."""

    program: Program
    stored: tuple[int, ...]
    """The nodes that are written at every step."""
    starts: tuple[float, ...]
    """The value of each state of the cell after a reset."""
    previous: tuple[int, ...] = ()
    """The inputs of an adjoint that are the states before the step, in order."""
    heads: bool = False
    """Whether a part is a head, or the whole, and not a block of channels."""
    resident: bool = True
    """Whether matrices stay in registers, or on chip."""
    sharers: int = 0
    """Instances that share the matrices of a head, in a kernel for groups; 0 in others."""


class Operand(NamedTuple):
    """A tensor of a call: which one of a kind.

    Kinds: ``input``, ``before`` (the state before the first step), ``initial``, ``final``,
    ``parameter``, ``matrix``, ``turned`` (a matrix transposed), ``stored``, ``sum``.
    """

    kind: str
    number: int


class Source(NamedTuple):
    """A kernel, and its arguments in order.

    The operands come first, an input with the strides of its sequences and of time; then ``reset``
    with these, ``cu_seqlens``, ``time``, ``parts`` and the widths, and what else a form has.
    """

    text: str
    operands: tuple[Operand, ...]
    weight: int
    """How many operations a step has, about."""
    published: tuple[int, ...] = ()
    """The width classes of the vectors that instances which share matrices publish."""
    scans: int = 0
    """The groups of states that a kernel for tiles scans."""


def write(task: Task, sizes: Sizes) -> Source:
    """The kernel ``run`` of a task."""
    return SequenceWriter(task, sizes).source()


class Writer(ABC):
    """The source of a kernel: all that does not depend on what an instance owns."""

    def __init__(self, task: Task, sizes: Sizes) -> None:
        self.task, self.sizes, self.program = task, sizes, task.program
        self.adjoint = bool(task.previous)
        self.inputs = self.program.leaves["input"]
        self.operands: list[Operand] = []
        self.widths = range(sizes.different)

    @abstractmethod
    def source(self) -> Source:
        """All of it, and its arguments."""

    @abstractmethod
    def _begin(self) -> list[str]:
        """Return the lines that locate what an instance reads and writes."""

    @abstractmethod
    def _loop(self) -> list[str]:
        """All steps."""

    @abstractmethod
    def _end(self) -> list[str]:
        """Return the lines that write what is there after the last step."""

    @abstractmethod
    def _shape(self, k: int) -> str:
        """The shape of a value."""

    @abstractmethod
    def _row(self, node: int, k: int) -> str:
        """A value with all its channels, which a number has not."""

    @abstractmethod
    def _restart(self, name: str, start: str) -> list[str]:
        """A selection at a reset, which also stops NaN."""

    @abstractmethod
    def _load_row(self, name: str, kind: str, number: int, k: int) -> str:
        """Return the line that loads a row of a tensor without an axis of time."""

    @abstractmethod
    def _matrix(self, operand: str, m: int, n: int) -> str:
        """How a matrix is read; ``m`` and ``n`` are the width classes of its sides."""

    def _assembled(self, more: Sequence[str], options: Sequence[str]) -> Source:
        """The source, with arguments beside those of every kernel, and options."""
        lines = [*self._begin(), *self._prologue(), *self._loop(), *self._end()]
        names = []
        for kind, number in self.operands:
            names.append(f"{kind}_{number}")
            names += [f"{kind}_{number}_{x}" for x in ("seq", "step") if kind == "input"]
        names += ["reset", "reset_seq", "reset_step", "cu_seqlens", "time", "parts"]
        sizes = [f"width_{k}" for k in self.widths]
        names += [f"{x}: tl.constexpr" for x in sizes] if self.task.heads else sizes
        blocks = [f"BLOCK_{k}" for k in self.widths]
        names += [*more, *(f"{x}: tl.constexpr" for x in (*options, *blocks))]
        body = "".join(f"    {line}\n" for line in lines)
        ops = [self.program.nodes[x].op for x, level in self._operations() if level > 0]
        weight = 1 + sum(ELEMENTWISE[op].weight if op in ELEMENTWISE else 1 for op in ops)
        text = f"@kernel\ndef run({', '.join(names)}):\n{body}"
        return Source(text, tuple(self.operands), weight)

    def _operand(self, kind: str, number: int) -> str:
        operand = Operand(kind, number)
        if operand not in self.operands:
            self.operands.append(operand)
        return f"{kind}_{number}"

    def _prologue(self) -> list[str]:
        """Return the lines that run once, before the loop."""
        lines = []
        for i in range(len(self.program.states)):
            lines.append(self._load_row(f"state_{i}", "initial", i, self.sizes.states[i]))
        for i, start in enumerate(self.task.starts):
            lines.append(f"start_{i} = {literal(start)}")
        for i, node in enumerate(self.task.previous):
            if node in self.inputs:
                lines.append(self._load_row(f"entering_{i}", "before", i, self._input_size(node)))
        for node, operation in enumerate(self.program.nodes):
            if operation.op == "parameter":
                number = operation.attribute
                lines.append(
                    self._load_row(f"v{node}", operation.op, number, self.sizes.nodes[node])
                )
            elif operation.op == "constant":
                lines.append(f"v{node} = {literal(operation.attribute)}")
        if self.task.resident:
            lines += [f"{name} = {text}" for name, text in self._matrices().items()]
        lines += [self._compute(x) for x, level in self._operations() if level == 0]
        for i, _ in self.program.sums:
            k = self.sizes.sums[i]
            lines.append(f"total_{i} = tl.zeros({self._shape(k)}, tl.float64)")
        return lines

    def _matrices(self) -> dict[str, str]:
        """Names of the matrices that vectors are multiplied with, and how each is read."""
        loads = {}
        for node in self.program.nodes:
            if node.op in CONTRACTIONS:
                name, operand, m, n = self._sides(node)
                loads[name] = self._matrix(operand, m, n)
        return loads

    def _sides(self, node: Node) -> tuple[str, str, int, int]:
        """The name of a matrix as a product reads it, its operand, and its sizes.

        What a product sums over is its first axis, so that the threads of a warp have different
        results and not parts of one; a matrix that is not so in memory is given turned.
        """
        number = self.program.nodes[node.args[0]].attribute
        m, n = self.sizes.matrices[number]
        if node.attribute:
            return f"of_{number}", self._operand("matrix", number), m, n
        return f"of_{number}_turned", self._operand("turned", number), n, m

    def _operations(self) -> list[tuple[int, int]]:
        """Nodes that are computed, with their level."""
        numbered = enumerate(zip(self.program.nodes, levels(self.program), strict=True))
        return [(i, level) for i, (node, level) in numbered if node.args]

    def _compute(self, i: int) -> str:
        """Return the line that computes a node from those before it."""
        node = self.program.nodes[i]
        text = ELEMENTWISE[node.op].triton
        assert text is not None
        return f"v{i} = {text.format(*(f'v{x}' for x in node.args))}"

    def _next_states(self) -> list[str]:
        """Return the lines that end a step: its states, which stay where it does not exist."""
        lines = []
        for i, node in enumerate(self.program.next_states):
            lines.append(f"after_{i} = {self._row(node, self.sizes.states[i])}")
            lines += self._restart(f"after_{i}", "0") if self.adjoint else []
        for i in range(len(self.program.states)):
            lines.append(f"state_{i} = tl.where(exists, after_{i}, state_{i})")
        return lines

    def _input_size(self, number: int) -> int:
        return self.sizes.nodes[self.inputs[number]]


class SequenceWriter(Writer):
    """The source of a kernel of which an instance owns one sequence."""

    def source(self) -> Source:
        """All of it, and its arguments."""
        return self._assembled((), ("FLIP", "DTYPE", "UNROLL", "AHEAD", "AT_ONCE"))

    def _begin(self) -> list[str]:
        """Return the lines that locate what this instance reads and writes."""
        lines = [
            "part = tl.program_id(0) % parts",
            "s, chunk, row, first, left, count, lane_0 = place("
            "cu_seqlens, time, parts * BLOCK_0, 1, time, FLIP, BLOCK_0)",
            "sign = tl.full((), -1 if FLIP else 1, tl.int64)",
            "reset_by = sign * reset_step",
        ]
        for k in self.widths:
            if self.task.heads:
                lines += [
                    f"own_{k} = tl.arange(0, BLOCK_{k})",
                    f"inside_{k} = own_{k} < width_{k}",
                    f"lane_{k} = part * width_{k} + own_{k}",
                    f"all_{k} = parts * width_{k}",
                ]
            else:
                lines += [f"inside_{k} = lane_{k} < width_{k}", f"all_{k} = width_{k}"]
            lines.append(f"steps_{k} = tl.where(inside_{k}, count, 0)")
        return lines

    def _load_row(self, name: str, kind: str, number: int, k: int) -> str:
        """Return the line that loads a row of a tensor without an axis of time."""
        at = f"lane_{k}" if kind == "parameter" else f"s * all_{k} + lane_{k}"
        return f"{name} = tl.load({self._operand(kind, number)} + {at}, mask=inside_{k}, other=0)"

    def _matrix(self, operand: str, m: int, n: int) -> str:
        return f"matrix({operand}, part, 0, width_{m}, width_{n}, BLOCK_{m}, BLOCK_{n})"

    def _shape(self, k: int) -> str:
        """The shape of a value."""
        return f"[BLOCK_{k}]"

    def _loop(self) -> list[str]:
        """All steps, ``UNROLL`` at once; rows of ``AHEAD`` such groups are on their way."""
        ahead, body = [], []
        for i in self.inputs:
            k, name = self._input_size(i), self._operand("input", i)
            by, left = f"by_{i}", f"left_{i}"
            shift = f" + sign * {name}_step" if i in self.task.previous else ""
            ahead += [
                f"{by} = sign * {name}_step",
                f"{name} += row * {name}_seq + first * {name}_step{shift}",
                f"{left} = tl.where(inside_{k}, count - 1, 0)" if shift else f"{left} = steps_{k}",
                f"next_{i} = queued_rows({name}, {by}, lane_{k}, {left}, UNROLL, AHEAD)",
                f"{name} += AHEAD * UNROLL * {by}",
            ]
            body += [
                f"now_{i} = next_{i}[0]",
                f"more = rows({name}, {by}, lane_{k}, {left} - j - AHEAD * UNROLL, UNROLL)",
                f"next_{i} = next_{i}[1:] + (more,)",
                f"{name} += UNROLL * {by}",
            ]
        for i, k in enumerate(self.sizes.stored):
            ahead += [
                f"{self._operand('stored', i)} += (row * time + first) * all_{k}",
                f"stored_by_{i} = sign * all_{k}",
            ]
        ahead += [
            "if reset is not None:",
            "    reset += row * reset_seq + first * reset_step",
            "    reset_next = queued_flags(reset, reset_by, count, UNROLL, AHEAD)",
            "    reset += AHEAD * UNROLL * reset_by",
        ]
        body += [
            "if reset is not None:",
            "    reset_now = reset_next[0]",
            "    more = flags(reset, reset_by, count - j - AHEAD * UNROLL, UNROLL)",
            "    reset_next = reset_next[1:] + (more,)",
            "    reset += UNROLL * reset_by",
            "for i in tl.static_range(UNROLL):",
            *(f"    {line}" for line in self._step()),
            *(f"stored_{i} += UNROLL * stored_by_{i}" for i in range(len(self.sizes.stored))),
        ]
        return [*ahead, "for j in range(0, count, UNROLL):", *(f"    {line}" for line in body)]

    def _step(self) -> list[str]:
        """One step; the last group has fewer of them than it computes."""
        lines = ["exists = i < count - j"]
        for i, node in self.inputs.items():
            lines.append(f"v{node} = now_{i}[i].to(DTYPE)")
            if i in self.task.previous:
                lines += self._previous(node, self.task.previous.index(i))
        for i, node in self.program.leaves["state"].items():
            lines += [f"v{node} = state_{i}"]
            lines += [] if self.adjoint else self._restart(f"v{node}", f"start_{i}")
        lines += [self._compute(x) for x, level in self._operations() if level > 0]
        for i, (node, k) in enumerate(zip(self.task.stored, self.sizes.stored, strict=True)):
            at, row = f"stored_{i} + i * stored_by_{i} + lane_{k}", self._row(node, k)
            lines.append(f"tl.store({at}, {row}, mask=i < steps_{k} - j)")
        for i, node in self.program.sums:
            k = self.sizes.sums[i]
            row = self._row(node, k)
            lines.append(f"total_{i} += tl.where(i < steps_{k} - j, {row}, 0).to(tl.float64)")
        return lines + self._next_states()

    def _previous(self, node: int, state: int) -> list[str]:
        """The state before a step: of its first the one that was given, of a reset the start."""
        return [
            f"v{node} = tl.where(i + j == count - 1, entering_{state}, v{node})",
            *self._restart(f"v{node}", f"start_{state}"),
        ]

    def _restart(self, name: str, start: str) -> list[str]:
        """A selection, which also stops NaN."""
        return [
            "if reset is not None:",
            f"    {name} = tl.where(reset_now[i], {start}, {name})",
        ]

    def _end(self) -> list[str]:
        lines = []
        for i, k in enumerate(self.sizes.states):
            name = self._operand("final", i)
            lines.append(f"tl.store({name} + s * all_{k} + lane_{k}, state_{i}, mask=inside_{k})")
        for i, _ in self.program.sums:
            k, name = self.sizes.sums[i], self._operand("sum", i)
            lines.append(f"tl.store({name} + s * all_{k} + lane_{k}, total_{i}, mask=inside_{k})")
        return lines

    def _compute(self, i: int) -> str:
        node = self.program.nodes[i]
        if node.op in CONTRACTIONS:
            return f"v{i} = {self._product(node)}"
        if node.op in SPREADS:
            return f"v{i} = {self._spread(i)}"
        return super()._compute(i)

    def _spread(self, i: int) -> str:
        """Lanes beyond the width of what is read are not looked at."""
        node, k = self.program.nodes[i], self.sizes.nodes[i]
        op, x = node.op.removesuffix("_each"), node.args[0]
        if op == "roll":
            return f"roll(v{x}, width_{k}, {node.attribute}, BLOCK_{k})"
        narrow = self.sizes.nodes[x] if op == "spread" else k
        each = node.op != op
        return f"{op}(v{x}, width_{narrow}, {node.attribute}, BLOCK_{k}, {each})"

    def _product(self, node: Node) -> str:
        """Lanes beyond the width may hold anything, and nothing times 0 must be 0."""
        name, operand, m, n = self._sides(node)
        vector = f"tl.where(inside_{m}, v{node.args[1]}, 0)"
        if self.task.resident:
            return f"tl.sum({name} * {vector}[:, None], 0)"
        rows = f"BLOCK_{m} if BLOCK_{m} * BLOCK_{n} <= AT_ONCE else AT_ONCE // BLOCK_{n}"
        sides = f"width_{m}, width_{n}, BLOCK_{m}, BLOCK_{n}, {rows}"
        return f"product({operand}, part, {vector}, {sides})"

    def _row(self, node: int, k: int) -> str:
        """A value with all its channels, which a number has not."""
        constant = self.program.nodes[node].op == "constant"
        return f"tl.broadcast_to(v{node}, {self._shape(k)})" if constant else f"v{node}"


def literal(value: float) -> str:
    """A constant in the dtype that is computed in, in all its digits."""
    written = repr(value)
    if written.lstrip("-") in ("inf", "nan"):
        written = f"float({written!r})"
    return f"tl.full((), {written}, DTYPE)"


@functools.lru_cache(maxsize=512)
def load(text: str) -> Any:
    """The kernel that a text is, one for all calls: it holds what it was compiled to.

    Triton, which is imported by the first call, reads the text again, through `linecache`.
    """
    functions = importlib.import_module("linrnn.ops.cell.cell_scan.triton_functions")
    walk, tile = (
        importlib.import_module(f"linrnn.ops.linear.linear_scan.triton_{x}")
        for x in ("walk", "tile")
    )
    name = f"<linrnn cell {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    namespace = {x: y for x, y in vars(functions).items() if not x.startswith("__")}
    of_walks = ("place", "span", "rows", "flags", "queued_rows", "queued_flags", "multiply")
    namespace |= {name: getattr(walk, name) for name in of_walks}
    of_tiles = ("ends_in", "entered", "of_all_warps")
    namespace |= {name: getattr(tile, name) for name in of_tiles}
    namespace["kernel"] = importlib.import_module("linrnn.compute.triton_kernel").kernel
    namespace["__name__"] = "linrnn.ops.cell.cell_scan._triton_generated"
    exec(compile(text, name, "exec"), namespace)
    return namespace["run"]
