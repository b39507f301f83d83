"""Widths that fit a cell: what a spread or a fold relates differs by its factor."""

import math
from collections import defaultdict
from fractions import Fraction

from linrnn.cells import Cell
from linrnn.engine.widths import classes, ratios


def leaf_widths(cell: Cell, least: int) -> dict[str, int]:
    """The channels of every state, input and constant; the narrowest have ``least`` or more."""
    program = cell.program
    of = classes(program)
    factors: defaultdict[int, list[tuple[int, Fraction]]] = defaultdict(list)
    for wide, narrow, times in ratios(program):
        factors[of[wide]].append((of[narrow], Fraction(1, times)))
        factors[of[narrow]].append((of[wide], Fraction(times)))
    found: dict[int, int] = {}
    for first in dict.fromkeys(of):
        if first not in found:
            found |= _scaled(_reached(first, factors), least)
    widths = dict.fromkeys((*cell.states, *cell.inputs, *cell.constants), least)
    for kind in ("state", "input", "parameter"):
        for index, place in program.leaves(kind).items():
            widths[_whole(program.names(kind)[index])] = found[of[place]]
    return widths


def _reached(first: int, factors: dict[int, list[tuple[int, Fraction]]]) -> dict[int, Fraction]:
    """The widths of all classes that one is related to, relative to its own."""
    found, waiting = {first: Fraction(1)}, [first]
    while waiting:
        now = waiting.pop()
        for other, factor in factors.get(now, ()):
            if other not in found:
                found[other] = found[now] * factor
                waiting.append(other)
    return found


def _scaled(relative: dict[int, Fraction], least: int) -> dict[int, int]:
    """As integers."""
    unit = math.lcm(*(x.denominator for x in relative.values()))
    times = math.ceil(least / (unit * min(relative.values())))
    return {i: int(times * unit * x) for i, x in relative.items()}


def _whole(name: str) -> str:
    """Of which argument it is a part."""
    return name.removesuffix(".real").removesuffix(".imag")
