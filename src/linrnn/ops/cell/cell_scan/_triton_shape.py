"""The widths of a cell's values in a call on a GPU, and how its channels are divided into heads."""

from collections.abc import Sequence
from typing import NamedTuple

from linrnn.compute import gpu
from linrnn.engine.graph import CONTRACTIONS, SPREADS, Program
from linrnn.engine.widths import widths
from linrnn.ops.cell.cell_scan._arguments import Layout, Leaves
from linrnn.ops.cell.cell_scan._triton_source import Sizes


class Shape(NamedTuple):
    """The widths of a program's leaves and outputs, and the shapes of its matrices."""

    states: tuple[int, ...]
    inputs: tuple[int, ...]
    parameters: tuple[int, ...]
    matrices: tuple[tuple[int, ...], ...]
    outputs: tuple[int, ...]
    words: int
    """The number of 32-bit words of a number that is computed with."""

    def sides(self, matrix: int) -> tuple[int, int]:
        """Return the widths of the two vectors that a matrix multiplies."""
        *heads, m, n = self.matrices[matrix]
        return (m * heads[0], n * heads[0]) if heads else (m, n)

    def parts(self, program: Program) -> set[int]:
        """Into how many parts each matrix divides the channels; 0 stands for any number."""
        nodes = program.nodes
        used = {nodes[x.args[0]].attribute for x in nodes if x.op in CONTRACTIONS}
        counts = {x[0] if len(x) == 3 else 1 for x in (self.matrices[i] for i in used)}
        counts |= {1} if any(x.op in SPREADS for x in nodes) else set()
        vectors = {*self.states, *self.inputs, *self.parameters, *self.outputs}
        return counts or {0 if len(vectors) == 1 else 1}

    def numbers(self, program: Program) -> dict[int, int]:
        """Return the words that one instance holds of each matrix."""
        sides = {i: self.matrices[i][-2:] for i in program.leaves["matrix"]}
        return {
            i: self.words * gpu.power_of_two(m) * gpu.power_of_two(n) for i, (m, n) in sides.items()
        }

    def widths(self, program: Program) -> list[int]:
        """Return the width of each node, of all heads."""
        leaves = [[(n,) for n in group] for group in self[:3]]
        kinds = dict(zip(("state", "input", "parameter"), leaves, strict=True))
        return widths("cell_scan", program, {**kinds, "matrix": self.matrices})

    def of_instance(
        self, program: Program, stored: Sequence[int], heads: int
    ) -> tuple[list[int], Sizes]:
        """Return the different widths of an instance's values, and which value has which."""
        if heads:
            nodes = self.widths(program)
            of_node = zip(program.nodes, nodes, strict=True)
            nodes = [self.states[0] if x.op in ("constant", "matrix") else n for x, n in of_node]
        else:
            nodes = [self.states[0]] * len(program.nodes)
        sides = [self.sides(i) for i in range(len(self.matrices))] if heads else []
        vectors = [*nodes, *self.states, *stored, *self.parameters]
        distinct = sorted({*vectors, *(n for pair in sides for n in pair)})
        place = {n: k for k, n in enumerate(distinct)}

        def placed(sizes: Sequence[int]) -> tuple[int, ...]:
            return tuple(place[n] for n in sizes)

        matrices = tuple((place[m], place[n]) for m, n in sides)
        groups = placed(nodes), placed(self.states), placed(stored), placed(self.parameters)
        return [n // max(heads, 1) for n in distinct], Sizes(*groups, matrices)


def shape_of(leaves: Leaves, layout: Layout) -> Shape:
    """Return the shape of a call."""
    states, inputs, parameters = (tuple(x.shape[-1] for x in group) for group in leaves[:3])
    matrices = tuple(tuple(w.shape) for w in leaves.matrices)
    words = leaves.states[0].dtype.itemsize // 4
    return Shape(states, inputs, parameters, matrices, tuple(layout.widths), words)
