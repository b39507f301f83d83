"""Recurrent back-propagation by its solvers, on a Hopfield network that completes images."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, ClassVar, Literal

from linrnn.compare.run_table import Run
from linrnn.compare.tune import at_an_end, safe_name
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.runs import Runs, seed_by_seed, slug
from linrnn.reproductions._page.verdict import EDGE, Judged, less, margin
from linrnn.reproductions._runs.hopfield import PUBLISHED, Memory, Rule, Training, trained
from linrnn.train.figures import legend_below, new_figure, over_seeds
from linrnn.train.styles import dense_styles

WINDOW = 20
"""Steps that a truncated rule goes back; terms of a sum are one less."""
MARGIN = 0.1
"""Two losses are alike that differ by less than this part of the larger one."""
STEEP = 4.0
"""The slope of other units than the published ones."""

DAMAGED = "as shown"
NEUMANN, ITERATION, CONJUGATE, TRUNCATED = "Neumann-RBP", "RBP", "CG-RBP", f"TBPTT, {WINDOW} steps"


def rules(updates: int) -> Mapping[str, Rule]:
    """The rows: each runs ``updates`` updates before its output."""
    shared = {"hold": updates - 1, "terms": WINDOW - 1}
    return {
        "BPTT": Rule(learner="bptt", unrolled=True),
        TRUNCATED: Rule(learner="tbptt", options={"window": WINDOW}, unrolled=True),
        ITERATION: Rule(learner="rbp", options={"solver": "rbp", **shared}),
        NEUMANN: Rule(learner="rbp", options={"solver": "neumann", **shared}),
        CONJUGATE: Rule(learner="rbp", options={"solver": "cg", **shared}),
    }


_LIAO = "Liao et al. 2018, arXiv:1803.06396"
Case = tuple[float, float]
"""A slope and a learning rate."""
Trainings = Mapping[str, Sequence[Training]]
"""By rule, one for each seed."""
LEFT_OUT, WRONG, SHOWN, RADIUS = "steps left out", "pixels wrong", "pixels gone", "radius"
"""Measures of a run: a count, two shares of the pixels, and the largest eigenvalue of an update."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is computed."""

    images: Literal["digits", "mnist"] = "digits"
    hidden: int = 80
    steps: int = 300
    slopes: Sequence[float] = (PUBLISHED, STEEP)
    rates: Sequence[float] = (1e-3, 3e-3, 1e-2)

    def memory(self, slope: float) -> Memory:
        """Return the memory that is trained."""
        return Memory(images=self.images, hidden=self.hidden, steps=self.steps, slope=slope)


SIZES: Mapping[str, Size] = {
    "cpu": Size(),
    "mnist": Size(images="mnist", hidden=1024, steps=1000, rates=(1e-3,)),
}


