"""Runs of a page, and the claims that are judged from them."""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from linrnn.compare.run_table import Run, RunTable
from linrnn.compare.tune import at_an_end, safe_name
from linrnn.reproductions._page.quoted import Quoted
from linrnn.reproductions._page.student import interval
from linrnn.reproductions._page.verdict import (
    EDGE,
    NOT_KEPT,
    REDUCED,
    UNLEARNED,
    Judged,
    less,
    margin,
    steps,
)
from linrnn.train.figures import metric_scale

SOLVED_AT = "solved at"
"""A measure: the first step after which the validation loss of a run was below a goal."""
SECONDS = "seconds"
"""A measure of a round of a clock: how long a call took. The number of the round is its seed."""
RUNS = "runs"
"""Folder of the trained models, in that of the report."""

_UNITS = {"accuracy": "points"}
_HIGHER = {"accuracy", "maximal mean return", "normalised return"}
"""Scores of which more is better; of all others less is."""


@dataclass(frozen=True)
class Runs(RunTable):
    """Runs of a page."""

    @classmethod
    def of_page(
        cls, out: Path, scale: str, measures: Mapping[Path, Mapping[str, float]] | None = None
    ) -> "Runs":
        """Those in the folder of a page.

        Args:
            out: folder of the page.
            scale: of the page.
            measures: what else was measured, by the folder of a run.
        """
        return cls.below(out / RUNS, scale, measures)

    def part(self, name: str, scale: str = REDUCED) -> "Part":
        """Those of one task, as they are compared.

        Args:
            name: of the task on the page.
            scale: beside the published one, in words; empty where it is that.
        """
        rows = tuple(run for run in self.rows if run.part == slug(name))
        return Part(name=name, rows=rows, scale=scale)

    def with_newer(self, new: "Runs") -> "Runs":
        """`appended`; rounds of a clock take the place of all older ones of their scale."""
        timed = {run.scale for run in new.rows if SECONDS in run.measures}
        stay = (r for r in self.rows if SECONDS not in r.measures or r.scale not in timed)
        return Runs(tuple(stay)).appended(new)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Runs of one task, row by row at the learning rate that validation chose."""

    name: str
    rows: tuple[Run, ...]
    scale: str

    @property
    def metric(self) -> str:
        """Name of the score."""
        return self.rows[0].metric if self.rows else ""

    @property
    def higher(self) -> bool:
        """Whether more of the score is better."""
        return self.metric in _HIGHER

    @property
    def steps(self) -> int:
        """Updates of a run."""
        return max((run.steps for run in self.rows), default=0)

    @cached_property
    def _chosen(self) -> dict[str, tuple[list[Run], bool]]:
        """The runs of each row at its rate, and whether that is an end of those tried."""
        chosen = {}
        for row in dict.fromkeys(run.row for run in self.rows):
            runs = [run for run in self.rows if run.row == row]
            first = min(run.seed for run in runs)
            tried = {run.lr: run.validation for run in runs if run.seed == first}
            lr = self._best_rate(tried, runs)
            at_rate = [run for run in runs if run.lr == lr or len(tried) == 1]
            chosen[row] = (at_rate, at_an_end(lr, tried))
        return chosen

    def _best_rate(self, tried: Mapping[float, float], runs: Sequence[Run]) -> float:
        """The rate with the best validation; of equal ones that with the most seeds, or no end."""
        scores = [score for score in tried.values() if not math.isnan(score)]
        if not scores:
            return runs[0].lr
        best = (max if self.higher else min)(scores)
        seeds = Counter(run.lr for run in runs)
        equal = [lr for lr, score in tried.items() if score == best]
        # as `linrnn.compare.tune.best_rate` chooses; older runs may have seeds at another of them
        return max(equal, key=lambda lr: (seeds[lr], not at_an_end(lr, tried)))

    def runs(self, label: str) -> list[Run]:
        """Runs of a row at its rate."""
        return self._chosen.get(safe_name(label), ([], False))[0]

    def has(self, *labels: str) -> bool:
        """Whether all of these rows have runs."""
        return all(map(self.runs, labels))

    def values(self, label: str, measure: str = "test") -> dict[int, float]:
        """A number of each seed of a row: a field of `Run`, or one of its other measures."""
        numbers = {
            run.seed: run.measures.get(measure, getattr(run, measure, math.nan))
            for run in self.runs(label)
        }
        return {seed: number for seed, number in numbers.items() if not math.isnan(number)}

    def claim(
        self,
        better: str,
        worse: str,
        text: str,
        published: str,
        *,
        measure: str = "test",
        printed: float = math.nan,
    ) -> Judged:
        """The claim that a row is better than another, by the seeds that both have.

        Args:
            better, worse: the rows.
            text: the claim in words.
            published: the numbers or words it rests on.
            measure: by which they are compared.
            printed: the published difference, in the unit that is shown.
        """
        factor = metric_scale(self.metric)[0]
        sign = factor if self.higher else -factor
        first, second = (
            {seed: sign * value for seed, value in self.values(label, measure).items()}
            for label in (better, worse)
        )
        judged = less(text, published, second, first)
        why = "" if first and second else NOT_KEPT
        return judged._replace(
            unit=_UNITS.get(self.metric, self.metric),
            printed=printed,
            scale=self.scale,
            why_not=why or self.why_not(better, worse, measure=measure),
        )

    def sooner(
        self, label: str, rival: str, text: str, published: str, *, updates: float = 1.0
    ) -> Judged:
        """The claim that a row has solved a task before another; who never does takes all steps.

        Args:
            label, rival: the rows.
            text: the claim in words.
            published: the numbers or words it rests on.
            updates: of the first row in a step, where they count.
        """
        last = float(self.steps)
        first, second = (
            {seed: min(at, last) for seed, at in self.values(row, SOLVED_AT).items()}
            for row in (label, rival)
        )
        nobody = {*first.values(), *second.values()} <= {last}
        scaled = {seed: updates * at for seed, at in first.items()}
        return less(text, published, scaled, second)._replace(
            unit="updates" if updates != 1 else "steps",
            scale=self.scale,
            why_not=UNLEARNED if nobody else self._edge(label, rival),
        )

    def lower_loss(self, label: str, rival: str, text: str, published: str) -> Judged:
        """The claim that a row has a smaller loss on the test than another, in decades."""
        return self.paired(
            text, published, "decades of the loss", (label, rival), decades, measure="test_loss"
        )

    def paired(
        self,
        text: str,
        published: str,
        unit: str,
        labels: Sequence[str],
        effect: Callable[..., float],
        *,
        measure: str = "test",
    ) -> Judged:
        """The claim that an effect, computed from rows of the same seed, is above 0.

        Args:
            text: the claim in words.
            published: the numbers or words it rests on.
            unit: of the effect.
            labels: of the rows, in the order of the arguments of ``effect``.
            effect: of a number of each row.
            measure: which number.
        """
        effects = seed_by_seed(effect, *(self.values(label, measure) for label in labels))
        why = self._edge(*labels)
        return margin(text, published, effects, unit=unit, scale=self.scale, why_not=why)

    def why_not(self, *labels: str, measure: str = "test") -> str:
        """Why a comparison of rows decides nothing, or nothing."""
        if self._edge(*labels):
            return EDGE
        if not any(self._learned(label, measure) for label in labels):
            return UNLEARNED
        return ""

    def _edge(self, *labels: str) -> str:
        ends = (self._chosen[safe_name(label)][1] for label in labels if self.runs(label))
        return EDGE if any(ends) else ""

    def _learned(self, label: str, measure: str) -> bool:
        """Whether the mean of a row is better than chance by its interval."""
        chance = self.rows[0].chance
        if math.isnan(chance):
            return True
        sign = 1 if self.higher else -1
        gains = [sign * (value - chance) for value in self.values(label, measure).values()]
        mean, low, _ = interval(gains)
        return mean > 0 and (len(set(gains)) < 2 or low > 0)

    def order(self, printed: Mapping[str, Quoted]) -> list[Judged]:
        """The claims of a printed column, whose largest number is the best if it is an accuracy."""
        compared = {label: printed[label] for label in printed if self.has(label)}
        return [
            self.claim(
                better,
                worse,
                f"{self.name}: {better} is better than {worse}",
                f"{compared[better].text} against {compared[worse].text}",
                printed=abs(compared[better].value - compared[worse].value),
            )
            for better, worse in steps(compared, self.higher)
        ]

    def under(self, label: str, goal: float, text: str, published: str, claim: bool) -> Judged:
        """The claim that the loss of a row comes below a goal, or does not, in decades.

        The loss is that of the test, or where that was not kept the best one on validation.
        """
        sign = 1 if claim else -1
        margins = {}
        for run in self.runs(label):
            loss = run.validation if math.isnan(run.test_loss) else run.test_loss
            if not math.isnan(loss):
                margins[run.seed] = sign * decades(loss, goal)
        why = "" if margins else NOT_KEPT
        if claim and sum(margins.values()) < 0:  # more updates may bring it there
            why = UNLEARNED
        unit = "decades from the goal"
        return margin(text, published, margins, unit=unit, scale=self.scale, why_not=why)


def seed_by_seed(effect: Callable[..., float], *values: Mapping[int, float]) -> dict[int, float]:
    """An effect of numbers of the same seed, by the seeds that all of them have.

    Example:
        >>> seed_by_seed(max, {0: 1.0, 1: 2.0}, {1: 3.0, 2: 0.0})
        {1: 3.0}
    """
    seeds = sorted(set.intersection(*map(set, values)))
    return {seed: effect(*(by_seed[seed] for by_seed in values)) for seed in seeds}


def decades(lower: float, upper: float) -> float:
    """By how many powers of ten the first is below the second."""
    return math.log10(upper / lower)


def slug(name: str) -> str:
    """A column's name in the name of a file.

    Example:
        >>> slug("sCIFAR, rows")
        'scifar-rows'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def reduction(shares: Mapping[str, tuple[float, float]]) -> str:
    """A scale in words, from what is ours and what is published.

    Example:
        >>> reduction({"updates": (800, 80_000), "length": (100, 2_000), "width": (64, 64)})
        'at 1/100 of the published updates and 1/20 of the length'
    """
    smaller = [
        f"{f'{ours / published:.2g}' if published < 5 * ours else f'1/{published / ours:.0f}'} "
        f"of the @{what}"
        for what, (ours, published) in shares.items()
        if 0 < ours < published
    ]
    text = " and ".join(filter(None, (", ".join(smaller[:-1]), *smaller[-1:])))
    return f"at {text.replace('@', 'published ', 1).replace('@', '')}" if smaller else ""
