"""Derivatives of a step forward: of states by states, and by constants through the whole past."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

from linrnn.engine.adjoint import backward
from linrnn.engine.graph import CONTRACTIONS, SPREADS, Graph, Program, depends, finish, reach


class Slopes(NamedTuple):
    """A step, and the derivatives of its next states, as one graph."""

    graph: Graph
    node_map: list[int]
    """For each node of the step the one in the graph."""
    rows: list[dict[int, int]]
    """For each next state its derivative with respect to each state that it depends on."""


def slopes(program: Program) -> Slopes:
    """The derivatives of next states, channel by channel.

    What comes through a product with a matrix, a spread or a fold is left out.
    """
    graph = Graph()
    node_map = graph.copy(program)
    rows = []
    for node in program.next_states:
        grads = {node: graph.constant(1.0)}
        backward(graph, program, node_map, grads, through_matrices=False)
        rows.append({i: grads[x] for i, x in program.leaves["state"].items() if x in grads})
    return Slopes(graph, node_map, rows)


@functools.lru_cache(maxsize=256)
def jacobian(program: Program) -> Program:
    """A program whose outputs are the derivatives of the next states, row after row.

    The m * m outputs of m states are ``d next_i / d state_j``, channel by channel; what comes
    from other channels is left out (`mixing` says whether there is any).
    """
    graph, node_map, rows = slopes(program)
    zero = graph.constant(0.0)
    outputs = [row.get(j, zero) for row in rows for j in range(len(rows))]
    return finish(graph, program.names, outputs, [node_map[x] for x in program.next_states])


@functools.lru_cache(maxsize=256)
def coupled(program: Program, together: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """The states that depend on one another, channel by channel; those that others need first.

    Args:
        program: the step.
        together: states that belong together whatever they depend on.
    """
    graph, _, rows = slopes(program)
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
    graph = Graph()
    node_map = graph.copy(program)
    m, p = len(program.states), len(program.parameters)
    previous_traces = [[graph.leaf("state", m + i * p + j) for j in range(p)] for i in range(m)]
    places, direct = program.leaves["state"], program.leaves["parameter"]

    def total(node: int, parameter: int) -> int:
        """The derivative of a node through the step and through all steps before."""
        grads = {node: graph.constant(1.0)}
        backward(graph, program, node_map, grads, through_matrices=False)
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
    outputs = [*[node_map[x] for x in program.outputs], *output_traces]
    next_states = [*[node_map[x] for x in program.next_states], *state_traces]
    return finish(graph, names, outputs, next_states)


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
