"""Widths that fit a cell: what a spread or a fold relates differs by its factor."""

import math
from collections import defaultdict
from fractions import Fraction

from linrnn.cells import Cell
from linrnn.engine.graph import LEAVES
from linrnn.engine.widths import classes, ratios


def leaf_widths(cell: Cell, smallest: int) -> dict[str, int]:
    """The channels of every state, input and constant; the narrowest have ``smallest`` or more."""
    program = cell.program
    of = classes(program)
    factors: defaultdict[int, list[tuple[int, Fraction]]] = defaultdict(list)
    for wider, narrower, times in ratios(program):
        factors[of[wider]].append((of[narrower], Fraction(1, times)))
        factors[of[narrower]].append((of[wider], Fraction(times)))
    class_widths: dict[int, int] = {}
    for first in dict.fromkeys(of):
        if first not in class_widths:
            class_widths |= _scaled(_reached(first, factors), smallest)
    widths = dict.fromkeys((*cell.states, *cell.inputs, *cell.constants), smallest)
    for kind in ("state", "input", "parameter"):
        for index, place in program.leaves[kind].items():
            widths[_argument_of(program.names[LEAVES.index(kind)][index])] = class_widths[of[place]]
    return widths


def _reached(first: int, factors: dict[int, list[tuple[int, Fraction]]]) -> dict[int, Fraction]:
    """The widths of all classes that one is related to, relative to its own."""
    widths, waiting = {first: Fraction(1)}, [first]
    while waiting:
        current = waiting.pop()
        for neighbour, factor in factors.get(current, ()):
            if neighbour not in widths:
                widths[neighbour] = widths[current] * factor
                waiting.append(neighbour)
    return widths


def _scaled(relative: dict[int, Fraction], smallest: int) -> dict[int, int]:
    """Return the relative widths as integers, the smallest at least ``smallest``."""
    unit = math.lcm(*(x.denominator for x in relative.values()))
    times = math.ceil(smallest / (unit * min(relative.values())))
    return {i: int(times * unit * x) for i, x in relative.items()}


def _argument_of(name: str) -> str:
    """Return the argument that ``name`` is the real or imaginary part of."""
    return name.removesuffix(".real").removesuffix(".imag")
