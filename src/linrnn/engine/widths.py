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
    known, names = _Known(where, _roots(program)), program.names
    noted: list[tuple[int, int, str]] = []
    for i, (op, args, attribute) in enumerate(program.nodes):
        if op in CONTRACTIONS:
            matrix = program.nodes[args[0]].attribute
            shape, name = shapes["matrix"][matrix], program.matrices[matrix]
            axes = 2 if op == "linear" else 3
            if shape is None or len(shape) != axes:
                rule = "(rows, columns)" if axes == 2 else "(heads, rows, columns)"
                raise ShapeError(f"{where}: {name} must have shape {rule}, got {shape}.")
            heads = 1 if axes == 2 else shape[0]
            rows, columns = shape[-2:][::-1] if attribute else shape[-2:]
            noted.append((i, heads * rows, f"the product with {name}"))
            noted.append((args[1], heads * columns, f"what {name} is applied to"))
        elif op in ("state", "input", "parameter"):
            shape = shapes[op][attribute]
            if shape is not None:
                name = names[LEAVES.index(op)][attribute]
                noted.append((i, shape[0] if shape else 1, name))
    known.note(noted)
    known.spread(ratios(program))
    return [known.widths.get(root, (1, ""))[0] for root in known.roots]


def classes(program: Program) -> list[int]:
    """For each node the number of the set of nodes that have its width, whatever that is.

    Where channels do not mix there is but one.
    """
    if not program.mixes:
        return [0] * len(program.nodes)
    numbers: dict[int, int] = {}
    return [numbers.setdefault(root, len(numbers)) for root in _roots(program)]


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


def _roots(program: Program) -> list[int]:
    """A member of the set of nodes that have one width, the same for all in it, for each node.

    Those that meet in an operation or at a matrix have one, and a state and what it becomes.
    """
    roots = list(range(len(program.nodes)))
    members = {i: [i] for i, node in enumerate(program.nodes) if node.op != "constant"}
    sides: dict[tuple[int, bool], int] = {}
    pairs: list[tuple[int, int]] = []
    for i, (op, args, attribute) in enumerate(program.nodes):
        if op == "roll" or op not in MIXING:
            for x in args:
                pairs.append((i, x))
        elif op in CONTRACTIONS:
            matrix, vector = args
            pairs.append((sides.setdefault((matrix, not attribute), i), i))
            pairs.append((sides.setdefault((matrix, bool(attribute)), vector), vector))
    places = program.leaves["state"]
    pairs += [(places[i], x) for i, x in enumerate(program.next_states) if i in places]
    for x, y in pairs:
        i, j = roots[x], roots[y]
        if i != j and i in members and j in members:  # a constant fits any width
            for member in members[j]:
                roots[member] = i
            members[i] += members.pop(j)
    return roots


class _Known:
    """The widths that are known, of sets of nodes, and why."""

    def __init__(self, where: str, roots: list[int]) -> None:
        self.where, self.roots = where, roots
        self.widths: dict[int, tuple[int, str]] = {}

    def note(self, noted: Sequence[tuple[int, int, str]]) -> None:
        """Note down widths of nodes, and why they are these; 1 fits any."""
        for i, width, why in noted:
            root = self.roots[i]
            known_width, reason = self.widths.get(root, (width, why))
            if 1 not in (known_width, width) and known_width != width:
                raise ShapeError(
                    f"{self.where}: {why} must have as many channels as {reason}, {known_width}, "
                    f"got {width}. They meet in one operation of the step."
                )
            self.widths[root] = (width, why) if known_width == 1 else (known_width, reason)

    def spread(self, pairs: Sequence[Ratio]) -> None:
        """Spreads and folds: as far as one of the two is known so is the other, else it is 1."""
        self._spread_known(pairs)
        for _, narrow, _ in pairs:
            if self.roots[narrow] not in self.widths:  # a state without any constraint
                self.widths[self.roots[narrow]] = (1, "a value whose width nothing says")
                self._spread_known(pairs)

    def _spread_known(self, pairs: Sequence[Ratio]) -> None:
        """The widths that follow from those of others."""
        for _ in pairs:
            for wider, narrow, n in pairs:
                width, why = self.widths.get(self.roots[wider], (1, ""))
                if width > 1:
                    if width % n:
                        raise ShapeError(
                            f"{self.where}: {why} must have a multiple of {n} channels, got "
                            f"{width}. A spread or a fold has {n} parts of them."
                        )
                    self.note([(narrow, width // n, f"a part of {why}")])
                elif self.roots[narrow] in self.widths:
                    width, _ = self.widths[self.roots[narrow]]
                    self.note([(wider, n * width, f"a spread to {n} parts")])
