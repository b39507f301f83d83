"""Programs for the native machine: nodes of a graph as operations on rows.

What the machine is handed is described in ``src/native/machine_args.h``.

An operation computes a row from at most three rows and a number. What follows from one another and
is used nowhere else becomes one operation (`_select`), in the order of the levels; then every value
gets a place (`_Placement`): a register, which is used again when its value is not needed any more,
or the row in memory that it comes from or goes to.
"""

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from linrnn.engine.graph import Program, levels
from linrnn.engine.select import Operation, select
from linrnn.engine.widths import Ratio, classes, ratios


class Kind(IntEnum):
    """Where a value lies; as in ``machine_args.h``."""

    STEP = 0
    CHUNK = 1
    STATE = 2
    CHANNEL = 3
    CONSTANT = 4
    INPUT = 5
    PREVIOUS = 6
    OUTPUT = 7
    SUM = 8


class Operand(NamedTuple):
    """A tensor of a call: which one of a kind.

    Kinds: ``input``, ``initial`` and ``final`` (of a state), ``before`` (the state before the first
    step, of an input that is a state), ``parameter``, ``matrix``, ``output``, ``sum`` (the
    gradient of a parameter), ``factor`` (of the gradient of a matrix).
    """

    kind: str
    number: int


class Assembled(NamedTuple):
    """A program for the machine."""

    code: bytes
    operands: tuple[Operand, ...]
    """What the operands of a call are, in order."""
    products: tuple[tuple[int, Operand, Operand], ...]
    """The gradient of which matrix has the product of which two as a part."""
    factors: int
    """How many operands are written for `products` alone."""
    widths: tuple[tuple[tuple[Operand, int], ...], ...]
    """Of each class of slots that are as wide as each other: operands and their axes of that size;
    of a matrix that of each of its blocks."""
    ratios: tuple[Ratio, ...]
    """Of classes whose widths follow from those of others."""


class _Slot(NamedTuple):
    kind: Kind
    operand: int = 0
    value: float = 0.0
    width: int = 0


_SLOT = struct.Struct("=qqdq")
_MATRIX = struct.Struct("=4q")
_CODE = struct.Struct("=6id")
_HEADER = struct.Struct("=7q")


def assemble(
    program: Program,
    numbers: Mapping[str, int],
    starts: Sequence[float],
    previous: Sequence[int] = (),
    passing: Sequence[int] = (),
) -> Assembled:
    """The machine's program.

    Args:
        program: what to run.
        numbers: of the machine's operations.
        starts: what each state is before a sequence without an initial state, and after a reset;
            of an adjoint those of the step.
        previous: of an adjoint the inputs that are the states before the step, in order.
        passing: inputs that may be there for some steps at a time only.
    """
    return _Assembler(program, numbers, starts, previous, passing).assembled()


