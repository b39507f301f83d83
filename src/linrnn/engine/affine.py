"""Whether linear scans compute a step, decided on the graph."""

import functools
from typing import NamedTuple

from linrnn.engine.graph import (
    CONTRACTIONS,
    ELEMENTWISE,
    MIXING,
    SPREADS,
    Node,
    Program,
    depends,
    finish,
    reach,
)
from linrnn.engine.jacobian import slopes


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
    graph, _, rows = slopes(program)
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
    graph, _, rows = slopes(program)
    zero = graph.constant(0.0)
    (a, b), (c, d) = ([rows[i].get(j, zero) for j in pair] for i in pair)
    return a == d and graph("neg", b) == c


def _coefficients(program: Program, group: tuple[int, ...]) -> Program:
    graph, _, rows = slopes(program)
    zero, places = Node("constant", (), 0.0), program.leaves["state"]
    decay = [rows[i].get(group[0], graph.constant(0.0)) for i in group]
    still = graph.copy(program, {places[i]: zero for i in group if i in places})
    return finish(
        graph, program.names, [*decay, *[still[program.next_states[i]] for i in group]], ()
    )
