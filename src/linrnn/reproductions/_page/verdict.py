"""The verdict of several seeds on a claim: one rule for every page."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from linrnn.reproductions._page.quoted import Quoted

SURE = 2.0
"""Errors of a difference that two printed numbers must lie apart to be a claim."""
MINUTES, HOURS = 5, 3
"""Seeds without which nothing is decided, where a run takes minutes and where it takes an hour."""
CONFIRMED, CONTRADICTED, UNDECIDED = "confirmed", "contradicted", "undecided"


Held: TypeAlias = tuple[bool | None, ...]
"""Whether a claim held with each seed that can tell; None where it speaks neither for nor against,
as with two numbers that are equal. A run that failed is no seed of it."""


class Judged(NamedTuple):
    """A claim, and whether it held with each seed."""

    claim: str
    published: str
    """The numbers or the words it rests on."""
    held: Held
    each: str = "seeds"
    """Unit of each entry of ``held``: seeds, or rounds where times are compared."""

    def cells(self, need: int) -> list[str]:
        """A row of the table that ends a page.

        Example:
            >>> Judged("a < b", "1 against 2", (True, False)).cells(2)
            ['a < b', '1 against 2', 'holds with 1 of 2 seeds', 'undecided']
        """
        n, neither = len(self.held), self.held.count(None)
        ours = f"holds with {self.held.count(True)} of {n} {self.each}" if n else "not run"
        ours += f", neither way with {neither}" if neither else ""
        word = verdict(self.held) if n >= need else f"{UNDECIDED} ({n} of {need} {self.each})"
        return [self.claim, self.published, ours, word]


def rule(need: int) -> str:
    """The rule in words, where ``need`` seeds are needed."""
    return (
        "a claim is confirmed where it holds with every seed, contradicted where its opposite does "
        "(two equal numbers are neither), and otherwise undecided; with fewer than "
        f"{need} seeds nothing is decided ({MINUTES} where a run takes minutes, {HOURS} where it "
        "takes an hour or more), and a run that failed is no seed. Rows are compared seed by seed, "
        "times round by round. A printed order is a claim of the first and the last, and of two "
        "rows between which no third is, where they lie apart by more than "
        f"{SURE:g} of their errors; where none is printed the largest of the column stands for it."
    )


def verdict(holds: Sequence[bool | None]) -> str:
    """One word for what the seeds say, however many they are.

    Args:
        holds: whether the claim holds, for each seed; without one nothing is decided.

    Example:
        >>> verdict([True, True]), verdict([True, False]), verdict([False, False]), verdict([])
        ('confirmed', 'undecided', 'contradicted', 'undecided')
        >>> verdict([False, None])
        'undecided'
    """
    answers = set(holds)
    return CONFIRMED if answers == {True} else CONTRADICTED if answers == {False} else UNDECIDED


def below(first: float, second: float) -> bool | None:
    """Whether the first is the smaller one; None where they are equal."""
    return None if first == second else first < second


def every(parts: Iterable[bool | None]) -> bool | None:
    """Whether all parts of a claim hold; False if none of them does, None otherwise.

    Example:
        >>> every([True, True]), every([False, False]), every([True, False]), every([None, None])
        (True, False, None, None)
    """
    answers = set(parts)
    return answers.pop() if len(answers) == 1 else None


def along(values: Sequence[float]) -> bool | None:
    """Whether each is larger than the one before; False if each is smaller, None otherwise.

    Example:
        >>> along([1, 2, 3]), along([3, 2, 1]), along([1, 3, 2])
        (True, False, None)
    """
    return every(below(value, next_value) for value, next_value in itertools.pairwise(values))


def less(
    claim: str, published: str, lower: Mapping[int, float], upper: Mapping[int, float]
) -> Judged:
    """A claim that one row's number is below another's, by the seeds that both have.

    Example:
        >>> less("a < b", "1 against 2", {0: 1.0, 1: 2.0}, {1: 3.0, 2: 0.0}).held
        (True,)
    """
    both = sorted(lower.keys() & upper.keys())
    return Judged(claim, published, tuple(below(lower[seed], upper[seed]) for seed in both))


def steps(printed: Mapping[str, Quoted], higher_is_better: bool = True) -> list[tuple[str, str]]:
    """List the pairs of rows, better and worse, that a printed column claims.

    They are those that lie apart with none between that lies apart from both, and the first and the
    last. Rows whose errors overlap are no claim, nor are rows that failed.

    Example:
        >>> steps({"a": Quoted(1.0, 0.1), "b": Quoted(3.0, 0.1), "c": Quoted(1.1, 0.1)})
        [('b', 'c'), ('b', 'a')]
    """
    labels = [label for label, quoted in printed.items() if not math.isnan(quoted.value)]
    sign = -1 if higher_is_better else 1
    labels.sort(key=lambda label: sign * printed[label].value)
    separated = _Separation(printed)
    return [
        (better, worse)
        for (i, better), (k, worse) in itertools.combinations(enumerate(labels), 2)
        if separated(better, worse)
        and (
            k - i == len(labels) - 1
            or not any(
                separated(better, mid) and separated(mid, worse) for mid in labels[i + 1 : k]
            )
        )
    ]


def in_words(order: Sequence[str]) -> list[tuple[str, str]]:
    """List the pairs an order without numbers claims: neighbours, and the first and the last.

    Example:
        >>> in_words(["a", "b", "c"]), in_words(["a", "b"])
        ([('a', 'b'), ('b', 'c'), ('a', 'c')], [('a', 'b')])
    """
    pairs = list(itertools.pairwise(order))
    return pairs + [(order[0], order[-1])] * (len(pairs) > 1)


class _Separation:
    """Whether two printed numbers differ by more than their errors."""

    def __init__(self, printed: Mapping[str, Quoted]) -> None:
        errors = [quoted.error for quoted in printed.values() if quoted.error == quoted.error]
        self.printed, self.largest = printed, max(errors, default=math.nan)

    def __call__(self, first: str, second: str) -> bool:
        error = math.hypot(*map(self._error, (first, second)))
        # rows without an error in a column without any are not compared
        return abs(self.printed[first].value - self.printed[second].value) > SURE * error

    def _error(self, label: str) -> float:
        quoted = self.printed[label]
        errors = (e for e in (quoted.error, quoted.taken, self.largest) if e == e)
        return next(errors, math.nan)


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
    compared = {label: printed[label] for label in printed if values.get(label)}
    verdicts = []
    for better, worse in steps(compared, higher_is_better):
        claim = f"{where}{better} is better than {worse}"
        published = f"{printed[better].text} against {printed[worse].text}"
        smaller, larger = (worse, better) if higher_is_better else (better, worse)
        verdicts.append(less(claim, published, values[smaller], values[larger]))
    return verdicts


def printed_order(printed: Mapping[str, Quoted], higher_is_better: bool = True) -> str:
    """Labels of a printed column, best first, " > " only where no printed errors overlap.

    Example:
        >>> printed_order({"a": Quoted(1.0, 0.1), "b": Quoted(3.0), "c": Quoted(1.1, 0.2)})
        'b > c, a'
    """
    sign = -1 if higher_is_better else 1
    best = sorted(printed, key=lambda label: sign * printed[label].value)
    return _joined(best, _Separation(printed))


def groups(values: Mapping[str, Mapping[int, float]], higher_is_better: bool = True) -> str:
    """Labels, best mean first, with " > " only where all before it win with every seed.

    Between others stands a comma: their order is not known. Fewer than five seeds give no order.

    Example:
        >>> a, c = {n: 1.0 + n for n in range(5)}, {n: 5.0 - n for n in range(5)}
        >>> groups({"a": a, "b": {n: 9.0 for n in range(5)}, "c": c})
        'b > a, c'
    """
    sign = 1 if higher_is_better else -1
    means = {label: sum(v.values()) / len(v) for label, v in values.items() if v}
    best = sorted(means, key=lambda label: -sign * means[label])
    return _joined(best, lambda better, worse: _wins(values[better], values[worse], sign))


def _joined(best: Sequence[str], wins: Callable[[str, str], bool]) -> str:
    text = best[0] if best else ""
    for place, label in enumerate(best[1:], 1):
        clear = all(wins(earlier, later) for earlier in best[:place] for later in best[place:])
        text += f"{' >' if clear else ','} {label}"
    return text


def _wins(first: Mapping[int, float], second: Mapping[int, float], sign: int) -> bool:
    """Whether the first is better with each of five or more seeds that both have."""
    both = first.keys() & second.keys()
    return len(both) >= MINUTES and all(sign * (first[seed] - second[seed]) > 0 for seed in both)
