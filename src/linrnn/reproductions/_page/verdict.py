"""The verdict of several seeds on a claim: one rule for every page."""

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from linrnn.reproductions._page.quoted import Quoted
from linrnn.reproductions._page.student import SHARE, holm, interval, sign_test, t_test

SURE = 2.0
"""Errors of a difference that two printed numbers must lie apart to be a claim."""
MINUTES, HOURS = 5, 3
"""Seeds without which nothing is decided, where a run takes minutes and where it takes an hour."""
LEVEL = 1 - SHARE
"""Share of pages of claims that are all empty on which one or more is decided all the same."""

REPRODUCED = "reproduced"
DIRECTION = "same direction at the published settings"
SAME = "same direction at reduced scale"
UNRESOLVED = "no difference resolvable"
OPPOSITE = "opposite"
NOTHING = "decides nothing"
CLASSES = (REPRODUCED, DIRECTION, SAME, UNRESOLVED, OPPOSITE)
"""Classes of claims, the strongest first."""
REDUCED = "at a reduced scale, which the page describes"
"""Stands where a page does not declare by how much its scale is smaller than the published one."""

ROUNDS = "timing rounds are not seeds"
EDGE = "best rate at an end of what was tried"
UNLEARNED = "nobody learned within this budget"
NOT_KEPT = "what it rests on was not kept"
_OURS = ("ours", "by its making", "expected, no result")

Held: TypeAlias = tuple[bool | None, ...]
"""Whether a claim held with each seed that can tell; None where it speaks neither for nor against,
as with two numbers that are equal. A run that failed is no seed of it."""


class Judged(NamedTuple):
    """A claim, and how far it held with each seed."""

    claim: str
    published: str
    """The numbers or the words it rests on."""
    held: Held
    each: str = "seeds"
    """Unit of each entry of ``held``: seeds, or rounds where times are compared."""
    differences: tuple[float, ...] = ()
    """Paired differences by seed, above 0 where it holds; none where a seed says yes or no."""
    unit: str = ""
    why_not: str = ""
    """Why it decides nothing, whatever the seeds say."""
    within: float = math.nan
    """Largest difference that is agreement, where the claim is that two numbers agree."""
    printed: float = math.nan
    """The published difference, in the same unit."""
    scale: str = REDUCED
    """Its scale beside the published one; empty where all settings are the published ones."""

    @property
    def ours(self) -> bool:
        """Whether nobody published it."""
        return self.published.startswith(_OURS)


class Verdict(NamedTuple):
    """Class of a claim, with its difference, interval and p value."""

    judged: Judged
    word: str
    """One of `CLASSES`, or `NOTHING`."""
    mean: float
    low: float
    high: float
    """Ends of the 95 % interval of the mean difference; NaN where there is none."""
    p: float
    """Probability of such a difference by chance, by Holm's rule; NaN where it was not tested."""
    why: str = ""
    """Why it decides nothing."""

    @property
    def size(self) -> str:
        """The difference and its interval, or how often the claim held."""
        signs, each = self.judged.held, self.judged.each
        if math.isnan(self.mean) or math.isnan(self.low):
            return (
                f"holds with {signs.count(True)} of {len(signs)} {each}" if signs else "no number"
            )
        if self.high - self.low < 1e-12 * max(1.0, abs(self.mean)):
            return f"{self.mean:+.3g} {self.judged.unit} with all".replace("  ", " ")
        width = self.high - self.low
        decimals = min(max(0, 1 - math.floor(math.log10(width))), _DECIMALS)
        mean, low, high = (f"{x:+.{decimals}f}" for x in (self.mean, self.low, self.high))
        return f"{mean} [{low}, {high}] {self.judged.unit}".rstrip()

    def cells(self) -> list[str]:
        """A row of the table that ends a page."""
        judged = self.judged
        p = "" if math.isnan(self.p) else "below 0.001" if self.p < 1e-3 else f"{self.p:.2g}"
        word = f"{self.word}: {self.why}" if self.why else self.word
        scale = judged.scale or "the published settings"
        whose = "ours" if judged.ours else "published"
        n = f"{len(judged.held)} {judged.each}"
        return [judged.claim, judged.published, whose, self.size, n, p, scale, word]


HEAD = [
    "claim",
    "published",
    "claimed by",
    "difference [95 %]",
    "sample",
    "p (Holm)",
    "scale",
    "verdict",
]
_DECIMALS = 6


def rule(need: int) -> str:
    """The rule in words, where ``need`` seeds are needed."""
    return (
        "the difference is that of two rows trained with the same seed, above 0 where the claim "
        "holds. Its interval is Student's at 95 %; a claim that seeds only affirm or deny has the "
        "sign test. The p values of a page's claims that can be decided are corrected by Holm's "
        "rule. Below "
        f"{LEVEL:g} a claim is `{SAME}` or `{OPPOSITE}`. It is `{REPRODUCED}` if, besides, all "
        "settings are published and the published number lies within the interval; with another "
        f"number, or none, it is `{DIRECTION}`. Otherwise it is `{UNRESOLVED}`. It `{NOTHING}` "
        f"with fewer than {need} seeds, where the best learning rate is the largest or smallest "
        "that was tried, where neither row does better than chance, and where rounds of a clock "
        "stand for seeds. A printed order claims its first row "
        "against its last. It also claims each pair with none between, if they lie apart by more "
        f"than {SURE:g} of their errors; a row without one has the largest of its column."
    )


