"""How wide each value of a program is."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from linrnn.engine.graph import CONTRACTIONS, LEAVES, MIXING, SPREADS, Program
from linrnn.errors import ShapeError

Shape = tuple[int, ...]


def widths(where: str, program: Program, shapes: Mapping[str, Sequence[Shape | None]]) -> list[int]:
    """The width of each node, from the shapes of the leaves; that of constants is 1.

    Values that meet in an elementwise operation have one width; a leaf of width 1 takes that of
    the others, and must be expanded to it.

    Args:
        where: for messages.
        program: the step.
        shapes: of each kind of leaf; (width,) of vectors, None of one that is not known.

    Raises:
        ShapeError: two that meet have different widths, or a matrix does not fit.
    """
    width_classes = _Classes(where, program, shapes)
    for i, node in enumerate(program.nodes):
        if node.op in CONTRACTIONS:
            width_classes.fit(i)
        elif node.op in ("state", "input", "parameter"):
            width_classes.leaf(i)
    width_classes.spread_all()
    return [width_classes.width(i) for i in range(len(program.nodes))]


def classes(program: Program) -> list[int]:
    """For each node the number of the set of nodes that have its width, whatever that is.

    Where channels do not mix there is but one.
    """
    if not program.mixes:
        return [0] * len(program.nodes)
    numbers: dict[int, int] = {}
    roots = _Classes("", program, {}).roots
    return [numbers.setdefault(root, len(numbers)) for root in roots]


class Ratio(NamedTuple):
    """Two values, one ``times`` as wide as the other: the ends of a spread or a fold."""

    wide: int
    narrow: int
    times: int


def ratios(program: Program) -> list[Ratio]:
    """The nodes of which one is the spread or the fold of the other."""
    pairs = []
    for i, node in enumerate(program.nodes):
        if node.op in SPREADS and node.op != "roll":
            pair = (i, node.args[0]) if node.op.startswith("spread") else (node.args[0], i)
            pairs.append(Ratio(*pair, node.attribute))
    return pairs


class _Classes:
    """Sets of nodes that have one width."""

    def __init__(
        self, where: str, program: Program, shapes: Mapping[str, Sequence[Shape | None]]
    ) -> None:
        self.where, self.program, self.shapes = where, program, shapes
        #: A member of the set of each node, the same for all in it.
        self.roots = list(range(len(program.nodes)))
        self.known: dict[int, tuple[int, str]] = {}
        members = {i: [i] for i, node in enumerate(program.nodes) if node.op != "constant"}
        for x, y in self._meetings():
            i, j = self.roots[x], self.roots[y]
            if i != j and i in members and j in members:  # a constant fits any width
                for member in members[j]:
                    self.roots[member] = i
                members[i] += members.pop(j)

    def _meetings(self) -> list[tuple[int, int]]:
        """Nodes that meet in an operation or at a matrix, and a state and what it becomes."""
        program = self.program
        sides: dict[tuple[int, bool], int] = {}
        pairs: list[tuple[int, int]] = []
        for i, (op, args, attribute) in enumerate(program.nodes):
            if op == "roll" or op not in (*MIXING, "matrix"):
                for x in args:
                    pairs.append((i, x))
            if op in CONTRACTIONS:
                matrix, vector = args
                for x, of_rows in ((i, not attribute), (vector, bool(attribute))):
                    pairs.append((sides.setdefault((matrix, of_rows), x), x))
        places = program.leaves["state"]
        return pairs + [(places[i], x) for i, x in enumerate(program.next_states) if i in places]

    def width(self, i: int) -> int:
        return self.known.get(self.roots[i], (1, ""))[0]

    def set(self, i: int, width: int, why: str) -> None:
        """Note down a width; 1 fits any."""
        root = self.roots[i]
        known_width, reason = self.known.get(root, (width, why))
        if 1 not in (known_width, width) and known_width != width:
            raise ShapeError(
                f"{self.where}: {why} must have as many channels as {reason}, {known_width}, "
                f"got {width}. They meet in one operation of the step."
            )
        self.known[root] = (width, why) if known_width == 1 else (known_width, reason)

    def leaf(self, i: int) -> None:
        kind, index = self.program.nodes[i].op, self.program.nodes[i].attribute
        shape = self.shapes[kind][index]
        if shape is not None:
            self.set(i, shape[0] if shape else 1, self.program.names[LEAVES.index(kind)][index])

    def spread_all(self) -> None:
        """Spreads and folds: as far as one of the two is known so is the other, else it is 1."""
        pairs = ratios(self.program)
        self.spread_known(pairs)
        for _, narrow, _ in pairs:
            if self.roots[narrow] not in self.known:  # a state without any constraint
                self.known[self.roots[narrow]] = (1, "a value whose width nothing says")
                self.spread_known(pairs)

    def spread_known(self, pairs: Sequence[Ratio]) -> None:
        """The widths that follow from those of others."""
        for _ in pairs:
            for wider, narrow, n in pairs:
                if self.width(wider) > 1:
                    self._divide(wider, narrow, n)
                elif self.roots[narrow] in self.known:
                    self.set(wider, n * self.width(narrow), f"a spread to {n} parts")

    def _divide(self, wider: int, narrow: int, n: int) -> None:
        width, why = self.known[self.roots[wider]]
        if width % n:
            raise ShapeError(
                f"{self.where}: {why} must have a multiple of {n} channels, got {width}. "
                f"A spread or a fold has {n} parts of them."
            )
        self.set(narrow, width // n, f"a part of {why}")

    def fit(self, i: int) -> None:
        """A product: its matrix says how wide both sides are."""
        node = self.program.nodes[i]
        matrix = self.program.nodes[node.args[0]].attribute
        shape, name = self.shapes["matrix"][matrix], self.program.matrices[matrix]
        axes = 2 if node.op == "linear" else 3
        if shape is None or len(shape) != axes:
            rule = "(rows, columns)" if axes == 2 else "(heads, rows, columns)"
            raise ShapeError(f"{self.where}: {name} must have shape {rule}, got {shape}.")
        heads = 1 if axes == 2 else shape[0]
        sides = (shape[-1], shape[-2]) if node.attribute else (shape[-2], shape[-1])
        self.set(i, heads * sides[0], f"the product with {name}")
        self.set(node.args[1], heads * sides[1], f"what {name} is applied to")
