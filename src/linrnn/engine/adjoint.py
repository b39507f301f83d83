"""The derivative of a program, as a program that is run from the last step to the first.

The adjoint of each operation is in `linrnn.engine.operations`.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace

from linrnn.engine.graph import (
    CONTRACTIONS,
    ELEMENTWISE,
    LEAVES,
    MIXING,
    SPREADS,
    Graph,
    Node,
    Program,
    depends,
    finish,
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
    graph = Graph()
    n_inputs, n_states = len(program.inputs), len(program.states)
    n_outputs = len(program.outputs)
    shift = n_inputs + n_states + n_outputs
    replaced = {
        **{x: Node("input", (), n_inputs + i) for i, x in program.leaves["state"].items()},
        **{x: Node("input", (), shift + i) for i, x in enumerate(saved)},
    }
    node_map = graph.copy(program, replaced)
    grads: dict[int, int] = {}
    for i, node in enumerate(program.next_states):
        _add(graph, grads, node, graph.leaf("state", i))
    for i, node in enumerate(program.outputs):
        _add(graph, grads, node, graph.leaf("input", n_inputs + n_states + i))
    products = backward(graph, program, node_map, grads)
    leaves = program.leaves
    zero = graph.constant(0.0)

    of_inputs, of_states = (
        [grads.get(leaves[kind].get(i, -1), zero) for i in range(n)]
        for kind, n in (("input", n_inputs), ("state", n_states))
    )
    sums = [(i, grads[x]) for i, x in leaves["parameter"].items() if x in grads]
    inputs = [
        *program.inputs,
        *program.states,
        *(f"grad_{i}" for i in range(n_outputs)),
        *(f"saved_{i}" for i in range(len(saved))),
    ]
    states = [f"grad_{name}" for name in program.states]
    names = (states, inputs, program.parameters, program.matrices)
    back = finish(graph, names, of_inputs, of_states, sums, products)
    return replace(back, mixed=program.mixes)


def backward(
    graph: Graph,
    program: Program,
    node_map: Sequence[int],
    grads: dict[int, int],
    through_matrices: bool = True,
) -> list[tuple[int, int, int]]:
    """Carry the cotangents in ``grads`` back to the leaves; returns those of matrices as products.

    Args:
        graph: to write into.
        program: what is differentiated.
        node_map: for each of its nodes the one in the graph.
        grads: nodes of the program and their cotangents, and more when this returns.
        through_matrices: False ends at products with matrices, and where channels are repeated or
            summed up.
    """
    differentiable = depends(
        program.nodes, {i for i, n in enumerate(program.nodes) if n.op in LEAVES}
    )
    products = []
    for i in reversed(range(len(program.nodes))):
        node = program.nodes[i]
        if i not in grads or not node.args:
            continue
        if node.op in MIXING and not through_matrices:
            continue
        args, grad = [node_map[x] for x in node.args], grads[i]
        if node.op in CONTRACTIONS:
            matrix, vector = node.args
            index, transposed = program.nodes[matrix].attribute, bool(node.attribute)
            sides = (args[1], grad) if transposed else (grad, args[1])
            products.append((index, *sides))
            if vector in differentiable:
                _add(graph, grads, vector, graph.contract(node.op, args[0], grad, not transposed))
            continue
        if node.op in SPREADS:
            _add(graph, grads, node.args[0], graph.spread_back(node, grad))
            continue
        cotangents = ELEMENTWISE[node.op].cotangents(graph, args, node_map[i], grad)
        for x, cotangent in zip(node.args, cotangents, strict=True):
            if cotangent is not None and x in differentiable:
                _add(graph, grads, x, cotangent)
    return products


def _add(graph: Graph, grads: dict[int, int], node: int, cotangent: int) -> None:
    grads[node] = graph("add", grads[node], cotangent) if node in grads else cotangent
