"""What the derivative of a step with respect to its state looks like, decided on the graph."""

import functools
from typing import NamedTuple

from linrnn.cells._adjoint import backward
from linrnn.cells._graph import CONTRACTIONS, Graph, Program, depends, finish, reach

_CHOICES = ("lt", "le", "eq", "ne")


class Group(NamedTuple):
    """States that are solved together: one, or the two parts of a complex one."""

    states: tuple[int, ...]
    coefficients: Program
    """Its outputs are the decay and what is added, each in as many parts as there are states."""


class Affine(NamedTuple):
    """Whether linear scans compute a cell, one group of states after the other."""

    groups: tuple[Group, ...]
    reason: str | None
    """What in the cell keeps it from that, None if nothing does."""


def state_groups(program: Program) -> list[tuple[int, ...]]:
    """The states of a program, the two parts of complex ones together."""
    names, i = program.states, 0
    found: list[tuple[int, ...]] = []
    while i < len(names):
        pair = names[i].endswith(".real") and names[i + 1 : i + 2] == (names[i][:-5] + ".imag",)
        found.append((i, i + 1) if pair else (i,))
        i += len(found[-1])
    return found


def slopes(graph: Graph, program: Program, here: list[int]) -> list[dict[int, int]]:
    """For each next state its derivative with respect to each state it depends on.

    Channel by channel: what comes through a product with a matrix is left out.

    Args:
        graph: into which the program was copied.
        program: the step.
        here: for each of its nodes the one in the graph.
    """
    places = program.leaves("state")
    found = []
    for node in program.next_states:
        grads = {node: graph.constant(1.0)}
        backward(graph, program, here, grads, through_matrices=False)
        found.append({i: grads[x] for i, x in places.items() if x in grads})
    return found


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
    nodes, places, name = program.nodes, program.leaves("state"), _name(program, group)
    needed = reach(nodes, [program.next_states[i] for i in group])
    others = [i for i, x in places.items() if x in needed and i not in (*group, *solved)]
    if others:
        return f"{name} depends on {program.states[others[0]]}, which depends on {name} or more"
    moving = depends(nodes, {places[i] for i in group if i in places})
    for i in sorted(needed & moving):
        node = nodes[i]
        if node.op in CONTRACTIONS:
            matrix = program.matrices[int(nodes[node.args[0]].attribute or 0)]
            return f"the matrix {matrix} mixes the channels of {name}"
        if node.op in _CHOICES or (node.op == "where" and node.args[0] in moving):
            return f"{node.op} decides by {name}"
    return _curved(program, group, needed & moving)


def _curved(program: Program, group: tuple[int, ...], between: set[int]) -> str | None:
    graph = Graph()
    here = graph.copy(program, lambda node: None)
    leaves = {i: graph.leaf("state", i) for i in group}
    found = [slopes(graph, program, here)[i] for i in group]
    moving = depends(graph.nodes, set(leaves.values()))
    name = _name(program, group)
    if any(slope in moving for row in found for i, slope in row.items() if i in group):
        ops = [program.nodes[i].op for i in sorted(between)]
        bent = [op for op in ops if op not in ("add", "sub", "neg", "where", "state")]
        return f"{bent[0] if bent else 'a product'} of {name} makes its step no affine function"
    if len(group) == 2:
        zero = graph.constant(0.0)
        (a, b), (c, d) = ([row.get(i, zero) for i in group] for row in found)
        if a != d or graph("neg", b) != c:
            return f"the step of {name} is no complex multiplication"
    return None


def _coefficients(program: Program, group: tuple[int, ...]) -> Program:
    graph = Graph()
    here = graph.copy(program, lambda node: None)
    rows = slopes(graph, program, here)
    zero = graph.constant(0.0)
    decay = [rows[i].get(group[0], zero) for i in group]
    still = graph.copy(
        program, lambda node: zero if node.op == "state" and node.attribute in group else None
    )
    added = [still[program.next_states[i]] for i in group]
    names = (program.states, program.inputs, program.parameters, program.matrices)
    return finish(graph, names, [*decay, *added], ())


@functools.lru_cache(maxsize=256)
def jacobian(program: Program) -> Program:
    """A program whose outputs are the derivatives of the next states, row after row.

    The m * m outputs of m states are ``d next_i / d state_j``, channel by channel; what comes
    through products with matrices is left out (`mixing` says whether there is any).
    """
    graph = Graph()
    here = graph.copy(program, lambda node: None)
    zero, states = graph.constant(0.0), range(len(program.states))
    rows = slopes(graph, program, here)
    names = (program.states, program.inputs, program.parameters, program.matrices)
    outputs = [rows[i].get(j, zero) for i in states for j in states]
    return finish(graph, names, outputs, [here[x] for x in program.next_states])


def mixing(program: Program) -> str | None:
    """A matrix that mixes the channels of a state on the way to the next, None without one."""
    moving = depends(program.nodes, set(program.leaves("state").values()))
    for i in sorted(reach(program.nodes, program.next_states) & moving):
        node = program.nodes[i]
        if node.op in CONTRACTIONS:
            return program.matrices[int(program.nodes[node.args[0]].attribute or 0)]
    return None
