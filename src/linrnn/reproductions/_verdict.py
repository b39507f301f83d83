"""What seeds say together of a claim: one rule for every page."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from linrnn.reproductions._quoted import Quoted

SURE = 2.0
"""Errors of a difference that two printed numbers must lie apart to be a claim."""
MINUTES, HOURS = 5, 3
"""Seeds without which nothing is decided, where a run takes minutes and where it takes an hour."""
CONFIRMED, CONTRADICTED, UNDECIDED = "confirmed", "contradicted", "undecided"


class Judged(NamedTuple):
    """A claim, and whether it held with each seed."""

    claim: str
    published: str
    """The numbers or the words it rests on."""
    held: tuple[bool, ...]
    """One for each seed that can tell."""
    each: str = "seeds"
    """What there is one of for each; of times, a round stands in place of a seed."""

    def cells(self, need: int) -> list[str]:
        """A row of the table that ends a page.

        Example:
            >>> Judged("a < b", "1 against 2", (True, False)).cells(2)
            ['a < b', '1 against 2', 'holds with 1 of 2 seeds', 'undecided']
        """
        n = len(self.held)
        ours = f"holds with {sum(self.held)} of {n} {self.each}" if self.held else "not run"
        word = verdict(self.held) if n >= need else f"{UNDECIDED} ({n} of {need} {self.each})"
        return [self.claim, self.published, ours, word]


def rule(need: int) -> str:
    """The rule in words, where so many seeds are needed."""
    return (
        "a claim is confirmed where it holds with every seed, contradicted where it holds with "
        f"none, and otherwise undecided; with fewer than {need} seeds nothing is decided "
        f"({MINUTES} where a run takes minutes, {HOURS} where it takes an hour or more). Rows are "
        "compared seed by seed, times round by round. A printed order is a claim where neighbours "
        f"lie apart by more than {SURE:g} of their errors."
    )


def verdict(held: Sequence[bool]) -> str:
    """One word for what the seeds say, however many they are.

    Args:
        held: whether the claim holds, for each seed; without one nothing is decided.

    Example:
        >>> verdict([True, True]), verdict([True, False]), verdict([False, False]), verdict([])
        ('confirmed', 'undecided', 'contradicted', 'undecided')
    """
    if not held or any(held) != all(held):
        return UNDECIDED
    return CONFIRMED if held[0] else CONTRADICTED


def less(
    claim: str, published: str, one: Mapping[int, float], other: Mapping[int, float]
) -> Judged:
    """A claim that one row's number is below another's, by the seeds that both have.

    Example:
        >>> less("a < b", "1 against 2", {0: 1.0, 1: 2.0}, {1: 3.0, 2: 0.0}).held
        (True,)
    """
    both = sorted(one.keys() & other.keys())
    return Judged(claim, published, tuple(one[seed] < other[seed] for seed in both))


def steps(printed: Mapping[str, Quoted], higher_is_better: bool = True) -> list[tuple[str, str]]:
    """What a printed column claims: each row and the next one in its order, better and worse.

    Neighbours whose errors overlap are no claim, nor are rows that failed.

    Example:
        >>> steps({"a": Quoted(1.0, 0.1), "b": Quoted(3.0, 0.1), "c": Quoted(1.1, 0.1)})
        [('b', 'c')]
    """
    there = [label for label, quoted in printed.items() if not math.isnan(quoted.value)]
    sign = -1 if higher_is_better else 1
    there.sort(key=lambda label: sign * printed[label].value)
    return [(one, other) for one, other in itertools.pairwise(there) if _apart(printed, one, other)]


def _apart(printed: Mapping[str, Quoted], one: str, other: str) -> bool:
    """Whether two printed numbers differ by more than their errors, as far as these are printed."""
    errors = [printed[label].error for label in (one, other)]
    error = math.hypot(*(0.0 if math.isnan(e) else e for e in errors))
    return abs(printed[one].value - printed[other].value) > SURE * error


def ordered(
    values: Mapping[str, Mapping[int, float]],
    printed: Mapping[str, Quoted],
    *,
    where: str = "",
    higher_is_better: bool = True,
) -> list[Judged]:
    """The claims of a printed order, seed by seed.

    Args:
        values: of each row, by seed; rows without any are left out.
        printed: numbers by row.
        where: begins each claim.
        higher_is_better: whether the largest number is the best.
    """
    known = {label: printed[label] for label in printed if values.get(label)}
    found = []
    for one, other in steps(known, higher_is_better):
        claim = f"{where}{one} is better than {other}"
        said = f"{printed[one].text} against {printed[other].text}"
        smaller, larger = (other, one) if higher_is_better else (one, other)
        found.append(less(claim, said, values[smaller], values[larger]))
    return found


def printed_order(printed: Mapping[str, Quoted], higher_is_better: bool = True) -> str:
    """Labels of a printed column, best first, " > " only where no printed errors overlap.

    Example:
        >>> printed_order({"a": Quoted(1.0, 0.1), "b": Quoted(3.0), "c": Quoted(1.1, 0.1)})
        'b > c, a'
    """
    sign = -1 if higher_is_better else 1
    best = sorted(printed, key=lambda label: sign * printed[label].value)
    return _joined(best, lambda one, other: _apart(printed, one, other))


def groups(values: Mapping[str, Mapping[int, float]], higher_is_better: bool = True) -> str:
    """Labels, best mean first, with " > " only where all before it win with every seed.

    Between others stands a comma: their order is not known. One seed gives no order.

    Example:
        >>> groups({"a": {0: 1.0, 1: 1.1}, "b": {0: 3.0, 1: 3.1}, "c": {0: 1.1, 1: 1.0}})
        'b > a, c'
    """
    sign = 1 if higher_is_better else -1
    means = {label: sum(v.values()) / len(v) for label, v in values.items() if v}
    best = sorted(means, key=lambda label: -sign * means[label])
    return _joined(best, lambda one, other: _wins(values[one], values[other], sign))


def _joined(best: Sequence[str], wins: Callable[[str, str], bool]) -> str:
    text = best[0] if best else ""
    for place, label in enumerate(best[1:], 1):
        clear = all(wins(one, other) for one in best[:place] for other in best[place:])
        text += f"{' >' if clear else ','} {label}"
    return text


def _wins(one: Mapping[int, float], other: Mapping[int, float], sign: int) -> bool:
    """Whether the first is better with each of two or more seeds that both have."""
    both = one.keys() & other.keys()
    return len(both) > 1 and all(sign * (one[seed] - other[seed]) > 0 for seed in both)
