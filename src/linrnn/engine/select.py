"""Selection of the native machine's operations for a graph; several nodes may be one operation."""

import operator
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

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


Fused = tuple[str, tuple[int, ...], float]
"""An operation, its arguments and its number."""


def select(
    program: Program, levels: Sequence[int], required: Sequence[int], *, pairs: bool = True
) -> list[Operation]:
    """Operations that compute all required nodes and the sums, in a possible order.

    Args:
        program: what to compute.
        levels: of its nodes.
        required: nodes that must be computed as such.
        pairs: whether an operation may have two results.
    """
    return _Selection(program, levels, required, pairs).ordered()


_OUTSIDE = Node("")  # no operation that could become a part of another


class _Selection:
    def __init__(
        self, program: Program, levels: Sequence[int], required: Sequence[int], pairs: bool
    ) -> None:
        self.program, nodes = program, program.nodes
        self.uses = [0] * len(nodes)
        self.levels: list[int] = []
        #: The number that a node is, if it is one.
        self.numbers: list[float | None] = []
        for level, node in zip(levels, nodes, strict=True):
            of_state = node.op == "state"
            for x in node.args:
                self.uses[x] += 1
                of_state |= nodes[x].op == "state"
            # a state is there while its step is computed; later there would be a copy of it
            if level == 3 and of_state and max([self.levels[x] for x in node.args], default=2) < 3:
                level = 2
            self.levels.append(level)
            number = node.attribute if node.op == "constant" else None
            self.numbers.append(number)
        for x in (*required, *[x for _, x in program.sums]):
            self.uses[x] += 1
        self.needed = set(required)
        #: The nodes that may become a part of the one operation which reads them.
        self.inner = [_OUTSIDE] * len(nodes)
        for i, node in enumerate(nodes):
            for x in node.args:
                if self.uses[x] == 1 and self.levels[x] == self.levels[i]:
                    self.inner[x] = nodes[x]
        self.pairs = self._pairs() if pairs else {}
        self.operations: list[tuple[tuple[int, int, bool], Operation]] = []

    def ordered(self) -> list[Operation]:
        """All operations, by level and then as the nodes are."""
        done: set[int] = set()
        for parameter, x in self.program.sums:
            self._sum(parameter, x)
        for i in reversed(range(len(self.levels))):
            if i not in self.needed or i in done or not self.program.nodes[i].args:
                continue
            operation = self._match(i)
            self.operations.append(((operation.level, min(operation.results), False), operation))
            done.update(operation.results)
            self.needed.update(operation.args)
        self.operations.sort(key=operator.itemgetter(0))
        return [operation for _, operation in self.operations]

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
        operation = Operation(level, op, (), args, factor, to_sum=parameter)
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

    def _match(self, i: int) -> Operation:
        node, level = self.program.nodes[i], self.levels[i]
        if i in self.pairs:
            op, pair, x = self.pairs[i]
            return Operation(min([self.levels[y] for y in pair]), op, pair, (x,))
        if node.op in CONTRACTIONS:
            return self._product(i, node)
        if node.op in SPREADS:
            return Operation(level, node.op, (i,), node.args, node.attribute)
        if node.op == "add":
            for x, addend in (node.args, node.args[::-1]):
                if self.inner[x].op in CONTRACTIONS and self.numbers[addend] is None:
                    return self._product(i, self.inner[x], addend)
        rule = self._RULES.get(node.op)
        fused = rule(self, *node.args) if rule else None
        op, args, value = fused or (node.op, node.args, 0.0)
        return Operation(level, op, (i,), args, value)

    def _product(self, i: int, node: Node, *added: int) -> Operation:
        matrix = (node.args[0], node.attribute)
        return Operation(self.levels[i], "product", (i,), (node.args[1], *added), matrix=matrix)

    # By the origins of an operation's two arguments: what computes all of them together.

    def _add(self, a: int, b: int) -> Fused | None:
        value = self.numbers[b]
        if value is not None:
            return "add_v", (a,), value
        for x, y in ((a, b), (b, a)):
            if self.inner[x].op == "mul":
                return self._multiplied(self.inner[x], y)
        for x, y in ((a, b), (b, a)):
            args = self.inner[x].args
            if self.inner[x].op == "add" and self.numbers[args[1]] is None:
                return "add_add", (*args, y), 0.0
        return None

    def _multiplied(self, product: Node, y: int) -> Fused:
        """A product of two plus y."""
        p, q = product.args
        value = self.numbers[q]
        if value is not None:
            return "mul_v_add", (p, y), value
        for share, factor in ((p, q), (q, p)):
            difference = self.inner[factor]
            if difference.op == "sub" and difference.args[1] == y:  # y + share * (x - y)
                return "lerp", (y, difference.args[0], share), 0.0
        return "mul_add", (p, q, y), 0.0

    def _sub(self, a: int, b: int) -> Fused | None:
        left, right = self.numbers[a], self.numbers[b]
        if right is not None:
            return "add_v", (a,), -right
        inner = self.inner[b]
        if left is not None:
            squared = left == 1 and inner.op == "square"
            return ("one_minus_square", inner.args, 0.0) if squared else ("rsub_v", (b,), left)
        if inner.op == "mul":
            p, q = inner.args
            value = self.numbers[q]
            return (
                ("neg_mul_add", (p, q, a), 0.0) if value is None else ("mul_v_add", (p, a), -value)
            )
        inner = self.inner[a]
        if inner.op == "mul" and self.numbers[inner.args[1]] is None:
            return "mul_sub", (*inner.args, b), 0.0
        return None

    def _mul(self, a: int, b: int) -> Fused | None:
        value = self.numbers[b]
        if value is not None:
            return "mul_v", (a,), value
        for x, y in ((a, b), (b, a)):
            inner = self.inner[x]
            if inner.op not in ("sub", "add", "mul") or self.numbers[inner.args[1]] is not None:
                continue
            p, q = inner.args
            left = self.numbers[p]
            if left is None:
                return f"{inner.op}_mul", (p, q, y), 0.0
            if left == 1 and self.inner[q].op == "square":
                return "mul_one_minus_square", (y, *self.inner[q].args), 0.0
            return "rsub_v_mul", (q, y), left
        return None

    def _div(self, a: int, b: int) -> Fused | None:
        value = self.numbers[a]
        return None if value is None else ("rdiv_v", (b,), value)

    _RULES: ClassVar[dict[str, Callable[..., Fused | None]]] = {
        "add": _add, "sub": _sub, "mul": _mul, "div": _div,
    }  # fmt: skip
