"""The derivative of a program, as a program that is run from the last step to the first.

Conventions at ties, kinks and NaN are PyTorch's.
"""

import functools
import math
from collections.abc import Callable, Sequence

from linrnn.cells._graph import (
    CONTRACTIONS,
    LEAVES,
    MIXING,
    SPREADS,
    Graph,
    Node,
    Program,
    depends,
    finish,
)

#: From ``(graph, arguments, result, cotangent)`` of an operation to the cotangents of arguments.
Rule = Callable[[Graph, Sequence[int], int, int], Sequence[int | None]]

_ZERO, _ONE = 0.0, 1.0


@functools.lru_cache(maxsize=256)
def adjoint(program: Program, saved: tuple[int, ...] = ()) -> Program:
    """The adjoint of a step.

    Its leaves and results, for a program of n outputs and m states, in order:

    * states: the cotangents of the m next states, which come from the step that follows in time;
      at the last step those of the final states.
    * inputs: the inputs of the program; the m states before the step (after a reset the states a
      sequence starts from); the n cotangents of the outputs; the ``saved`` nodes' values.
    * parameters, matrices: those of the program.
    * outputs: the gradients of the inputs, one for each, whether the step reads it or not.
    * next_states: the cotangents of the states before the step; where a step begins a sequence
      they belong to the initial state, or after a reset to nothing.
    * sums, products: the gradients of parameters and matrices. A parameter that is not there has
      a gradient of 0.

    Args:
        program: of the step.
        saved: nodes of it whose values are given and need not be computed again: products with
            matrices, say.
    """
    graph = Graph()
    n_inputs, n_states = len(program.inputs), len(program.states)
    n_outputs = len(program.outputs)
    shift = n_inputs + n_states + n_outputs

    def given(node: Node) -> int | None:
        if node.op != "state":
            return None
        return graph.leaf("input", n_inputs + int(node.attribute or 0))

    here = _copy(graph, program, given, {x: shift + i for i, x in enumerate(saved)})
    grads: dict[int, int] = {}
    for i, node in enumerate(program.next_states):
        _add(graph, grads, node, graph.leaf("state", i))
    for i, node in enumerate(program.outputs):
        _add(graph, grads, node, graph.leaf("input", n_inputs + n_states + i))
    products = backward(graph, program, here, grads)
    leaves = {kind: program.leaves(kind) for kind in LEAVES}
    zero = graph.constant(_ZERO)

    def gradients(kind: str) -> list[int]:
        places = leaves[kind]
        count = range(len(program.names(kind)))
        return [grads.get(places[i], zero) if i in places else zero for i in count]

    sums = [(i, grads[x]) for i, x in leaves["parameter"].items() if x in grads]
    inputs = [
        *program.inputs,
        *program.states,
        *(f"grad_{i}" for i in range(n_outputs)),
        *(f"saved_{i}" for i in range(len(saved))),
    ]
    states = [f"grad_{name}" for name in program.states]
    names = (states, inputs, program.parameters, program.matrices)
    back = finish(graph, names, gradients("input"), gradients("state"), sums, products)
    return back._replace(mixed=program.mixes())


def _copy(
    graph: Graph,
    program: Program,
    given: Callable[[Node], int | None],
    saved: dict[int, int],
) -> list[int]:
    places = iter(range(len(program.nodes)))

    def known(node: Node) -> int | None:
        i = next(places)
        return graph.leaf("input", saved[i]) if i in saved else given(node)

    return graph.copy(program, known)


