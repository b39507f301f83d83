r"""One step of a recurrence as a graph: what a tracer writes, what machines run.

**A `Graph`** is written by calling ``graph(op, *nodes)``; a node is an integer, its place in
``graph.nodes``, and its arguments come before it. Nodes are hash-consed: the same operation on the
same nodes is the same node. Constants are folded and a few rules applied on the way
(``1 - sigmoid(x)`` is ``sigmoid(-x)``).

**A `Program`** is a finished graph: the nodes that something depends on, in an order in which they
can be computed, and what each run of it takes and gives. The leaves of a kind are counted from 0
and have names, used or not:

* ``state i``: carried from step to step, one row of numbers a sequence;
* ``input i``: given for every step;
* ``parameter i``: constant over steps and sequences, one number a channel;
* ``matrix i``: (M, N) for ``linear``, (heads, M, N) for ``block_linear``;
* ``constant``: its attribute, a number.

``outputs`` are the nodes given out at every step, ``next_states`` one node for each state: what it
is after the step. Derivatives (`linrnn.engine.derivatives`) have two more kinds of
results: ``sums``, pairs (parameter, node): the node summed over all steps and sequences is the
gradient of that parameter; ``products``, triples (matrix, left, right): the outer product of the
two nodes, summed over all steps and sequences, is a part of the gradient of that matrix (of each
head's block of it for three axes).

**Every value is real**; of complex numbers the tracer makes pairs. Every value is a vector over
channels, of which each class of `widths` has its own number: operands of elementwise operations
have equal widths, ``linear`` takes width N to M, ``spread`` N to n * N. Constants fit any. Leaves
of width 1 are expanded before a machine sees them.

**Operations**, with their meaning at the edges:

====================== ========================================================================
add sub mul div        ``add``, ``mul``, ``maximum``, ``minimum``, ``eq``, ``ne`` have their
                       arguments in rising order, a constant behind
neg abs reciprocal     ``reciprocal(x)`` is ``1 / x``; ``square(x)`` is ``x * x``
square sqrt
maximum minimum        NaN where either is NaN
lt le eq ne            1.0 or 0.0; what is written ``a > b`` is ``lt(b, a)``. False for NaN, ``ne``
                       true
where                  ``where(c, a, b)`` is a where c is not 0, else b; a choice, not a product
exp expm1 log log1p    as in PyTorch
sigmoid tanh sin cos   as in PyTorch, sigmoid and tanh without overflow
softplus               ``log1p(exp(x))``, and x itself above 20
logsigmoid             ``min(x, 0) - log1p(exp(-abs(x)))``
relu                   NaN stays NaN
erf gelu               gelu in its exact form, ``x * (1 + erf(x / sqrt(2))) / 2``
sinh cosh atan2 pow    as in C: ``pow(x, 0)`` and ``pow(1, x)`` are 1, of NaN too; ``atan2(0, 0)``
                       is 0
floor round            ``round`` goes to the nearest integer, of two to the even one
fmod                   the remainder of a division, with the sign of the first; of 0, NaN
linear                 ``args`` are (matrix, vector), ``attribute`` 0 or 1: ``W x``, or ``W^T x``
block_linear           the same for each head; heads lie one after the other in the vector
spread spread_each     ``attribute`` is n: the whole vector n times over, or each number of it n
                       times; n times as wide
fold fold_each         their transposes: the sum of n parts that lie one after the other, or of
                       every n numbers that do
roll                   ``attribute`` is n: each number n places further on, around the vector
====================== ========================================================================

**Levels** (`levels`) say when a node can be computed: 0, from parameters alone, once a call; 1,
from this step's inputs, for many steps at once; 2, on the way from state to state; 3, from states,
read by no later step, so for many steps at once, afterwards.

**The text** of a program, ``program.text()``, is the key of caches and the argument of operators;
`parse` reads it. `evaluate` computes a program with PyTorch: its definition.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

from torch import Tensor

from linrnn.engine.operations import CONTRACTIONS as CONTRACTIONS
from linrnn.engine.operations import ELEMENTWISE as ELEMENTWISE
from linrnn.engine.operations import MIXING as MIXING
from linrnn.engine.operations import SPREADS as SPREADS
from linrnn.engine.operations import TRANSPOSED as TRANSPOSED
from linrnn.engine.operations import TRUTHS

LEAVES = ("state", "input", "parameter", "matrix")
"""The kinds of leaves beside constants, in the order of a program's text."""


