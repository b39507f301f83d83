"""Few choices of one value of each option in which every two values meet."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

Chosen = tuple[int, ...]
"""The chosen value of each option, by index; 0 is the default."""
Value = tuple[int, int]
"""An option and one of its values."""
Taken = Callable[[Chosen], bool]


def pairwise(counts: Sequence[int], taken: Taken) -> Iterator[Chosen]:
    """The defaults, then choices that are ``taken``, until every two values of two options met.

    Each begins with two values that have not met, the other options at their defaults, and is
    filled with what has met least. A value that is not taken beside the defaults is tried with each
    value of another option, and keeps the first that it is taken with.

    Args:
        counts: how many values each option has.
        taken: whether a choice is one; asked once of each.

    Example:
        >>> list(pairwise([2, 2], lambda chosen: chosen != (1, 1)))
        [(0, 0), (1, 0), (0, 1)]
    """
    taken = functools.cache(taken)
    defaults: Chosen = (0,) * len(counts)
    yield defaults
    values = [(option, i) for option, count in enumerate(counts) for i in range(count)]
    needs = _needs(defaults, values, taken)
    met = _pairs(defaults)
    for pair in (*((value, value) for value in values), *itertools.combinations(values, 2)):
        if pair in met or (pair[0] != pair[1] and pair[0][0] == pair[1][0]):
            continue
        chosen = _together(defaults, pair, needs, taken)
        if chosen is not None:
            chosen = _filled(chosen, pair, counts, met, taken)
            met |= _pairs(chosen)
            yield chosen


def _needs(defaults: Chosen, values: list[Value], taken: Taken) -> dict[Value, tuple[Value, ...]]:
    """Which value of another option each value is taken with, if any; left out if none helps."""
    needs: dict[Value, tuple[Value, ...]] = {}
    for value in values:
        others = ((other,) for other in values if other[1] and other[0] != value[0])
        for beside in ((), *others):
            if taken(_with(defaults, *beside, value)):
                needs[value] = beside
                break
    return needs


def _together(
    defaults: Chosen, pair: tuple[Value, Value], needs: dict[Value, tuple[Value, ...]], taken: Taken
) -> Chosen | None:
    """Both values beside the defaults, and what one or both need; None if that is not taken."""
    if not needs.keys() >= {*pair}:
        return None
    first, second = (needs[value] for value in pair)
    tried = (_with(defaults, *beside, *pair) for beside in ((), first, second, (*first, *second)))
    return next((chosen for chosen in tried if taken(chosen)), None)


def _filled(
    chosen: Chosen,
    pair: tuple[Value, Value],
    counts: Sequence[int],
    met: set[tuple[Value, Value]],
    taken: Taken,
) -> Chosen:
    """With the value of each other option that has met the fewest others, among those taken."""
    for option, count in enumerate(counts):
        if option in (pair[0][0], pair[1][0]):
            continue

        ways = [_with(chosen, (option, i)) for i in range(count)]
        ways.sort(key=partial(_new, option=option, met=met), reverse=True)
        chosen = next(filter(taken, ways))  # what was chosen so far is among them
    return chosen


def _new(chosen: Chosen, option: int, met: set[tuple[Value, Value]]) -> int:
    """How many values that of an option has not met."""
    value = (option, chosen[option])
    return sum((min(value, other), max(value, other)) not in met for other in enumerate(chosen))


def _with(chosen: Chosen, *values: Value) -> Chosen:
    changed = list(chosen)
    for option, i in values:
        changed[option] = i
    return tuple(changed)


def _pairs(chosen: Chosen) -> set[tuple[Value, Value]]:
    """Each two values that meet in a choice, and each alone."""
    return set(itertools.combinations_with_replacement(enumerate(chosen), 2))