def backward(
    graph: Graph,
    program: Program,
    here: Sequence[int],
    found: dict[int, int],
    through_matrices: bool = True,
) -> list[tuple[int, int, int]]:
    """Carry the cotangents in ``found`` back to the leaves; returns what matrices get.

    Args:
        graph: to write into.
        program: what is differentiated.
        here: for each of its nodes the one in the graph.
        found: nodes of the program and their cotangents, and more when this returns.
        through_matrices: False ends at products with matrices, and where channels are repeated or
            summed up.
    """
    wanted = depends(program.nodes, {i for i, n in enumerate(program.nodes) if n.op in LEAVES})
    products = []
    for i in reversed(range(len(program.nodes))):
        node = program.nodes[i]
        if i not in found or not node.args:
            continue
        if node.op in MIXING and not through_matrices:
            continue
        args, grad = [here[x] for x in node.args], found[i]
        if node.op in CONTRACTIONS:
            matrix, vector = node.args
            index, turned = int(program.nodes[matrix].attribute or 0), bool(node.attribute)
            sides = (args[1], grad) if turned else (grad, args[1])
            products.append((index, *sides))
            if vector in wanted:
                _add(graph, found, vector, graph.contract(node.op, args[0], grad, not turned))
            continue
        if node.op in SPREADS:
            _add(graph, found, node.args[0], graph.spread_back(node, grad))
            continue
        for x, cotangent in zip(node.args, RULES[node.op](graph, args, here[i], grad), strict=True):
            if cotangent is not None and x in wanted:
                _add(graph, found, x, cotangent)
    return products


def _add(graph: Graph, found: dict[int, int], node: int, cotangent: int) -> None:
    found[node] = graph("add", found[node], cotangent) if node in found else cotangent


def _nothing(g: Graph, args: Sequence[int], y: int, dy: int) -> list[int | None]:
    return [None] * len(args)


def _add_rule(g: Graph, args: Sequence[int], y: int, dy: int) -> list[int | None]:
    return [dy, dy]


def _sub_rule(g: Graph, args: Sequence[int], y: int, dy: int) -> list[int | None]:
    return [dy, g("neg", dy)]


def _mul_rule(g: Graph, args: Sequence[int], y: int, dy: int) -> list[int | None]:
    return [g("mul", dy, args[1]), g("mul", dy, args[0])]


def _div_rule(g: Graph, args: Sequence[int], y: int, dy: int) -> list[int | None]:
    part = g("div", dy, args[1])
    return [part, g("neg", g("mul", part, y))]


def _extreme_rule(lower: bool) -> Rule:
    def rule(g: Graph, args: Sequence[int], y: int, dy: int) -> list[int | None]:
        """A tie is split evenly; NaN passes to both."""
        a, b = args
        shared = g("where", g("eq", a, b), g("mul", dy, g.constant(0.5)), dy)
        loses = (g("lt", b, a), g("lt", a, b)) if lower else (g("lt", a, b), g("lt", b, a))
        return [g("where", lost, g.constant(_ZERO), shared) for lost in loses]

    return rule


def _where_rule(g: Graph, args: Sequence[int], y: int, dy: int) -> list[int | None]:
    zero = g.constant(_ZERO)
    return [None, g("where", args[0], dy, zero), g("where", args[0], zero, dy)]


def _unary(slope: Callable[[Graph, int, int], int]) -> Rule:
    """Of ``slope(graph, argument, result)``."""
    return lambda g, args, y, dy: [g("mul", dy, slope(g, args[0], y))]


def _one_less(g: Graph, x: int) -> int:
    return g("sub", g.constant(_ONE), x)


def _sign(g: Graph, x: int, y: int) -> int:
    zero = g.constant(_ZERO)
    return g("sub", g("lt", zero, x), g("lt", x, zero))


def _relu_rule(g: Graph, args: Sequence[int], y: int, dy: int) -> list[int | None]:
    zero = g.constant(_ZERO)
    return [g("where", g("le", args[0], zero), zero, dy)]


def _softplus(g: Graph, x: int, y: int) -> int:
    return g("where", g("lt", g.constant(20.0), x), g.constant(_ONE), g("sigmoid", x))


def _bell(g: Graph, x: int, factor: float, width: float) -> int:
    """``factor * exp(-width * x * x)``."""
    inner = g("mul", g("square", x), g.constant(-width))
    return g("mul", g("exp", inner), g.constant(factor))


