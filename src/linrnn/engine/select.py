"""Selection of the native machine's operations for a graph; several nodes may be one operation."""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from linrnn.engine.graph import CONTRACTIONS, SPREADS, Node, Program


class Operation(NamedTuple):
    """``results = op(args; value)``: nodes, but in a sum (`to_sum`), which has no result."""

    level: int
    op: str
    results: tuple[int, ...]
    args: tuple[int, ...]
    value: float = 0.0
    matrix: tuple[int, int] | None = None
    """The matrix of a product, and whether it is transposed."""
    to_sum: int | None = None
    """The parameter whose gradient, up to the factor ``value``, ``args`` are added to."""


#: An operation of all its fields in one call of C, as `linrnn.engine.graph.node_of`.
operation_of: Callable[[tuple[Any, ...]], Operation] = functools.partial(tuple.__new__, Operation)

Fused = tuple[str, tuple[int, ...], float, tuple[int, int] | None]
"""An operation, its arguments, its number and its matrix."""

#: Operations with a number as the first or second argument: the name, and the sign of the number.
_WITH_NUMBER = {
    ("add", 1): ("add_v", 1.0),
    ("sub", 1): ("add_v", -1.0),
    ("sub", 0): ("rsub_v", 1.0),
    ("mul", 1): ("mul_v", 1.0),
    ("div", 0): ("rdiv_v", 1.0),
}
#: What an operation is together with one that computes an argument: by the place of that argument
#: and its operation, best first. The arguments are those of the inner one, then the other one.
_TOGETHER = {
    "add": (
        *((side, op, "product") for side in (0, 1) for op in CONTRACTIONS),
        *((0, "mul", "mul_add"), (1, "mul", "mul_add")),
        *((0, "add", "add_add"), (1, "add", "add_add")),
    ),
    "sub": ((1, "mul", "neg_mul_add"), (0, "mul", "mul_sub")),
    "mul": tuple((side, op, f"{op}_mul") for side in (0, 1) for op in ("sub", "add", "mul")),
    "div": (),
}
_PARTS = frozenset(("add", "sub", "mul", *CONTRACTIONS))
#: Of these ``mul_v_add`` computes the same where a factor is a number, up to the sign of it.
_SCALED = {"mul_add": 1.0, "neg_mul_add": -1.0}
_OUTSIDE = Node("")  # no operation that could become a part of another