class NeumannHopfield(Reproduction):
    """A continuous Hopfield network learns ten images, by five ways to the gradient where it rests.

    All units see one another through one symmetric matrix; those of the image are clamped to it, as
    many others are to show it. Plain recurrent back-propagation iterates from random numbers,
    Neumann's series begins with the loss, conjugate gradients solve the squared equations, and
    back-propagation goes through all updates or the last ones. Every rule is trained at each
    learning rate with every seed, so that no choice hides where one of them fails.

    Args:
        size: of everything, in place of that of the scale.
    """

    summary: ClassVar[str] = "recurrent back-propagation by its solvers, in a Hopfield network"
    source: ClassVar[str] = f"{_LIAO}: Section 5.1 and its public code"
    hours: ClassVar[Sequence[str]] = ("mnist",)
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "ten digits of 8x8 pixels, 64 clamped, 80 hidden and 64 answering units, 300 steps; "
            "shows which solver can be trusted as the network comes near to not settling, not "
            "what it remembers at the published size; some 20 minutes of processor time with "
            "five seeds"
        ),
        "mnist": (
            "ten digits of MNIST, 784 clamped, 1,024 hidden and 784 answering units, as published, "
            "1,000 steps of all ten in place of 10,000 of one; not computed here"
        ),
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Ten images of MNIST, 50 updates, a truncation of 20; curves are drawn",
            ["statement", "published"],
            [
                ["recurrent back-propagation from random numbers", "unstable"],
                ["Neumann's series", "stable, and TBPTT of as many steps where the state rests"],
                ["memory", "does not grow with the updates"],
            ],
        ),
    )

    def __init__(self, size: Size | None = None) -> None:
        self.size = size

    def run(self, setting: Setting) -> Findings:
        """Train by every rule, at every slope and rate."""
        size = self._size(setting.scale)
        by_case: dict[Case, Trainings] = {}
        for slope in size.slopes:
            memory = size.memory(slope)
            for rate in size.rates:
                by_case[slope, rate] = {
                    label: [trained(memory, rule, rate, seed) for seed in setting.seeds]
                    for label, rule in rules(memory.updates).items()
                }
                setting.say(f"slope {slope:g}, rate {rate:g}: {_said(by_case[slope, rate])}")
        runs = Runs(tuple(_runs(by_case, size, setting)))
        return Findings(
            tables=(
                _table("Steps left out of those taken, by seed", by_case, _left_out),
                _table("Loss of whole images at the end, by seed", by_case, _losses),
                _table(
                    "Pixels wrong with half the ink gone (%), by seed", by_case, _wrongs, DAMAGED
                ),
                _table("Largest eigenvalue of an update at the end, by seed", by_case, _radii),
            ),
            runs=runs,
            comparable=(
                "the statements: images are smaller, all ten make a batch, and the published "
                "curves are of one learning rate."
            ),
            notes=notes(size),
            verdicts=tuple(self.claims(runs, setting.scale)),
            figures={"losses": _figure(by_case, len(setting.seeds))},
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """The statements at each slope, seed by seed."""
        words = _SCALES[scale]
        return [line for slope in self._size(scale).slopes for line in judged(runs, slope, words)]

    def _size(self, scale: str) -> Size:
        return SIZES[scale] if self.size is None else self.size


_SCALES = {
    "cpu": "with images and a network of a twelfth of the published size, in 3 % of the steps",
    "mnist": "with the published network, in a tenth of the steps",
}


def notes(size: Size) -> tuple[str, ...]:
    """List conditions and caveats for reading the tables."""
    rates = ", ".join(f"{rate:g}" for rate in size.rates)
    return (
        "a step is left out, and no weight moves, where the solver ends further from the gradient "
        "than an answer of zero is, or the state does not come to rest. The iteration is the only "
        f"rule that begins with numbers of order 1, and after {WINDOW - 1} steps an eigenvalue of "
        f"0.6 has left {0.6 ** (WINDOW - 1):.1g} of them and one of 0.8 {0.8 ** (WINDOW - 1):.1g}, "
        "beside a loss whose gradient is of the order of one over all pixels. Whatever is left out "
        "once is mostly left out ever after, for the weights stay.",
        f"slope: of the units; {PUBLISHED:g} is the published one, with which eigenvalues stay "
        f"small. Steeper ones, {STEEP:g}, bring the network near to not settling.",
        f"every rule is trained at every rate ({rates}) with every seed. Claims of losses take for "
        "each rule the rate that has the smallest mean over seeds, of those at which no step was "
        "left out where there is one.",
        "an image is as its file has it, ink where a pixel is brighter than half; the loss is the "
        "mean absolute difference of whole images, of which the network learns ten. Completed are "
        "the same with half of their ink gone, which is never trained; as shown, an image has as "
        "many wrong pixels as ink is gone.",
        "every seed has other images, weights and damage.",
    )


def _runs(by_case: Mapping[Case, Trainings], size: Size, setting: Setting) -> Iterator[Run]:
    for (slope, rate), trainings in by_case.items():
        for label, by_seed in trainings.items():
            for seed, training in zip(setting.seeds, by_seed, strict=True):
                measures = {
                    LEFT_OUT: len(training.left_out), WRONG: training.wrong,
                    SHOWN: training.damaged, RADIUS: training.radius,
                }  # fmt: skip
                yield Run(
                    scale=setting.scale, part=_part(slope), row=safe_name(label), seed=seed,
                    lr=rate, steps=size.steps, metric="loss", validation=training.loss,
                    test=training.loss, measures=measures,
                )  # fmt: skip


def _part(slope: float) -> str:
    return slug(f"slope {slope:g}")


class _Rule:
    """Runs of a rule at a slope, by learning rate and seed."""

    def __init__(self, runs: Runs, slope: float, label: str) -> None:
        self.runs: dict[float, dict[int, Run]] = {}
        for run in runs.rows:
            if (run.part, run.row) == (_part(slope), safe_name(label)):
                self.runs.setdefault(run.lr, {})[run.seed] = run

    def left_out(self) -> dict[int, dict[float, float]]:
        """Steps left out, by seed and rate."""
        counts: dict[int, dict[float, float]] = {}
        for rate, by_seed in self.runs.items():
            for seed, run in by_seed.items():
                counts.setdefault(seed, {})[rate] = run.measures[LEFT_OUT]
        return counts

    def best(self) -> dict[int, Run]:
        """At the rate with the smallest mean loss, of those at which no step was left out."""
        return self.runs[self._rate()] if self.runs else {}

    def _rate(self) -> float:
        def rank(rate: float) -> tuple[bool, float]:
            runs = self.runs[rate].values()
            return any(run.measures[LEFT_OUT] for run in runs), mean(run.test for run in runs)

        return min(self.runs, key=rank)

    def losses(self) -> dict[int, float]:
        """Losses at the best rate."""
        return {seed: run.test for seed, run in self.best().items()}

    def edge(self) -> str:
        """Why its loss decides nothing, where the best rate is an end of those tried."""
        return EDGE if self.runs and at_an_end(self._rate(), self.runs) else ""


def judged(runs: Runs, slope: float, scale: str) -> list[Judged]:
    """Claims at a slope, seed by seed.

    Args:
        runs: of all slopes.
        slope: of the units.
        scale: beside the published one.
    """
    where = f"slope {slope:g}: "
    of = {label: _Rule(runs, slope, label) for label in rules(WINDOW)}

    def stable(label: str) -> Judged:
        holds = tuple(not any(counts.values()) for counts in of[label].left_out().values())
        claim = f"{where}{label} leaves no step out at any rate"
        return Judged(claim, _LIAO, holds, scale=scale)

    def alike(rule: str, rival: str) -> Judged:
        apart = seed_by_seed(
            lambda a, b: (a - b) / max(a, b), of[rule].losses(), of[rival].losses()
        )
        claim = f"{where}{rule} ends within a tenth of {rival}"
        holds = tuple(abs(x) < MARGIN for x in apart.values())
        return Judged(
            claim, _LIAO, holds, differences=tuple(apart.values()), unit="of the larger loss",
            within=MARGIN, scale=scale, why_not=of[rule].edge() or of[rival].edge(),
        )  # fmt: skip

    def alone(fails: str, rival: str) -> Judged:
        failing, stable = of[fails].left_out(), of[rival].left_out()
        holds = tuple(
            any(counts[rate] and not stable[seed][rate] for rate in counts)
            for seed, counts in failing.items()
        )
        claim = f"{where}at some rate {fails} leaves steps out and {rival} none"
        return Judged(claim, _LIAO, holds, scale=scale)

    claim = f"{where}{NEUMANN} has a smaller loss than {ITERATION}"
    better = less(claim, _LIAO, of[NEUMANN].losses(), of[ITERATION].losses())
    restored = {
        seed: 100 * (run.measures[SHOWN] - run.measures[WRONG])
        for seed, run in of[NEUMANN].best().items()
    }
    completes = f"{where}{NEUMANN} completes damaged images"
    return [
        alone(ITERATION, NEUMANN),
        alone(ITERATION, CONJUGATE),
        stable(NEUMANN),
        stable(CONJUGATE),
        alike(NEUMANN, TRUNCATED),
        alike(NEUMANN, "BPTT"),
        better._replace(
            unit="of the loss", scale=scale, why_not=of[NEUMANN].edge() or of[ITERATION].edge()
        ),
        margin(completes, "ours", restored, unit="% of the pixels", scale=scale),
    ]


def _said(trainings: Trainings) -> str:
    return "; ".join(f"{label} {_losses(seeds)}" for label, seeds in trainings.items())


def _left_out(runs: Sequence[Training]) -> str:
    return ", ".join(
        f"{len(run.left_out)} from {run.left_out[0]} on" if run.left_out else "0" for run in runs
    )


def _losses(runs: Sequence[Training]) -> str:
    return ", ".join(f"{run.loss:.3g}" for run in runs)


def _wrongs(runs: Sequence[Training]) -> str:
    return ", ".join(f"{100 * run.wrong:.1f}" for run in runs)


def _radii(runs: Sequence[Training]) -> str:
    return ", ".join(f"{run.radius:.2f}" for run in runs)


def _table(title: str, by_case: Mapping[Case, Trainings], cell: Any, shown: str = "") -> Table:
    labels = list(next(iter(by_case.values())))
    rows = [
        [f"slope {slope:g}, rate {rate:g}", *(cell(runs[label]) for label in labels)]
        for (slope, rate), runs in by_case.items()
    ]
    if shown:
        for row, runs in zip(rows, by_case.values(), strict=True):
            row.append(", ".join(f"{100 * run.damaged:.1f}" for run in runs[labels[0]]))
    return Table(title, ["units and training", *labels, *([shown] if shown else [])], rows)


def _figure(by_case: Mapping[Case, Trainings], seeds: int) -> Any:
    slopes = list(dict.fromkeys(slope for slope, _ in by_case))
    rates = list(dict.fromkeys(rate for _, rate in by_case))
    figure = new_figure(3.2 * len(rates) + 0.6, 2.8 * len(slopes) + 0.4)
    panels = figure.subplots(len(slopes), len(rates), sharex=True, sharey=True, squeeze=False)
    looks = dense_styles(list(next(iter(by_case.values()))))
    for (slope, rate), runs in by_case.items():
        axes = panels[slopes.index(slope)][rates.index(rate)]
        for label, several in runs.items():
            steps = [step for step, _ in several[0].curve]
            values = zip(*([value for _, value in run.curve] for run in several), strict=True)
            means = [mean(at) for at in values]
            axes.plot(steps, means, label=label, **looks[label])
        axes.set(yscale="log", title=f"slope {slope:g}, rate {rate:g}")
        axes.grid(alpha=0.3)
    for axes in panels[-1]:
        axes.set(xlabel="steps")
    for row in panels:
        row[0].set(ylabel="loss on whole images")
    figure.suptitle(f"ten images, {over_seeds([seeds])}")
    legend_below(figure, *panels.flat)
    return figure
