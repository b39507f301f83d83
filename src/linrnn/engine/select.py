"""Which operations of the native machine compute a graph: several nodes may be one operation."""

from collections.abc import Sequence
from typing import NamedTuple

from linrnn.engine.graph import CONTRACTIONS, SPREADS, Node, Program


class Operation(NamedTuple):
    """``results = op(args; value)``: nodes, but in a sum (`to_sum`), which has no result."""

    level: int
    position: int
    op: str
    results: tuple[int, ...]
    args: tuple[int, ...]
    value: float = 0.0
    matrix: tuple[int, int] | None = None
    """Of a product: the matrix, and whether it is transposed."""
    to_sum: int | None = None
    """The parameter whose gradient, up to the factor ``value``, ``args`` are added to."""


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
    operations = _Selection(program, levels, required, pairs).operations
    return sorted(operations, key=lambda x: (x.level, x.position, x.to_sum is not None))


class _Selection:
    def __init__(
        self, program: Program, levels: Sequence[int], required: Sequence[int], pairs: bool
    ) -> None:
        self.nodes = program.nodes
        states = set(program.leaves("state").values())
        self.levels: list[int] = []
        for i, (level, node) in enumerate(zip(levels, self.nodes, strict=True)):
            # a state is there while its step is computed; later there would be a copy of it
            soon = i in states or (
                states.intersection(node.args) and all(self.levels[x] <= 2 for x in node.args)
            )
            self.levels.append(2 if level == 3 and soon else level)
        self.uses = [0] * len(self.nodes)
        for node in self.nodes:
            for x in node.args:
                self.uses[x] += 1
        for x in (*required, *(x for _, x in program.sums)):
            self.uses[x] += 1
        self.needed = set(required)
        self.done: set[int] = set()
        self.partners = self._partners() if pairs else {}
        self.operations: list[Operation] = []
        for parameter, x in program.sums:
            self._sum(parameter, x)
        for i in reversed(range(len(self.nodes))):
            if i in self.needed and i not in self.done and self.nodes[i].args:
                self._emit(self._match(i))

    def _emit(self, operation: Operation) -> None:
        self.operations.append(operation)
        self.done.update(operation.results)
        self.needed.update(operation.args)

    def _sum(self, parameter: int, x: int) -> None:
        factor = 1.0
        while self.uses[x] == 1:  # a constant factor of all that is summed
            inner = self.nodes[x]
            value = self._number(inner.args[1]) if inner.op == "mul" else None
            if inner.op != "neg" and value is None:
                break
            factor, x = factor * (-1.0 if value is None else value), inner.args[0]
        node, level = self.nodes[x], self.levels[x]
        alone = node.op == "mul" and self.uses[x] == 1
        if node.op != "state" and not (alone and level == 2):
            level = 3
        op, args = ("mul_add", node.args) if alone else ("add", (x,))
        self._emit(Operation(level, x, op, (), args, factor, to_sum=parameter))

    def _partners(self) -> dict[int, tuple[str, tuple[int, int], int]]:
        """Pair nodes that one operation computes: the operation, both nodes, and the argument.

        Sigmoids of x and of -x; cosine and sine.
        """
        groups: dict[tuple[object, ...], list[int]] = {}
        for i, node in enumerate(self.nodes):
            if node.op in ("sin", "cos"):
                groups.setdefault(("sin", *node.args), []).append(i)
            elif node.op == "sigmoid":
                inner = self.nodes[node.args[0]]
                unnegated = inner.op not in ("neg", "sub")
                groups.setdefault(node.args if unnegated else tuple(sorted(inner.args)), []).append(
                    i
                )
        pairs = {}
        for group in groups.values():
            if len(group) == 2:
                pairs.update(dict.fromkeys(group, self._pair(*group)))
        return pairs

    def _pair(self, first: int, second: int) -> tuple[str, tuple[int, int], int]:
        x = self.nodes[first].args[0]
        if self.nodes[first].op != "sigmoid":
            order = (first, second) if self.nodes[first].op == "cos" else (second, first)
            return "sin_cos", order, x
        if self.nodes[x].op == "neg":
            return "sigmoid_both", (second, first), self.nodes[x].args[0]
        return "sigmoid_both", (first, second), x

    def _number(self, x: int) -> float | None:
        node = self.nodes[x]
        return float(node.attribute or 0.0) if node.op == "constant" else None

    def _inner(self, x: int, outer: int, *ops: str) -> Node | None:
        """The node x where it may become a part of the operation that is the outer one."""
        node = self.nodes[x]
        free = self.uses[x] == 1 and self.levels[x] == self.levels[outer]
        return node if free and node.op in ops and x not in self.needed else None

    def _match(self, i: int) -> Operation:
        node = self.nodes[i]
        if i in self.partners:
            op, pair, x = self.partners[i]
            return Operation(min(self.levels[y] for y in pair), min(pair), op, pair, (x,))
        if node.op in CONTRACTIONS:
            return self._product(i, i, ())
        if node.op in SPREADS:
            value = float(node.attribute or 0)
            return Operation(self.levels[i], i, node.op, (i,), node.args, value)
        op, args, value = node.op, node.args, 0.0
        rules = {"add": self._add, "sub": self._sub, "mul": self._mul, "div": self._div}
        if op in rules:
            if op == "add":
                product = self._added_product(i)
                if product is not None:
                    return product
            op, args, value = rules[op](i, *args)
        return Operation(self.levels[i], i, op, (i,), args, value)

    def _product(self, i: int, x: int, added: tuple[int, ...]) -> Operation:
        node = self.nodes[x]
        pair = (node.args[0], int(node.attribute or 0))
        return Operation(self.levels[i], i, "product", (i,), (node.args[1], *added), matrix=pair)

    def _added_product(self, i: int) -> Operation | None:
        for x, addend in (self.nodes[i].args, self.nodes[i].args[::-1]):
            if self._inner(x, i, *CONTRACTIONS) and self._number(addend) is None:
                return self._product(i, x, (addend,))
        return None

    def _add(self, i: int, a: int, b: int) -> tuple[str, tuple[int, ...], float]:
        value = self._number(b)
        if value is not None:
            return "add_v", (a,), value
        for x, y in ((a, b), (b, a)):
            inner = self._inner(x, i, "mul")
            if inner:
                return self._multiplied(i, inner, y)
        for x, y in ((a, b), (b, a)):
            inner = self._inner(x, i, "add")
            if inner and self._number(inner.args[1]) is None:
                return "add_add", (*inner.args, y), 0.0
        return "add", (a, b), 0.0

    def _multiplied(self, i: int, inner: Node, y: int) -> tuple[str, tuple[int, ...], float]:
        """A product of two plus y."""
        p, q = inner.args
        value = self._number(q)
        if value is not None:
            return "mul_v_add", (p, y), value
        for share, factor in ((p, q), (q, p)):
            difference = self._inner(factor, i, "sub")
            if difference and difference.args[1] == y:  # y + share * (x - y)
                return "lerp", (y, difference.args[0], share), 0.0
        return "mul_add", (p, q, y), 0.0

    def _sub(self, i: int, a: int, b: int) -> tuple[str, tuple[int, ...], float]:
        left, right = self._number(a), self._number(b)
        if right is not None:
            return "add_v", (a,), -right
        square = self._inner(b, i, "square")
        if left is not None:
            return (
                ("one_minus_square", square.args, 0.0)
                if left == 1 and square
                else ("rsub_v", (b,), left)
            )
        inner = self._inner(b, i, "mul")
        if inner:
            value = self._number(inner.args[1])
            if value is not None:
                return "mul_v_add", (inner.args[0], a), -value
            return "neg_mul_add", (*inner.args, a), 0.0
        inner = self._inner(a, i, "mul")
        if inner and self._number(inner.args[1]) is None:
            return "mul_sub", (*inner.args, b), 0.0
        return "sub", (a, b), 0.0

    def _mul(self, i: int, a: int, b: int) -> tuple[str, tuple[int, ...], float]:
        value = self._number(b)
        if value is not None:
            return "mul_v", (a,), value
        for x, y in ((a, b), (b, a)):
            inner = self._inner(x, i, "sub", "add", "mul")
            if inner is None:
                continue
            p, q = inner.args
            left = self._number(p)
            if self._number(q) is not None:
                continue
            if left is None:
                return f"{inner.op}_mul", (p, q, y), 0.0
            square = self._inner(q, i, "square")
            if left == 1 and square:
                return "mul_one_minus_square", (y, square.args[0]), 0.0
            return "rsub_v_mul", (q, y), left
        return "mul", (a, b), 0.0

    def _div(self, i: int, a: int, b: int) -> tuple[str, tuple[int, ...], float]:
        value = self._number(a)
        return ("div", (a, b), 0.0) if value is None else ("rdiv_v", (b,), value)