class Node(NamedTuple):
    """An operation on earlier nodes; see the table above."""

    op: str
    args: tuple[int, ...] = ()
    attribute: Any = None
    """The value of a constant, the number of a leaf, whether a matrix is transposed, n of a spread
    or a fold."""


#: A node of its three fields in one call of C: reading and deriving a step makes hundreds of them.
node_of: Callable[[tuple[str, tuple[int, ...], Any]], Node] = functools.partial(tuple.__new__, Node)


#: A node, or the operation and the arguments of one that is still to be written.
Simpler: TypeAlias = int | tuple[str, tuple[int, ...]]

#: Operations that others take up in themselves, see `Graph._SIMPLER`.
_SIGNED = frozenset(("neg", "sub"))


class Graph:
    """Nodes as they are written; ``graph(op, *nodes)`` is the node of an operation."""

    def __init__(self, nodes: Sequence[Node] = ()) -> None:
        """Begin with the nodes of a program, each in its place; some may be other leaves there."""
        self.nodes: list[Node] = list(nodes)
        # -0.0 is not 0.0, and NaN is NaN
        self._places = {(x.op, x.args, repr(x.attribute)): i for i, x in enumerate(nodes)}
        #: Of each node that is constant its value.
        self._numbers = [x.attribute if x.op == "constant" else None for x in nodes]
        self._signed = {i for i, x in enumerate(nodes) if x.op in _SIGNED}

    def leaf(self, kind: str, index: int) -> int:
        """A leaf of one of `LEAVES`."""
        return self._node(kind, (), index)

    def constant(self, value: float) -> int:
        """A number."""
        return self._node("constant", (), float(value))

    def contract(self, op: str, matrix: int, vector: int, transposed: bool = False) -> int:
        """``linear`` or ``block_linear`` of a matrix, or its transpose, and a vector."""
        return self._node(op, (matrix, vector), int(transposed))

    def spread(self, op: str, x: int, n: int) -> int:
        """One of `SPREADS`, of a node."""
        value = self.value(x)
        if value is not None:
            return self.constant(value * (n if op in ("fold", "fold_each") else 1))
        return x if n == (0 if op == "roll" else 1) else self._node(op, (x,), n)

    def __call__(self, op: str, *args: int | float) -> int:
        """An elementwise operation, or a simpler node that has its value.

        Args:
            op: its name.
            args: nodes, which are integers, and numbers, which are floats.
        """
        if float in map(type, args):
            for i, x in enumerate(args):
                if type(x) is float:
                    place = self._places.get(("constant", (), repr(x)))
                    place = self._node("constant", (), x) if place is None else place
                    args = (*args[:i], place, *args[i + 1 :])
        nodes: tuple[Any, ...] = args
        while True:
            constants: tuple[Any, ...] = tuple(map(self._numbers.__getitem__, nodes))
            if None not in constants:
                return self.constant(ELEMENTWISE[op].of_numbers(*constants))
            rule = self._SIMPLER.get(op)
            if rule is None:
                break
            # all that a rule looks at: numbers, equal arguments, and `_SIGNED`
            distinct = constants.count(None) == len({*nodes})
            if distinct and self._signed.isdisjoint(nodes):
                break
            simpler = rule(self, *nodes, *constants)
            if simpler is None:
                break
            if isinstance(simpler, int):
                return simpler
            op, nodes = simpler
        if ELEMENTWISE[op].symmetric:
            a, b = nodes
            if constants[0] is not None or (constants[1] is None and a > b):
                nodes = (b, a)
        place = self._places.setdefault((op, nodes, "None"), len(self.nodes))
        if place == len(self.nodes):
            self.nodes.append(node_of((op, nodes, None)))
            self._numbers.append(None)
            if op in _SIGNED:
                self._signed.add(place)
        return place

    def value(self, node: int) -> float | None:
        """The number a node is, None unless it is constant."""
        return self._numbers[node]

    def copy(self, program: "Program", replaced: Mapping[int, Node]) -> list[int]:
        """Write all nodes of a program, numbers in place of some, which may make others simpler.

        Returns:
            For each node of the program its node in this graph.
        """
        node_map: list[int] = []
        for i, node in enumerate(program.nodes):
            node = replaced.get(i, node)
            args = tuple([node_map[x] for x in node.args])
            if node.op in ELEMENTWISE:
                node_map.append(self(node.op, *args))
            elif node.op in SPREADS:
                node_map.append(self.spread(node.op, args[0], node.attribute))
            else:
                node_map.append(self._node(node.op, args, node.attribute))
        return node_map

    def _node(self, op: str, args: tuple[int, ...], attribute: Any = None) -> int:
        key = (op, args, repr(attribute))
        place = self._places.setdefault(key, len(self.nodes))
        if place == len(self.nodes):
            self.nodes.append(node_of((op, args, attribute)))
            self._numbers.append(attribute if op == "constant" else None)
        return place

    # Nodes, or operations, with the same value, exact but for the better of two roundings: of
    # arguments, then their values where these are constant.

    def _neg(self, x: int, value: None) -> Simpler | None:
        node = self.nodes[x]
        if node.op == "neg":
            return node.args[0]
        return ("sub", (node.args[1], node.args[0])) if node.op == "sub" else None

    def _ne(self, x: int, zero: int, left: float | None, right: float | None) -> Simpler | None:
        return x if right == 0 and self.nodes[x].op in TRUTHS else None

    def _where(self, c: int, a: int, b: int, *values: float | None) -> Simpler | None:
        if a == b:
            return a
        return None if values[0] is None else a if values[0] else b

    def _div(self, a: int, b: int, left: float | None, right: float | None) -> Simpler | None:
        if right == 1:
            return a
        return ("reciprocal", (b,)) if left == 1 else None

    def _extreme(self, a: int, b: int, left: float | None, right: float | None) -> Simpler | None:
        return a if a == b else None

    def _add(self, a: int, b: int, left: float | None, right: float | None) -> Simpler | None:
        if left is not None:
            return "add", (b, a)
        if right == 0:
            return a
        for x, y in ((a, b), (b, a)):
            if self.nodes[y].op == "neg":
                return "sub", (x, self.nodes[y].args[0])
        return None

    def _sub(self, a: int, b: int, left: float | None, right: float | None) -> Simpler | None:
        node = self.nodes[b]
        if right == 0:
            return a
        if left == 0:
            return "neg", (b,)
        if left == 1 and node.op == "sigmoid":
            return "sigmoid", (self("neg", node.args[0]),)
        return ("add", (a, node.args[0])) if node.op == "neg" else None

    def _mul(self, a: int, b: int, left: float | None, right: float | None) -> Simpler | None:
        if left is not None:
            return "mul", (b, a)
        if a == b:
            return "square", (a,)
        if right in (1, -1):
            return a if right == 1 else ("neg", (a,))
        for x, y in ((a, b), (b, a)):
            if self.nodes[x].op == "neg":
                return "neg", (self("mul", self.nodes[x].args[0], y),)
        return None

    _SIMPLER: ClassVar[dict[str, Callable[..., Simpler | None]]] = {
        "neg": _neg, "where": _where, "div": _div, "maximum": _extreme, "minimum": _extreme,
        "add": _add, "sub": _sub, "mul": _mul, "ne": _ne,
    }  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A finished graph: what a run of it takes and gives, see the top of this file."""

    nodes: tuple[Node, ...]
    states: tuple[str, ...]
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    matrices: tuple[str, ...]
    outputs: tuple[int, ...]
    next_states: tuple[int, ...]
    sums: tuple[tuple[int, int], ...] = ()
    products: tuple[tuple[int, int, int], ...] = ()
    mixed: bool = False
    """Whether values may differ in width though nothing here says so: of a derivative."""
    leaves: dict[str, dict[int, int]] = dataclasses.field(init=False, repr=False, compare=False)
    """The leaves of each kind that something depends on: from number to node."""
    mixes: bool = dataclasses.field(init=False, repr=False, compare=False)
    """Whether values may differ in width."""

    @property
    def names(self) -> tuple[tuple[str, ...], ...]:
        """The names of the leaves of each kind, in the order of `LEAVES`."""
        return self.states, self.inputs, self.parameters, self.matrices

    def __post_init__(self) -> None:
        # at once: a property that is computed later has a lock, which a compiler cannot read
        leaves: dict[str, dict[int, int]] = {kind: {} for kind in LEAVES}
        mixes = self.mixed or bool(self.matrices)
        for i, node in enumerate(self.nodes):
            if node.op in leaves:
                leaves[node.op][node.attribute] = i
            mixes |= node.op in SPREADS
        object.__setattr__(self, "leaves", leaves)
        object.__setattr__(self, "mixes", mixes)

    def text(self) -> str:
        """All of it in one line; the same for the same program in every process."""
        fields = [field for field in dataclasses.fields(self) if field.init]
        return json.dumps([getattr(self, field.name) for field in fields])


def finish(
    graph: Graph,
    names: Sequence[Sequence[str]],
    outputs: Sequence[int],
    next_states: Sequence[int],
    sums: Sequence[tuple[int, int]] = (),
    products: Sequence[tuple[int, int, int]] = (),
    mixed: bool = False,
) -> Program:
    """A program of the nodes that results depend on.

    Args:
        graph: what was written.
        names: of the leaves of each kind, in the order of `LEAVES`.
        outputs, next_states, sums, products, mixed: as of a `Program`, nodes of the graph.
    """
    results = [*outputs, *next_states]
    for _, *pair in (*sums, *products):
        results += pair
    needed = sorted(reach(graph.nodes, results))
    places = dict(zip(needed, range(len(needed)), strict=True))
    place = places.__getitem__
    nodes = [graph.nodes[old] for old in places]
    states, inputs, parameters, matrices = map(tuple, names)
    return Program(
        tuple([node_of((x.op, tuple(map(place, x.args)), x.attribute)) for x in nodes]),
        states,
        inputs,
        parameters,
        matrices,
        tuple(map(place, outputs)),
        tuple(map(place, next_states)),
        tuple([(i, places[x]) for i, x in sums]),
        tuple([(i, places[x], places[y]) for i, x, y in products]),
        mixed,
    )


@functools.lru_cache(maxsize=256)
def parse(text: str) -> Program:
    """The program that ``text`` writes."""
    nodes, *rows = json.loads(text)
    fields: list[Any] = [tuple([node_of((op, tuple(args), x)) for op, args, x in nodes])]
    for row in rows[:-1]:
        fields.append(tuple([tuple(x) if isinstance(x, list) else x for x in row]))
    return Program(*fields, *rows[-1:])


def reach(nodes: Sequence[Node], results: Sequence[int]) -> set[int]:
    """The results and all nodes they depend on."""
    reached, waiting = set(results), list(results)
    while waiting:
        new = set(nodes[waiting.pop()].args) - reached
        reached |= new
        waiting += new
    return reached


def depends(nodes: Sequence[Node], sources: set[int]) -> set[int]:
    """The sources and all nodes that depend on one."""
    dependent = set(sources)
    for i, node in enumerate(nodes):
        if not dependent.isdisjoint(node.args):
            dependent.add(i)
    return dependent


def levels(program: Program) -> list[int]:
    """When each node can be computed, 0 to 3; see the top of this file."""
    carried = reach(program.nodes, program.next_states)
    node_levels: list[int] = []
    for i, node in enumerate(program.nodes):
        level = {"state": 2, "input": 1}.get(node.op, 0)
        for x in node.args:
            level = max(level, node_levels[x])
        node_levels.append(level if level < 2 else 2 if i in carried else 3)
    return node_levels


class Values(NamedTuple):
    """The results of a program at one or more steps."""

    outputs: list[Tensor]
    next_states: list[Tensor]
    sums: list[tuple[int, Tensor]]
    """Not yet summed up."""
    products: list[tuple[int, Tensor, Tensor]]
    """Not yet multiplied."""


def evaluate(program: Program, *leaves: Sequence[Tensor]) -> Values:
    """Compute a program with PyTorch's operators.

    Args:
        program: what to compute.
        leaves: those of each kind, in the order of `LEAVES`, each (..., channels).
    """
    values = computed(program, *leaves)
    return Values(
        [values[x] for x in program.outputs],
        [values[x] for x in program.next_states],
        [(i, values[x]) for i, x in program.sums],
        [(i, values[x], values[y]) for i, x, y in program.products],
    )


def computed(program: Program, *leaves: Sequence[Tensor]) -> list[Tensor]:
    """The value of every node of a program; arguments as of `evaluate`."""
    by_kind = dict(zip(LEAVES, leaves, strict=True))
    like = next(x for tensors in leaves for x in tensors)
    values: list[Any] = []
    for node in program.nodes:
        args = [values[x] for x in node.args]
        if node.op == "constant":
            # made where it is used: `new_tensor` copies a number there, and a GPU waits for that
            values.append(like.new_full((), cast(float, node.attribute)))
        elif node.op in LEAVES:
            values.append(by_kind[node.op][node.attribute])
        elif node.op in CONTRACTIONS:
            matrix, vector = args
            values.append(CONTRACTIONS[node.op](matrix, vector, bool(node.attribute)))
        elif node.op in SPREADS:
            values.append(SPREADS[node.op](args[0], node.attribute))
        else:
            values.append(ELEMENTWISE[node.op](*args))
    return values