class Selection:
    """Operations that compute all required nodes and the sums.

    Args:
        program: what to compute.
        levels: of its nodes.
        required: nodes that must be computed as such.
        pairs: whether an operation may have two results.
    """

    def __init__(
        self, program: Program, levels: Sequence[int], required: Sequence[int], pairs: bool = True
    ) -> None:
        self.program, nodes = program, program.nodes
        self.uses = [0] * len(nodes)
        self.levels: list[int] = []
        #: The number that a node is, if it is one.
        self.numbers: list[float | None] = []
        #: The numbers, and inner nodes that may be one operation with what reads them.
        self.parts: set[int] = set()
        for i, (level, node) in enumerate(zip(levels, nodes, strict=True)):
            of_state = node.op == "state"
            for x in node.args:
                self.uses[x] += 1
                of_state |= nodes[x].op == "state"
            # a state is there while its step is computed; later there would be a copy of it
            if level == 3 and of_state and max([self.levels[x] for x in node.args], default=2) < 3:
                level = 2
            self.levels.append(level)
            self.numbers.append(node.attribute if node.op == "constant" else None)
            if node.op == "constant":
                self.parts.add(i)
        for x in required:
            self.uses[x] += 1
        for _, x in program.sums:
            self.uses[x] += 1
        self.needed = set(required)
        #: The nodes that may become a part of the one operation which reads them.
        self.inner = [_OUTSIDE] * len(nodes)
        for i, node in enumerate(nodes):
            for x in node.args:
                if self.uses[x] == 1 and self.levels[x] == self.levels[i]:
                    self.inner[x] = nodes[x]
                    if nodes[x].op in _PARTS:
                        self.parts.add(x)
        self.pairs = self._pairs() if pairs else {}
        self.operations: list[tuple[tuple[int, int, bool], Operation]] = []

    def ordered(self) -> list[Operation]:
        """All operations, by level and then as the nodes are."""
        done: set[int] = set()
        nodes, levels, needed = self.program.nodes, self.levels, self.needed
        for parameter, x in self.program.sums:
            self._sum(parameter, x)
        for i in reversed(range(len(levels))):
            op, args, attribute = nodes[i]
            if i not in needed or i in done or not args:
                continue
            results: tuple[int, ...] = (i,)
            level, value, matrix = levels[i], 0.0, None
            if i in self.pairs:
                op, results, argument = self.pairs[i]
                args, level = (argument,), min(map(levels.__getitem__, results))
            elif op in CONTRACTIONS:
                op, args, matrix = "product", args[1:], (args[0], attribute)
            elif op in SPREADS:
                value = attribute
            elif op in _TOGETHER and not self.parts.isdisjoint(args):
                op, args, value, matrix = self._fused(op, *args)
            operation = operation_of((level, op, results, args, value, matrix, None))
            self.operations.append(((level, min(results), False), operation))
            done.update(results)
            needed.update(args)
        self.operations.sort(key=operator.itemgetter(0))
        return [operation for _, operation in self.operations]

    def _fused(self, op: str, *args: int) -> Fused:
        """An operation on two nodes, together with what computes them for it alone."""
        numbers, inner = self.numbers, self.inner
        for side, x in enumerate(args):
            number = numbers[x]
            if number is not None and (op, side) in _WITH_NUMBER:
                name, sign = _WITH_NUMBER[op, side]
                part = inner[args[1 - side]]
                if (name, number, part.op) == ("rsub_v", 1, "square"):
                    return "one_minus_square", part.args, 0.0, None
                return name, (args[1 - side],), sign * number, None
        for side, inner_op, name in _TOGETHER[op]:
            part, y = inner[args[side]], args[1 - side]
            if part.op != inner_op:
                continue
            p, q = part.args
            if name == "product":
                return name, (q, y), 0.0, (p, part.attribute)
            number = numbers[q]
            if number is not None and name in _SCALED:
                return "mul_v_add", (p, y), _SCALED[name] * number, None
            first = numbers[p]
            if first is not None:  # ``(first - q) * y``
                if first == 1 and inner[q].op == "square":
                    return "mul_one_minus_square", (y, *inner[q].args), 0.0, None
                return "rsub_v_mul", (q, y), first, None
            for share, factor in ((p, q), (q, p)) if name == "mul_add" else ():
                difference = inner[factor]
                if difference.op == "sub" and difference.args[1] == y:  # y + share * (x - y)
                    return "lerp", (y, difference.args[0], share), 0.0, None
            if number is None:
                return name, (p, q, y), 0.0, None
        return op, args, 0.0, None

    def _sum(self, parameter: int, x: int) -> None:
        factor, nodes = 1.0, self.program.nodes
        while self.uses[x] == 1:  # a constant factor of all that is summed
            node = nodes[x]
            value = self.numbers[node.args[1]] if node.op == "mul" else None
            if node.op != "neg" and value is None:
                break
            factor, x = factor * (-1.0 if value is None else value), node.args[0]
        node, level = nodes[x], self.levels[x]
        alone = node.op == "mul" and self.uses[x] == 1
        if node.op != "state" and not (alone and level == 2):
            level = 3
        op, args = ("mul_add", node.args) if alone else ("add", (x,))
        operation = operation_of((level, op, (), args, factor, None, parameter))
        self.operations.append(((level, x, True), operation))
        self.needed.update(args)

    def _pairs(self) -> dict[int, tuple[str, tuple[int, int], int]]:
        """Pair nodes that one operation computes: the operation, both nodes, and the argument.

        Sigmoids of x and of -x; cosine and sine.
        """
        nodes = self.program.nodes
        groups: dict[tuple[object, ...], list[int]] = {}
        for i, node in enumerate(nodes):
            if node.op in ("sin", "cos"):
                groups.setdefault(("sin", *node.args), []).append(i)
            elif node.op == "sigmoid":
                argument = nodes[node.args[0]]
                negated = argument.op in ("neg", "sub")
                key = tuple(sorted(argument.args)) if negated else node.args
                groups.setdefault(key, []).append(i)
        pairs = {}
        for group in groups.values():
            if len(group) == 2:
                first, second = group
                (x,) = nodes[first].args
                op = "sigmoid_both" if nodes[first].op == "sigmoid" else "sin_cos"
                if nodes[first].op == "sin":
                    first, second = second, first
                elif op == "sigmoid_both" and nodes[x].op == "neg":
                    first, second, x = second, first, nodes[x].args[0]
                pairs.update(dict.fromkeys(group, (op, (first, second), x)))
        return pairs
