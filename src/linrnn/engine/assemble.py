"""Programs for the native machine: nodes of a graph as operations on rows.

What the machine is handed is described in ``src/native/machine_args.h``.

An operation computes a row from at most three rows and a number. What follows from one another and
is used nowhere else becomes one operation (`Selection`), in the order of the levels; then every
value gets a place (`Assembler`): a register, which is used again when its value is not needed any
more, or the row in memory that it comes from or goes to.
"""

import struct
from collections.abc import Mapping, Sequence, Set
from enum import IntEnum
from itertools import chain, starmap
from typing import NamedTuple, TypeAlias

from linrnn.engine.graph import Program, levels
from linrnn.engine.select import Operation, Selection, operation_of
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


Operand: TypeAlias = tuple[str, int]
"""A tensor of a call: a kind, and which one of it.

Kinds: ``input``, ``initial`` and ``final`` (of a state), ``before`` (the state before the first
step, of an input that is a state), ``parameter``, ``matrix``, ``output``, ``sum`` (the gradient of
a parameter), ``factor`` (of the gradient of a matrix).
"""


class Assembled(NamedTuple):
    """A program for the machine."""

    code: bytes
    operands: tuple[Operand, ...]
    """Kinds of the operands of a call, in order."""
    products: tuple[tuple[int, Operand, Operand], ...]
    """The gradient of which matrix has the product of which two as a part."""
    factors: int
    """How many operands are written for `products` alone."""
    widths: tuple[tuple[tuple[Operand, int], ...], ...]
    """For each class of slots of equal width, operands and their axes of that size; a matrix counts
    by the size of each of its blocks."""
    ratios: tuple[Ratio, ...]
    """The ratios of classes whose widths follow from those of others."""


_SLOT = struct.Struct("=qqdq")
_MATRIX = struct.Struct("=4q")
_CODE = struct.Struct("=6id")
_HEADER = struct.Struct("=7q")


