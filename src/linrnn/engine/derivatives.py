"""Derivatives of a step, as programs and on its graph; and whether linear scans compute it.

`adjoint` runs from the last step to the first; `jacobian` and `traces` run forward. The derivative
of each operation is in `linrnn.engine.operations`.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

from linrnn.engine.graph import (
    CONTRACTIONS,
    ELEMENTWISE,
    LEAVES,
    MIXING,
    SPREADS,
    TRANSPOSED,
    Graph,
    Node,
    Program,
    depends,
    finish,
    node_of,
    reach,
)


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
    n_inputs, n_states = len(program.inputs), len(program.states)
    n_outputs, leaves = len(program.outputs), program.leaves
    nodes = list(program.nodes)
    for i, x in leaves["state"].items():
        nodes[x] = node_of(("input", (), n_inputs + i))
    for i, x in enumerate(saved):
        nodes[x] = node_of(("input", (), n_inputs + n_states + n_outputs + i))
    results = (*program.next_states, *program.outputs)
    for i in range(len(results)):
        nodes.append(node_of(("state", (), i) if i < n_states else ("input", (), n_inputs + i)))
    graph, grads = Graph(nodes), dict[int, int]()
    for cotangent, node in enumerate(results, len(program.nodes)):
        grads[node] = graph("add", grads[node], cotangent) if node in grads else cotangent
    products = backward(graph, program, grads)
    zero = graph.constant(0.0)
    of_inputs = [grads.get(leaves["input"].get(i, -1), zero) for i in range(n_inputs)]
    of_states = [grads.get(leaves["state"].get(i, -1), zero) for i in range(n_states)]
    sums = [(i, grads[x]) for i, x in leaves["parameter"].items() if x in grads]
    inputs = [
        *program.inputs,
        *program.states,
        *[f"grad_{i}" for i in range(n_outputs)],
        *[f"saved_{i}" for i in range(len(saved))],
    ]
    states = [f"grad_{name}" for name in program.states]
    names = (states, inputs, program.parameters, program.matrices)
    return finish(graph, names, of_inputs, of_states, sums, products, program.mixes)


def backward(
    graph: Graph, program: Program, grads: dict[int, int], through_matrices: bool = True
) -> list[tuple[int, int, int]]:
    """Carry the cotangents in ``grads`` back to the leaves; returns those of matrices as products.

    Args:
        graph: to write into; it begins with the nodes of the program.
        program: what is differentiated.
        grads: nodes of the program and their cotangents, and more when this returns.
        through_matrices: False ends at products with matrices, and where channels are repeated or
            summed up.
    """
    differentiable = depends(
        program.nodes, {i for i, n in enumerate(program.nodes) if n.op in LEAVES}
    )
    products = []
    for i in reversed(range(len(program.nodes))):
        op, args, attribute = program.nodes[i]
        if i not in grads or not args or (op in MIXING and not through_matrices):
            continue
        grad, cotangents = grads[i], list[int | None]()
        if op in CONTRACTIONS:
            matrix, vector = args
            sides = (vector, grad) if attribute else (grad, vector)
            products.append((program.nodes[matrix].attribute, *sides))
            cotangents += (None, graph.contract(op, matrix, grad, not attribute))
        elif op in SPREADS:
            n = -attribute if op == "roll" else attribute
            cotangents.append(graph.spread(TRANSPOSED[op], grad, n))
        else:
            cotangents += ELEMENTWISE[op].cotangents(graph, grad, i, *args)
        for x, cotangent in zip(args, cotangents, strict=True):
            if cotangent is not None and x in differentiable:
                grads[x] = graph("add", grads[x], cotangent) if x in grads else cotangent
    return products


def slopes(program: Program) -> tuple[Graph, list[dict[int, int]]]:
    """The derivatives of next states, channel by channel.

    What comes through a product with a matrix, a spread or a fold is left out.

    Returns:
        A graph that begins with the step, and for each next state its derivative with respect to
        each state that it depends on.
    """
    graph, rows = Graph(program.nodes), []
    for node in program.next_states:
        grads = {node: graph.constant(1.0)}
        backward(graph, program, grads, through_matrices=False)
        rows.append({i: grads[x] for i, x in program.leaves["state"].items() if x in grads})
    return graph, rows


@functools.lru_cache(maxsize=256)
def jacobian(program: Program) -> Program:
    """A program whose outputs are the derivatives of the next states, row after row.

    The m * m outputs of m states are ``d next_i / d state_j``, channel by channel; what comes
    from other channels is left out (`mixing` says whether there is any).
    """
    graph, rows = slopes(program)
    zero = graph.constant(0.0)
    outputs = [row.get(j, zero) for row in rows for j in range(len(rows))]
    return finish(graph, program.names, outputs, program.next_states)


@functools.lru_cache(maxsize=256)
def coupled(program: Program, together: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """The states that depend on one another, channel by channel; those that others need first.

    Args:
        program: the step.
        together: states that belong together whatever they depend on.
    """
    graph, rows = slopes(program)
    zero = graph.constant(0.0)
    needs = [{i} | {j for j, x in row.items() if x != zero} for i, row in enumerate(rows)]
    for group in together:
        for i in group:
            needs[i].update(group)
    for k in range(len(needs)):
        for needed in needs:
            needed |= needs[k] if k in needed else set()
    groups = {tuple(j for j in sorted(needed) if i in needs[j]) for i, needed in enumerate(needs)}
    return tuple(sorted(groups, key=lambda group: (len(needs[group[0]]), group)))


@functools.lru_cache(maxsize=256)
def traces(program: Program) -> Program:
    """A program that carries the derivatives of its states with respect to its parameters.

    Behind the m states of a program with p parameters stand m * p more, behind its outputs the
    derivatives of each with respect to each parameter. Exact where no matrix mixes channels.
    """
    graph = Graph(program.nodes)
    m, p = len(program.states), len(program.parameters)
    previous_traces = [[graph.leaf("state", m + i * p + j) for j in range(p)] for i in range(m)]
    places, direct = program.leaves["state"], program.leaves["parameter"]

    def total(node: int, parameter: int) -> int:
        """The derivative of a node through the step and through all steps before."""
        grads = {node: graph.constant(1.0)}
        backward(graph, program, grads, through_matrices=False)
        derivative = grads.get(direct.get(parameter, -1), graph.constant(0.0))
        for i, x in places.items():
            if x in grads:
                derivative = graph(
                    "add", derivative, graph("mul", grads[x], previous_traces[i][parameter])
                )
        return derivative

    state_traces = [total(x, j) for x in program.next_states for j in range(p)]
    output_traces = [total(x, j) for x in program.outputs for j in range(p)]
    states = [f"d_{h}_d_{w}" for h in program.states for w in program.parameters]
    names = ([*program.states, *states], program.inputs, program.parameters, program.matrices)
    outputs, next_states = program.outputs, program.next_states
    return finish(graph, names, [*outputs, *output_traces], [*next_states, *state_traces])


def mixing(program: Program, kinds: Sequence[str], results: Sequence[int]) -> str | None:
    """Name what mixes channels between leaves of some kinds and the results; None without it."""
    moving = depends(program.nodes, {x for kind in kinds for x in program.leaves[kind].values()})
    for i in sorted(moving & reach(program.nodes, results)):
        node = program.nodes[i]
        if node.op in CONTRACTIONS:
            return f"the matrix {program.matrices[program.nodes[node.args[0]].attribute]}"
        if node.op in SPREADS:
            return node.op
    return None


class Group(NamedTuple):
    """States that are solved together: one, or the two parts of a complex one."""

    states: tuple[int, ...]
    coefficients: Program
    """Its outputs are the decay and what is added, each in as many parts as there are states."""


class Affine(NamedTuple):
    """Whether linear scans compute a cell, one group of states after the other."""

    groups: tuple[Group, ...]
    reason: str | None
    """Why linear scans cannot compute it, None where they can."""


def state_groups(program: Program) -> list[tuple[int, ...]]:
    """The states of a program, the two parts of complex ones together."""
    names, i = program.states, 0
    groups: list[tuple[int, ...]] = []
    while i < len(names):
        pair = names[i].endswith(".real") and names[i + 1 : i + 2] == (names[i][:-5] + ".imag",)
        groups.append((i, i + 1) if pair else (i,))
        i += len(groups[-1])
    return groups


@functools.lru_cache(maxsize=256)
def affine(program: Program) -> Affine:
    """Find the order in which linear scans solve a step, or what forbids it.

    A group of states is solved once its next value is affine in itself, channel by channel, with
    coefficients that depend on inputs and on states solved before.
    """
    waiting, solved, groups = state_groups(program), set[int](), []
    while waiting:
        reasons = [(group, _obstacle(program, group, solved)) for group in waiting]
        ready = [group for group, reason in reasons if reason is None]
        if not ready:
            return Affine((), reasons[0][1])
        for group in ready:
            groups.append(Group(group, _coefficients(program, group)))
            solved.update(group)
            waiting.remove(group)
    return Affine(tuple(groups), None)


def _name(program: Program, group: tuple[int, ...]) -> str:
    name = program.states[group[0]]
    return name[:-5] if len(group) == 2 else name


def _obstacle(program: Program, group: tuple[int, ...], solved: set[int]) -> str | None:
    """Why a group cannot be solved now."""
    nodes, places, name = program.nodes, program.leaves["state"], _name(program, group)
    needed = reach(nodes, [program.next_states[i] for i in group])
    unsolved = [i for i, x in places.items() if x in needed and i not in (*group, *solved)]
    if unsolved:
        return f"{name} depends on {program.states[unsolved[0]]}, which depends on {name} or more"
    moving = depends(nodes, {places[i] for i in group if i in places})
    between = [nodes[i] for i in sorted(needed & moving) if nodes[i].args]
    reasons = [text for text in (_bend(program, n, name, moving) for n in between) if text]
    hard = any(_decides(node, moving) or node.op in MIXING for node in between)
    curvature = _curved(program, group)
    if not (hard or curvature):
        return None
    return reasons[0] if reasons else curvature


def _decides(node: Node, moving: set[int]) -> bool:
    """Whether a node has no slope by what it still depends on."""
    jumps = node.op in ELEMENTWISE and ELEMENTWISE[node.op].jumps
    return jumps or (node.op == "where" and node.args[0] in moving)


def _bend(program: Program, node: Node, name: str, moving: set[int]) -> str | None:
    """Why a node that depends on the state ``name`` is not affine in it."""
    if node.op in CONTRACTIONS:
        matrix = program.matrices[program.nodes[node.args[0]].attribute]
        return f"the matrix {matrix} mixes the channels of {name}"
    if node.op in SPREADS:
        return f"{node.op} mixes the channels of {name}"
    if _decides(node, moving):
        return f"{node.op} decides by {name}"
    straight = node.op in ("add", "sub", "neg", "where")
    straight |= node.op == "mul" and not moving.issuperset(node.args)
    straight |= node.op == "div" and node.args[1] not in moving
    return None if straight else f"{node.op} of {name} makes its step no affine function"


def _curved(program: Program, group: tuple[int, ...]) -> str | None:
    """Whether the slope of a group depends on itself, or is none of a complex number."""
    graph, rows = slopes(program)
    moving = depends(graph.nodes, {graph.leaf("state", i) for i in group})
    name = _name(program, group)
    if any(rows[i][j] in moving for i in group for j in group if j in rows[i]):
        return f"a product of {name} makes its step no affine function"
    if len(group) == 2 and not multiplies(program, (group[0], group[1])):
        return f"the step of {name} is no complex multiplication"
    return None


@functools.lru_cache(maxsize=256)
def multiplies(program: Program, pair: tuple[int, int]) -> bool:
    """Whether the slope of a complex state, given by its two parts, is a complex number."""
    graph, rows = slopes(program)
    zero = graph.constant(0.0)
    (a, b), (c, d) = ([rows[i].get(j, zero) for j in pair] for i in pair)
    return a == d and graph("neg", b) == c


def _coefficients(program: Program, group: tuple[int, ...]) -> Program:
    graph, rows = slopes(program)
    zero, places = Node("constant", (), 0.0), program.leaves["state"]
    decay = [rows[i].get(group[0], graph.constant(0.0)) for i in group]
    still = graph.copy(program, {places[i]: zero for i in group if i in places})
    return finish(
        graph, program.names, [*decay, *[still[program.next_states[i]] for i in group]], ()
    )