class _Assembler:
    def __init__(
        self,
        program: Program,
        numbers: Mapping[str, int],
        starts: Sequence[float],
        previous: Sequence[int],
        passing: Sequence[int],
    ) -> None:
        self.program, self.numbers = program, numbers
        self.starts, self.previous = starts, previous
        self.passing = {*previous, *passing}
        self.slots: list[_Slot] = []
        self.operands: list[Operand] = []
        self.home: dict[int, int] = {}
        self.states: list[int] = []
        self.matrices: dict[tuple[int, int], tuple[int, int]] = {}
        self.classes, self.levels = classes(program), levels(program)
        self.constants: dict[str, int] = {}
        self.factors: dict[int, Operand] = {}
        self.copies: list[tuple[int, int]] = []  # from a node to the slot of an output

    def assembled(self) -> Assembled:
        self._leaves()
        result_nodes = self._results()
        operations = select(self.program, self.levels, result_nodes)
        codes, counts = _Placement(self, operations).codes()
        body = b"".join(
            (
                *(_SLOT.pack(*slot) for slot in self.slots),
                *(_MATRIX.pack(*key, *pair) for key, pair in self.matrices.items()),
                *(_CODE.pack(*code) for code in codes),
            )
        )
        header = _HEADER.pack(
            _HEADER.size + len(body), len(self.slots), len(self.matrices), *counts
        )
        products = tuple(
            (matrix, self.factors[left], self.factors[right])
            for matrix, left, right in self.program.products
        )
        written = sum(x.kind == "factor" for x in self.operands)
        sizes = tuple(
            Ratio(self.classes[wide], self.classes[narrow], n)
            for wide, narrow, n in ratios(self.program)
        )
        operands = tuple(self.operands)
        return Assembled(header + body, operands, products, written, self._widths(), sizes)

    def _widths(self) -> tuple[tuple[tuple[Operand, int], ...], ...]:
        by_class: dict[int, list[tuple[Operand, int]]] = {}
        for slot in self.slots:
            sized = slot.kind not in (Kind.STEP, Kind.CHUNK, Kind.CONSTANT)
            members = by_class.setdefault(slot.width, [])
            # of states before a step those before the first: the others may be kept in part only
            place = slot.operand + (slot.kind == Kind.PREVIOUS)
            members += [(self.operands[place], -1)] if sized else []
        for (operand, transposed), pair in self.matrices.items():
            for width, axis in zip(pair, (-1, -2) if transposed else (-2, -1), strict=True):
                by_class[width].append((self.operands[operand], axis))
        return tuple(tuple(by_class.get(i, ())) for i in range(max(by_class) + 1))

    def operand(self, kind: str, index: int) -> int:
        operand = Operand(kind, index)
        if operand not in self.operands:
            self.operands.append(operand)
        return self.operands.index(operand)

    def slot(self, kind: Kind, operand: int = 0, value: float = 0.0, width: int = 0) -> int:
        self.slots.append(_Slot(kind, operand, value, width))
        return len(self.slots) - 1

    def constant(self, value: float) -> int:
        """The slot that is a number everywhere."""
        key = repr(value)
        if key not in self.constants:
            self.constants[key] = self.slot(Kind.CONSTANT, 0, value)
        return self.constants[key]

    def matrix(self, node: int, transposed: int, result: int, vector: int) -> int:
        """The number of a matrix, or of its transpose, between two slots."""
        index = int(self.program.nodes[node].attribute or 0)
        key = (self.operand("matrix", index), transposed)
        self.matrices.setdefault(key, (self.slots[result].width, self.slots[vector].width))
        return list(self.matrices).index(key)

    def _leaves(self) -> None:
        """Slots of the leaves, where the program reads them; every state has one."""
        program, width = self.program, self.classes
        for i, next_state in enumerate(program.next_states):
            first = len(self.operands)
            self.operands += [Operand("initial", i), Operand("final", i)]
            start = 0.0 if self.previous else self.starts[i]
            node = program.leaves("state").get(i, next_state)
            slot = self.slot(Kind.STATE, first, start, width[node])
            self.states.append(slot)
            if i in program.leaves("state"):
                self.home[node] = slot
        for i, node in program.leaves("input").items():
            if i in self.previous:
                state = list(self.previous).index(i)
                first = len(self.operands)
                self.operands += [Operand("input", i), Operand("before", state)]
                self.home[node] = self.slot(Kind.PREVIOUS, first, self.starts[state], width[node])
            else:
                place = self.operand("input", i)
                self.home[node] = self.slot(Kind.INPUT, place, 0.0, width[node])
        for i, node in program.leaves("parameter").items():
            place = self.operand("parameter", i)
            self.home[node] = self.slot(Kind.CHANNEL, place, 0.0, width[node])

    def _results(self) -> list[int]:
        """Slots of what goes to memory; returns the nodes that must be computed."""
        program = self.program
        for i, node in enumerate(program.outputs):
            self._goes_to(node, self.operand("output", i))
        for _, *pair in program.products:
            for node in pair:
                self._factor(node)
        return [*program.outputs, *program.next_states, *self.factors]

    def _goes_to(self, node: int, operand: int) -> None:
        """A value is computed where it goes, or copied there."""
        slot = self.slot(Kind.OUTPUT, operand, 0.0, self.classes[node])
        # what is computed once, before the first step, has no row in memory yet
        once = self.levels[node] == 0
        if once or node in self.home or self.program.nodes[node].op == "constant":
            self.copies.append((node, slot))
        else:
            self.home[node] = slot

    def _factor(self, node: int) -> None:
        entry = self.program.nodes[node]
        if node in self.factors:
            return
        index = int(entry.attribute or 0)
        if entry.op == "input" and index not in self.passing:
            self.factors[node] = Operand("input", index)
            return
        if node in self.program.outputs:
            self.factors[node] = Operand("output", self.program.outputs.index(node))
            return
        operand = Operand("factor", sum(x.kind == "factor" for x in self.operands))
        self.operands.append(operand)
        self._goes_to(node, len(self.operands) - 1)
        self.factors[node] = operand


