"""Recurrent back-propagation by its solvers, on a Hopfield network that completes images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, ClassVar, Literal

from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs.hopfield import PUBLISHED, Memory, Rule, Run, trained
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
Runs = Mapping[str, Sequence[Run]]
"""By rule, one for each seed."""


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
        size = SIZES[setting.scale] if self.size is None else self.size
        runs_by_case: dict[Case, Runs] = {}
        for slope in size.slopes:
            memory = size.memory(slope)
            for rate in size.rates:
                runs_by_case[slope, rate] = {
                    label: [trained(memory, rule, rate, seed) for seed in setting.seeds]
                    for label, rule in rules(memory.updates).items()
                }
                setting.say(f"slope {slope:g}, rate {rate:g}: {_said(runs_by_case[slope, rate])}")
        best = {slope: chosen(runs_by_case, slope) for slope in size.slopes}
        return Findings(
            tables=(
                _table("Steps left out of those taken, by seed", runs_by_case, _left_out),
                _table("Loss of whole images at the end, by seed", runs_by_case, _losses),
                _table(
                    "Pixels wrong with half the ink gone (%), by seed",
                    runs_by_case,
                    _wrongs,
                    DAMAGED,
                ),
                _table("Largest eigenvalue of an update at the end, by seed", runs_by_case, _radii),
            ),
            comparable=(
                "the statements: images are smaller, all ten make a batch, and the published "
                "curves are of one learning rate."
            ),
            notes=notes(size),
            verdicts=tuple(
                line for slope in size.slopes for line in judged(runs_by_case, slope, best)
            ),
            figures={"losses": _figure(runs_by_case, len(setting.seeds))},
        )


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


def chosen(runs_by_case: Mapping[Case, Runs], slope: float) -> dict[str, float]:
    """For each rule the rate with the smallest mean loss, among those without a step left out."""
    rates = [rate for case_slope, rate in runs_by_case if case_slope == slope]

    def rank(label: str, rate: float) -> tuple[bool, float]:
        runs = runs_by_case[slope, rate][label]
        return any(run.left_out for run in runs), mean(run.loss for run in runs)

    labels = list(runs_by_case[slope, rates[0]])
    return {label: min(rates, key=lambda rate: rank(label, rate)) for label in labels}


def judged(
    runs_by_case: Mapping[Case, Runs], slope: float, best: Mapping[float, Mapping[str, float]]
) -> list[Judged]:
    """Claims at a slope, seed by seed."""
    cases = [runs for (case_slope, _), runs in runs_by_case.items() if case_slope == slope]
    seeds = range(len(cases[0][NEUMANN]))
    best_runs = {label: runs_by_case[slope, rate][label] for label, rate in best[slope].items()}

    def stable(label: str) -> Judged:
        holds = tuple(not any(runs[label][i].left_out for runs in cases) for i in seeds)
        return Judged(f"slope {slope:g}: {label} leaves no step out at any rate", _LIAO, holds)

    def alike(rule: str, rival: str) -> Judged:
        pairs = [(best_runs[rule][i].loss, best_runs[rival][i].loss) for i in seeds]
        holds = tuple(abs(a - b) < MARGIN * max(a, b) for a, b in pairs)
        return Judged(f"slope {slope:g}: {rule} ends within a tenth of {rival}", _LIAO, holds)

    def alone(fails: str, rival: str) -> Judged:
        holds = tuple(
            any(runs[fails][i].left_out and not runs[rival][i].left_out for runs in cases)
            for i in seeds
        )
        claim = f"slope {slope:g}: at some rate {fails} leaves steps out and {rival} none"
        return Judged(claim, _LIAO, holds)

    better = tuple(best_runs[NEUMANN][i].loss < best_runs[ITERATION][i].loss for i in seeds)
    completed = tuple(run.wrong < run.damaged for run in best_runs[NEUMANN])
    return [
        alone(ITERATION, NEUMANN),
        alone(ITERATION, CONJUGATE),
        stable(NEUMANN),
        stable(CONJUGATE),
        alike(NEUMANN, TRUNCATED),
        alike(NEUMANN, "BPTT"),
        Judged(f"slope {slope:g}: {NEUMANN} has a smaller loss than {ITERATION}", _LIAO, better),
        Judged(f"slope {slope:g}: {NEUMANN} completes damaged images", "ours", completed),
    ]


def _said(runs: Runs) -> str:
    return "; ".join(f"{label} {_losses(seeds)}" for label, seeds in runs.items())


def _left_out(runs: Sequence[Run]) -> str:
    return ", ".join(
        f"{len(run.left_out)} from {run.left_out[0]} on" if run.left_out else "0" for run in runs
    )


def _losses(runs: Sequence[Run]) -> str:
    return ", ".join(f"{run.loss:.3g}" for run in runs)


def _wrongs(runs: Sequence[Run]) -> str:
    return ", ".join(f"{100 * run.wrong:.1f}" for run in runs)


def _radii(runs: Sequence[Run]) -> str:
    return ", ".join(f"{run.radius:.2f}" for run in runs)


def _table(title: str, runs_by_case: Mapping[Case, Runs], cell: Any, shown: str = "") -> Table:
    labels = list(next(iter(runs_by_case.values())))
    rows = [
        [f"slope {slope:g}, rate {rate:g}", *(cell(runs[label]) for label in labels)]
        for (slope, rate), runs in runs_by_case.items()
    ]
    if shown:
        for row, runs in zip(rows, runs_by_case.values(), strict=True):
            row.append(", ".join(f"{100 * run.damaged:.1f}" for run in runs[labels[0]]))
    return Table(title, ["units and training", *labels, *([shown] if shown else [])], rows)


def _figure(runs_by_case: Mapping[Case, Runs], seeds: int) -> Any:
    slopes = list(dict.fromkeys(slope for slope, _ in runs_by_case))
    rates = list(dict.fromkeys(rate for _, rate in runs_by_case))
    figure = new_figure(3.2 * len(rates) + 0.6, 2.8 * len(slopes) + 0.4)
    panels = figure.subplots(len(slopes), len(rates), sharex=True, sharey=True, squeeze=False)
    looks = dense_styles(list(next(iter(runs_by_case.values()))))
    for (slope, rate), runs in runs_by_case.items():
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