class Assembler:
    """Writes the machine's program: gives every value a slot.

    A value is a node of the program, a copy of one, whose number is behind all nodes', or the slot
    s itself as ``~s``.

    Args:
        program: what to run.
        outputs: nodes that are given out at every step.
        numbers: of the machine's operations.
        starts: what each state is before a sequence without an initial state, and after a reset;
            of an adjoint those of the step.
        previous: of an adjoint the inputs that are the states before the step, in order.
        passing: inputs that may be there for some steps at a time only.
    """

    def __init__(
        self,
        program: Program,
        outputs: Sequence[int],
        numbers: Mapping[str, int],
        starts: Sequence[float],
        previous: Sequence[int] = (),
        passing: Sequence[int] = (),
    ) -> None:
        self.program, self.outputs, self.numbers = program, outputs, numbers
        self.starts, self.previous = starts, previous
        self.passing = {*previous, *passing}
        self.slots: list[tuple[Kind, int, float, int]] = []  # kind, operand, value, width
        self.operands: dict[Operand, int] = {}
        self.home: dict[int, int] = {}  # of each value its slot
        self.states: list[int] = []
        self.matrices: dict[tuple[int, int], tuple[int, int]] = {}
        self.width = classes(program)  # of each value; copies are added
        self.levels = levels(program)
        self.factors: dict[int, Operand] = {}
        self.written_factors = 0
        self.copies: list[tuple[int, int]] = []  # from a node to the slot of an output

    def assembled(self) -> Assembled:
        """The program."""
        program = self.program
        ratio_classes = [
            Ratio(self.width[wider], self.width[narrow], n) for wider, narrow, n in ratios(program)
        ]
        self._leaves()
        result_nodes = self._results()
        steps = self._steps(Selection(program, self.levels, result_nodes).ordered())
        codes = self._codes(steps)
        counts = [0, 0, 0, 0]
        for step in steps:
            counts[step.level] += 1
        matrices = [(*key, *pair) for key, pair in self.matrices.items()]
        rows = starmap(_SLOT.pack, self.slots), starmap(_MATRIX.pack, matrices)
        body = b"".join(chain(*rows, starmap(_CODE.pack, codes)))
        sizes = (_HEADER.size + len(body), len(self.slots), len(matrices), *counts)
        return Assembled(
            _HEADER.pack(*sizes) + body,
            tuple(self.operands),
            tuple([(i, self.factors[x], self.factors[y]) for i, x, y in program.products]),
            self.written_factors,
            self._sized(),
            tuple(ratio_classes),
        )

    def _sized(self) -> tuple[tuple[tuple[Operand, int], ...], ...]:
        """For each class of widths, the operands that show it and the axes along which they do."""
        operands = list(self.operands)
        by_class: dict[int, list[tuple[Operand, int]]] = {}
        for kind, operand, _, width in self.slots:
            members = by_class.setdefault(width, [])
            if kind not in (Kind.STEP, Kind.CHUNK, Kind.CONSTANT):
                # of states before a step those before the first: the others may be kept in part
                members.append((operands[operand + (kind == Kind.PREVIOUS)], -1))
        for (operand, transposed), pair in self.matrices.items():
            for width, axis in zip(pair, (-1, -2) if transposed else (-2, -1), strict=True):
                by_class[width].append((operands[operand], axis))
        return tuple([tuple(by_class.get(i, ())) for i in range(max(by_class) + 1)])

    def _slot(self, kind: Kind, width: int, value: float, *operands: Operand) -> int:
        """A new slot, which the first of some operands belongs to; the others follow that."""
        for x in operands:
            self.operands.setdefault(x, len(self.operands))
        slot, operand = len(self.slots), self.operands[operands[0]] if operands else 0
        self.slots.append((kind, operand, value, width))
        self.home[~slot] = slot
        return slot

    def _leaves(self) -> None:
        """Slots of the leaves, where the program reads them; every state has one."""
        width, home, leaves = self.width, self.home, self.program.leaves
        for i, next_state in enumerate(self.program.next_states):
            node = leaves["state"].get(i, next_state)
            start = 0.0 if self.previous else self.starts[i]
            slot = self._slot(Kind.STATE, width[node], start, ("initial", i), ("final", i))
            self.states.append(slot)
            if i in leaves["state"]:
                home[node] = slot
        for name, kind in (("input", Kind.INPUT), ("parameter", Kind.CHANNEL)):
            for i, node in leaves[name].items():
                if name == "input" and i in self.previous:
                    state = self.previous.index(i)
                    operands = ("input", i), ("before", state)
                    start = self.starts[state]
                    home[node] = self._slot(Kind.PREVIOUS, width[node], start, *operands)
                    continue
                home[node] = len(self.slots)
                operand = self.operands.setdefault((name, i), len(self.operands))
                self.slots.append((kind, operand, 0.0, width[node]))

    def _results(self) -> list[int]:
        """Slots of what goes to memory; returns the nodes that must be computed."""
        program = self.program
        destinations: list[tuple[int, Operand]] = []
        for i, node in enumerate(self.outputs):
            destinations.append((node, ("output", i)))
        for _, *sides in program.products:
            for node in sides:
                if node not in self.factors:
                    self.factors[node] = self._factor(node)
                    if self.factors[node][0] == "factor":
                        destinations.append((node, self.factors[node]))
        for node, operand in destinations:
            # a value is computed where it goes, or copied there: what is computed once, before
            # the first step, has no row in memory yet
            slot, number = len(self.slots), self.operands.setdefault(operand, len(self.operands))
            self.slots.append((Kind.OUTPUT, number, 0.0, self.width[node]))
            self.home[~slot] = slot
            once = self.levels[node] == 0
            if once or node in self.home or program.nodes[node].op == "constant":
                self.copies.append((node, slot))
            else:
                self.home[node] = slot
        return [*self.outputs, *program.next_states, *self.factors]

    def _factor(self, node: int) -> Operand:
        """Where a factor of `Program.products` lies: with an input, an output or by itself."""
        op, _, index = self.program.nodes[node]
        if op == "input" and index not in self.passing:
            return "input", index
        if node in self.outputs:
            return "output", self.outputs.index(node)
        self.written_factors += 1
        return "factor", self.written_factors - 1

    def _steps(self, operations: Sequence[Operation]) -> list[Operation]:
        """All there is to do, by levels: the operations on values, and copies."""
        nodes = self.program.nodes
        by_level: list[list[Operation]] = [[], [], [], []]
        for x in operations:
            if x.to_sum is not None:  # its third argument is the result as well
                width, operand = self.width[x.args[0]], ("sum", x.to_sum)
                slot = ~self._slot(Kind.SUM, width, x.value, operand)
                x = operation_of((x.level, x.op, (slot,), (*x.args, slot), 0.0, None, None))
            by_level[x.level].append(x)
        opening: list[Operation] = []
        late = {x for step in by_level[3] for x in step.args}
        closing = self._next_states(by_level[2], late, opening)
        # a state that is read after a chunk of steps is copied in each, before it changes
        read = late.intersection(self.program.leaves["state"].values())
        if read:
            copies = {x: self._copied(x, opening) for x in sorted(read)}
            by_level[3] = [
                x._replace(args=tuple([copies.get(node, node) for node in x.args]))
                for x in by_level[3]
            ]
        for node, slot in self.copies:
            level = 2 if nodes[node].op == "state" else 3
            (opening if level == 2 else by_level[3]).append(_move(level, node, ~slot))
        return [*by_level[0], *by_level[1], *opening, *by_level[2], *closing, *by_level[3]]

    def _copied(self, node: int, opening: list[Operation]) -> int:
        """A copy of a state, made before the state changes."""
        copy = len(self.width)
        self.width.append(self.width[node])
        opening.append(_move(2, node, copy))
        return copy

    def _next_states(
        self, steps: Sequence[Operation], late: Set[int], opening: list[Operation]
    ) -> list[Operation]:
        """The copies that close a step, of next states that are not computed in their places.

        One is, if nothing reads the state any more when it is computed, nor the value later.

        Args:
            steps: on the way from state to state.
            late: the values that are read after these.
            opening: what comes before them, to which copies are added.
        """
        places = self.program.leaves["state"]
        produced, last_read = dict[int, int](), dict[int, int]()
        for place, step in enumerate(steps):
            produced.update(dict.fromkeys(step.results, place))
            last_read.update(dict.fromkeys(step.args, place))
        closing = []
        for i, node in enumerate(self.program.next_states):
            if places.get(i) == node:
                continue
            free = node in produced and node not in late and node not in self.home
            last = last_read.get(places.get(i, -1), -1)
            if free and last < produced[node] + (steps[produced[node]].op not in _NOT_IN_PLACE):
                self.home[node] = self.states[i]
                continue
            # another state changes as well
            is_state = self.program.nodes[node].op == "state"
            source = self._copied(node, opening) if is_state else node
            closing.append(_move(2, source, ~self.states[i]))
        return closing

    def _codes(self, steps: Sequence[Operation]) -> list[tuple[float, ...]]:
        """The codes; a register is used again once its value is not needed any more."""
        last: dict[int, int] = {}
        late: set[int] = set()
        for place, step in enumerate(steps):
            last.update(dict.fromkeys(step.args, place))
            if step.level == 3:
                late.update(step.args)
        home, slots, codes = self.home, self.slots, []
        free: dict[tuple[Kind, int], list[int]] = {}
        registers: dict[int, tuple[Kind, int]] = {}  # of values in one
        for place, (level, op, results, nodes, value, matrix, _) in enumerate(steps):
            ended, separate = list[int](), op in _NOT_IN_PLACE
            for x in nodes:
                if x not in home:
                    home[x] = len(slots)
                    slots.append((Kind.CONSTANT, 0, self.program.nodes[x].attribute, 0))
            args = list(map(home.__getitem__, nodes))
            for x in {*nodes}:
                if last[x] == place and x in registers:
                    ended.append(x)
                    if not separate:
                        free.setdefault(registers[x], []).append(home[x])
            for x in results:
                if x in home:
                    continue
                register = Kind.STEP if level == 2 and x not in late else Kind.CHUNK, self.width[x]
                room = free.get(register) if level else None
                home[x] = room.pop() if room else len(slots)
                if home[x] == len(slots):
                    slots.append((register[0], 0, 0.0, register[1]))
                if level:  # what is computed once stays
                    registers[x] = register
                    ended += () if x in last else (x,)
            for x in ended:
                if separate or x not in last:
                    free.setdefault(registers[x], []).append(home[x])
            if matrix is not None:
                codes.append(self._product(home[results[0]], args, *matrix))
                continue
            a, b, c = (*args, args[0], args[0])[:3]
            if len(results) > 1:
                c = home[results[1]]
            codes.append((self.numbers[op], home[results[0]], a, b, c, 0, value))
        return codes

    def _product(
        self, result: int, args: Sequence[int], node: int, transposed: int
    ) -> tuple[float, ...]:
        """The code of a matrix times a vector, to which another may be added."""
        operand = ("matrix", self.program.nodes[node].attribute)
        key = (self.operands.setdefault(operand, len(self.operands)), transposed)
        self.matrices.setdefault(key, (self.slots[result][3], self.slots[args[0]][3]))
        added = args[1] if len(args) > 1 else -1
        number = self.numbers["product"]
        return number, result, args[0], list(self.matrices).index(key), added, 0, 0.0


def _move(level: int, node: int, to: int) -> Operation:
    """A copy of a value."""
    return operation_of((level, "move", (to,), (node,), 0.0, None, None))


#: Operations whose result must not lie where an argument does: not number by number.
_NOT_IN_PLACE = ("product", "roll")