class _Step(NamedTuple):
    """An operation between values: nodes, new values behind all nodes, slots as ``~slot``."""

    level: int
    op: str
    results: tuple[int, ...]
    args: tuple[int, ...]
    value: float = 0.0
    matrix: tuple[int, int] | None = None

    @property
    def distinct_result(self) -> bool:
        """Whether the result must not lie where an argument does: not number by number."""
        return self.op in ("product", "roll")


class _Placement:
    """Gives every value a slot, and writes the codes."""

    def __init__(self, assembler: _Assembler, operations: Sequence[Operation]) -> None:
        self.a, self.program = assembler, assembler.program
        self.like: dict[int, int] = {}  # of a copied value the node
        self.steps = self._ordered(operations)
        self._next_in_place()
        self.last: dict[int, int] = {}
        self.late: set[int] = set()
        for place, step in enumerate(self.steps):
            self.last.update(dict.fromkeys(step.args, place))
            if step.level == 3:
                self.late.update(step.args)
        self.free: dict[tuple[Kind, int], list[int]] = {}
        self.register: dict[int, int] = {}

    def _ordered(self, operations: Sequence[Operation]) -> list[_Step]:
        """All there is to do, by levels; copies of states before they change."""
        steps = [self._step(x) for x in operations]
        opening, closing = self._next_states()
        steps = self._kept_for_later(steps, opening)
        for node, slot in self.a.copies:
            if self.program.nodes[node].op == "state":
                opening.append(_Step(2, "move", (~slot,), (node,)))
            else:
                steps.append(_Step(3, "move", (~slot,), (node,)))
        by_level: list[list[_Step]] = [[], [], opening, []]
        for step in steps:
            by_level[step.level].append(step)
        by_level[2] += closing
        return [step for level_steps in by_level for step in level_steps]

    def _kept_for_later(self, steps: list[_Step], opening: list[_Step]) -> list[_Step]:
        """A state that is read after a chunk of steps is copied in each, before it changes."""
        nodes, count = self.program.leaves("state").values(), len(self.program.next_states)
        first = len(self.program.nodes) + count
        copies = {node: first + i for i, node in enumerate(nodes)}
        self.like.update({copy: node for node, copy in copies.items()})
        read = {node for x in steps if x.level == 3 for node in x.args if node in copies}
        opening += [_Step(2, "move", (copies[node],), (node,)) for node in sorted(read)]
        return [
            x._replace(args=tuple(copies.get(node, node) for node in x.args)) if x.level == 3 else x
            for x in steps
        ]

    def _step(self, x: Operation) -> _Step:
        if x.to_sum is None:
            return _Step(x.level, x.op, x.results, x.args, x.value, x.matrix)
        width = self.a.classes[x.position]
        slot = ~self.a.slot(Kind.SUM, self.a.operand("sum", x.to_sum), x.value, width)
        return _Step(x.level, x.op, (slot,), (*x.args, slot))

    def _next_states(self) -> tuple[list[_Step], list[_Step]]:
        """Copies that open and that close a step, and so make the next states."""
        opening, closing = [], []
        state_index = {node: i for i, node in self.program.leaves("state").items()}
        for i, node in enumerate(self.program.next_states):
            if state_index.get(node) == i:
                continue
            source = node
            if node in state_index:  # it changes as well
                source = len(self.program.nodes) + i
                self.like[source] = node
                opening.append(_Step(2, "move", (source,), (node,)))
            closing.append(_Step(2, "move", (~self.a.states[i],), (source,)))
        return opening, closing

    def _next_in_place(self) -> None:
        """Compute a next state where the state is, if nothing reads that any more."""
        leaves = self.program.leaves("state")
        for i, node in enumerate(self.program.next_states):
            producers = [p for p, x in enumerate(self.steps) if node in x.results and x.level == 2]
            slot = self.a.states[i]
            copies = [x for x in self.steps if x.op == "move" and x.results == (~slot,)]
            if not producers or not copies or node in self.a.home:
                continue
            readers = [
                p for p, x in enumerate(self.steps) if leaves.get(i, slot) in x.args and i in leaves
            ]
            last = max(readers, default=-1)
            distinct = self.steps[producers[0]].distinct_result
            late = any(x.level == 3 and node in x.args for x in self.steps)
            if late or last > producers[0] or (distinct and last == producers[0]):
                continue
            self.a.home[node] = slot
            self.steps.remove(copies[0])

    def codes(self) -> tuple[list[tuple[float, ...]], list[int]]:
        """The codes, and how many each level has."""
        codes, counts = [], [0, 0, 0, 0]
        for place, step in enumerate(self.steps):
            codes.append(self._code(place, step))
            counts[step.level] += 1
        return codes, counts

    def _code(self, place: int, step: _Step) -> tuple[float, ...]:
        args = [self._slot(x) for x in step.args]
        if not step.distinct_result:  # a result may take the place of an argument
            self._release(place, step)
        results = [self._result(x, step.level) for x in step.results]
        if step.distinct_result:
            self._release(place, step)
        for x, slot in zip(step.results, results, strict=True):
            if x in self.register and x not in self.last:
                self._give_back(slot)
        number = self.a.numbers[step.op]
        if step.matrix is not None:
            added = args[1] if len(args) > 1 else -1
            matrix = self.a.matrix(*step.matrix, results[0], args[0])
            return number, results[0], args[0], matrix, added, 0, 0.0
        a, b, c = [*args, *args[:1] * 2][:3] if len(args) < 3 else args
        if len(results) > 1:
            c = results[1]
        return number, results[0], a, b, c, 0, step.value

    def _slot(self, x: int) -> int:
        if x < 0:
            return ~x
        if x in self.register:
            return self.register[x]
        if x in self.a.home:
            return self.a.home[x]
        return self.a.constant(float(self.program.nodes[x].attribute or 0.0))

    def _result(self, x: int, level: int) -> int:
        if x < 0 or x in self.a.home:
            return self._slot(x)
        kind = Kind.STEP if level == 2 and x not in self.late else Kind.CHUNK
        width = self.a.classes[self.like.get(x, x)]
        free = self.free.get((kind, width), []) if level else []
        self.register[x] = free.pop() if free else self.a.slot(kind, 0, 0.0, width)
        if not level:
            self.last[x] = len(self.steps)  # stays
        return self.register[x]

    def _release(self, place: int, step: _Step) -> None:
        for x in set(step.args):
            if self.last[x] == place and x in self.register:
                self._give_back(self.register[x])

    def _give_back(self, slot: int) -> None:
        kind, _, _, width = self.a.slots[slot]
        self.free.setdefault((kind, width), []).append(slot)