def _gelu(g: Graph, x: int, y: int) -> int:
    scaled = g("mul", x, g.constant(math.sqrt(0.5)))
    half = g.constant(0.5)
    share = g("mul", g("add", g("erf", scaled), g.constant(_ONE)), half)
    return g("add", share, g("mul", x, _bell(g, x, 1 / math.sqrt(2 * math.pi), 0.5)))


def _whole_part(g: Graph, x: int) -> int:
    """A number without what is behind its point."""
    zero = g.constant(_ZERO)
    return g("where", g("lt", x, zero), g("neg", g("floor", g("neg", x))), g("floor", x))


def _fmod_rule(g: Graph, args: Sequence[int], y: int, dy: int) -> list[int | None]:
    a, b = args
    return [dy, g("neg", g("mul", dy, _whole_part(g, g("div", a, b))))]


def _atan2_rule(g: Graph, args: Sequence[int], y: int, dy: int) -> list[int | None]:
    """At the origin there is none: 0."""
    a, b = args
    size = g("add", g("square", a), g("square", b))
    none = g("eq", size, g.constant(_ZERO))
    share = g("where", none, g.constant(_ZERO), g("mul", dy, g("reciprocal", size)))
    return [g("mul", share, b), g("neg", g("mul", share, a))]


def _pow_rule(g: Graph, args: Sequence[int], y: int, dy: int) -> list[int | None]:
    """Of 0 to a power of at least 0 there is no derivative by the exponent: 0."""
    a, b = args
    zero, less = g.constant(_ZERO), g("sub", b, g.constant(_ONE))
    root = g.value(less) == 0.5  # of -inf there is none, unlike a power
    slope = g("mul", b, g("sqrt", a) if root else g("pow", a, less))
    still = g("mul", g("eq", a, zero), g("le", zero, b))
    return [
        g("where", g("eq", b, zero), zero, g("mul", dy, slope)),
        g("mul", dy, g("where", still, zero, g("mul", y, g("log", a)))),
    ]


#: The derivative of every elementwise operation.
RULES: dict[str, Rule] = {
    "add": _add_rule,
    "sub": _sub_rule,
    "mul": _mul_rule,
    "div": _div_rule,
    "neg": lambda g, args, y, dy: [g("neg", dy)],
    "abs": _unary(_sign),
    "reciprocal": lambda g, args, y, dy: [g("neg", g("mul", dy, g("square", y)))],
    "square": _unary(lambda g, x, y: g("mul", x, g.constant(2.0))),
    "sqrt": lambda g, args, y, dy: [g("div", dy, g("mul", y, g.constant(2.0)))],
    "maximum": _extreme_rule(lower=False),
    "minimum": _extreme_rule(lower=True),
    **dict.fromkeys(("lt", "le", "eq", "ne", "floor", "round"), _nothing),
    "fmod": _fmod_rule,
    "atan2": _atan2_rule,
    "pow": _pow_rule,
    "sinh": _unary(lambda g, x, y: g("cosh", x)),
    "cosh": _unary(lambda g, x, y: g("sinh", x)),
    "where": _where_rule,
    "exp": _unary(lambda g, x, y: y),
    "expm1": _unary(lambda g, x, y: g("add", y, g.constant(_ONE))),
    "log": lambda g, args, y, dy: [g("div", dy, args[0])],
    "log1p": lambda g, args, y, dy: [g("div", dy, g("add", args[0], g.constant(_ONE)))],
    "sigmoid": _unary(lambda g, x, y: g("mul", y, _one_less(g, y))),
    "tanh": _unary(lambda g, x, y: _one_less(g, g("square", y))),
    "softplus": _unary(_softplus),
    "logsigmoid": _unary(lambda g, x, y: g("sigmoid", g("neg", x))),
    "relu": _relu_rule,
    "sin": _unary(lambda g, x, y: g("cos", x)),
    "cos": _unary(lambda g, x, y: g("neg", g("sin", x))),
    "erf": _unary(lambda g, x, y: _bell(g, x, 2 / math.sqrt(math.pi), 1.0)),
    "gelu": _unary(_gelu),
}