def verdicts(claims: Sequence[Judged], need: int) -> list[Verdict]:
    """Judge all claims of a page, with the errors of many tests controlled.

    Differences are paired by seed, so their mean has Student's interval; see Holm, "A simple
    sequentially rejective multiple test procedure", Scand. J. Statist. 6, 1979, for the p values.

    Args:
        claims: of a page.
        need: seeds without which nothing is decided.

    Example:
        >>> a = Judged("a < b", "1 against 2", (True,) * 5, differences=(2.1, 1.9, 2.4, 2.0, 2.2))
        >>> [(v.word, v.size) for v in verdicts([a], 5)]
        [('same direction at reduced scale', '+2.12 [+1.88, +2.36]')]
    """
    whys = [_why_not(judged, need) for judged in claims]
    effects = [_effect(judged) for judged in claims]
    # what cannot be decided is not tested, and makes no other claim harder
    tested = [math.nan if why else p for why, (_, p) in zip(whys, effects, strict=True)]
    return [
        _verdict(judged, why, sign, p)
        for judged, why, (sign, _), p in zip(claims, whys, effects, holm(tested), strict=True)
    ]


def _why_not(judged: Judged, need: int) -> str:
    """Why a claim decides nothing, whatever its numbers say."""
    why = judged.why_not or (ROUNDS if judged.each == "rounds" else "")
    few = len(judged.held) < need
    return why or (f"{len(judged.held)} of {need} seeds" if few else "")


def _verdict(judged: Judged, why: str, sign: float, p: float) -> Verdict:
    mean, low, high = interval(judged.differences)
    word = UNRESOLVED
    if why:
        word = NOTHING
    elif p <= LEVEL and sign < 0:
        word = OPPOSITE
    elif p <= LEVEL and sign > 0:
        agrees = not math.isnan(judged.within) or low <= judged.printed <= high
        word = SAME if judged.scale else REPRODUCED if agrees else DIRECTION
    return Verdict(judged, word, mean, low, high, p, why)


def _effect(judged: Judged) -> tuple[float, float]:
    """For or against the claim, as a sign, and the p value of neither; NaN without a seed."""
    differences = judged.differences
    if len(differences) > 1 and _spread(differences) > 0:
        n = len(differences)
        effect = statistics.fmean(differences)
        if not math.isnan(judged.within):
            effect = judged.within - abs(effect)
        t = effect / (_spread(differences) / math.sqrt(n))
        return effect, t_test(t, n - 1)
    if differences and not math.isnan(judged.within):
        signs: Held = tuple(abs(x) <= judged.within for x in differences)
    else:
        signs = judged.held
    return signs.count(True) - signs.count(False), sign_test(signs)


def _spread(differences: Sequence[float]) -> float:
    """Standard deviation; 0 where numbers differ by nothing but rounding."""
    spread = statistics.stdev(differences)
    return spread if spread > 1e-12 * max(map(abs, differences)) else 0.0


def below(first: float, second: float) -> bool | None:
    """Whether the first is the smaller one; None where they are equal."""
    return None if first == second else first < second


def less(
    claim: str, published: str, lower: Mapping[int, float], upper: Mapping[int, float]
) -> Judged:
    """A claim that one row's number is below another's, by the seeds that both have.

    Example:
        >>> less("a < b", "1 against 2", {0: 1.0, 1: 2.0}, {1: 3.0, 2: 0.0}).held
        (True,)
    """
    both = sorted(lower.keys() & upper.keys())
    differences = tuple(upper[seed] - lower[seed] for seed in both)
    signs = tuple(below(lower[seed], upper[seed]) for seed in both)
    finite = all(map(math.isfinite, differences))
    return Judged(claim, published, signs, differences=differences if finite else ())


def margin(
    claim: str,
    published: str,
    margins: Mapping[int, float],
    *,
    unit: str = "decades from the bound",
    scale: str = REDUCED,
    why_not: str = "",
) -> Judged:
    """A claim that a number stays on one side of a bound, by how far it does with each seed.

    Args:
        claim: in words.
        published: the numbers or words it rests on.
        margins: by seed, above 0 where it holds.
        unit: of the margins.
        scale: beside the published one.
        why_not: why it decides nothing, whatever the seeds say.

    Example:
        >>> margin("it is below 0.05", "a figure", {0: 0.7, 1: -0.1}).held
        (True, False)
    """
    values = tuple(margins.values())
    return Judged(
        claim,
        published,
        held=tuple(below(0.0, x) for x in values),
        differences=values if all(map(math.isfinite, values)) else (),
        unit=unit,
        scale=scale,
        why_not=why_not,
    )


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
