"""The adding problem by an LSTM that learns part by part, beside back-propagation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.runs import Part, Runs
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs.cells import one_layer
from linrnn.reproductions._runs.sooner import Contest
from linrnn.tasks.adding import AddingOptions
from linrnn.train import Config

PARTS = 10
BATCH, PER_EPOCH = 32, 100  # sequences, and batches of an epoch
WIDTH = 32
GOAL, BASELINE = 0.01, 1 / 6
NO_PENALTY = 1e-6
"""A weight of the penalty that leaves the steps as they are without one."""

BPTT, FPTT, PLAIN = "bptt", f"fptt, {PARTS} parts", f"{PARTS} parts, no penalty"
ROWS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    BPTT: ("bptt", {}),
    FPTT: ("fptt", {"parts": PARTS, "alpha": 0.5, "beta": 0.5}),
    PLAIN: ("fptt", {"parts": PARTS, "alpha": NO_PENALTY, "beta": 0.5}),
}
"""A learner and its options; those of the second are published."""

_KAG = "Kag & Saligrama 2021, ICML, PMLR 139"


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is computed."""

    lengths: Mapping[int, Sequence[str]] = field(
        default_factory=lambda: {100: tuple(ROWS), 200: (BPTT,)}
    )
    """The rows of each length; the second, published one is for back-propagation alone."""
    epochs: int = 8
    rates: Sequence[float] = (3e-3, 1e-2)


class FPTTAdding(Reproduction):
    """An LSTM learns the adding problem with a step of the optimiser after each tenth, or one.

    Forward propagation through time asks for the sum after each part, by a loss that grows with
    what was read, and holds the weights to a running mean. The same without the penalty says what
    of it is due to asking early and stepping often. The LSTM, the batches and the learning rates
    that are tried are the same in all rows.

    Args:
        size: of everything, in place of ours.
    """

    summary: ClassVar[str] = "long adding by an LSTM: part by part, or by back-propagation"
    source: ClassVar[str] = f"{_KAG}, pages 5189-5200: the adding problem, and its public code"
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "an LSTM of 32 channels, 100 steps, and 200 for back-propagation alone, 800 batches of "
            "32 sequences; shows who learns within that, not who would later; some 13 minutes of "
            "processor time with five seeds, tuning included"
        )
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "LSTM of 128 channels, 10 parts, Adam at 0.001; curves are drawn",
            ["statement", "published"],
            [
                ["FPTT learns adding over 200 to 1,000 steps", "yes"],
                ["an LSTM by back-propagation stalls there", "yes"],
                ["memory", "of one part"],
            ],
        ),
    )

    def __init__(self, size: Size | None = None) -> None:
        self.size = Size() if size is None else size

    def run(self, setting: Setting) -> Findings:
        """Train by every rule at every length, and compare them seed by seed."""
        results = [contest(length, self.size).run(setting) for length in self.size.lengths]
        measures = {
            path: measure for result in results for path, measure in result.measures().items()
        }
        runs = Runs.of_page(setting.out, setting.scale, measures)
        return Findings(
            tables=(
                *(result.table() for result in results),
                *(result.tuned.tried for result in results),
            ),
            comparable=(
                "who learns within these batches, at these lengths and this width; the published "
                "LSTM is four times as wide, its sequences have 200 steps and more, and its "
                "batches are many more. Of 200 steps only whether back-propagation stalls is "
                "computed."
            ),
            complete=not any(result.tuned.outcome.problem for result in results),
            notes=(*NOTES, *dict.fromkeys(line for result in results for line in result.notes())),
            runs=runs,
            verdicts=tuple(self.claims(runs, setting.scale)),
            figures={
                name: figure for result in results for name, figure in result.figures().items()
            },
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """The claims of every length."""
        contests = [contest(length, self.size) for length in self.size.lengths]
        return [line for each in contests for line in judged(each, runs.part(each.name))]


NOTES = (
    f"a step of the table and of the curves is a batch. Rows of {PARTS} parts move the weights "
    f"{PARTS} times a batch and back-propagation once, so that in fewer batches is not in fewer "
    "updates: one claim counts these.",
    f"no penalty: a weight of {NO_PENALTY:g} in place of 0.5, by which the gradients of the loss "
    "are all that moves the weights.",
)


def contest(length: int, size: Size) -> Contest:
    """All rows, at a length."""
    options = AddingOptions(
        length=length, train_size=BATCH * PER_EPOCH, validation_size=256, test_size=1_000
    )
    base: Config = one_layer(
        "adding", options, d_model=WIDTH, epochs=size.epochs, batch_size=BATCH, pool="last"
    )
    base = replace(base, mixer="lstm", optim=replace(base.optim, recurrent_lr_factor=1.0))
    return Contest(
        name=f"length {length}",
        rows={
            label: replace(base, learner=ROWS[label][0], learner_options=dict(ROWS[label][1]))
            for label in size.lengths[length]
        },
        rates=size.rates,
        goal=GOAL,
        baseline=BASELINE,
    )


def judged(contest: Contest, part: Part) -> list[Judged]:
    """Claims at a length, seed by seed."""
    claims = [contest.solves(part, BPTT, f"{_KAG}, from 200 steps on", claim=False)]
    if part.has(FPTT):
        claims += [
            contest.solves(part, FPTT, _KAG),
            contest.sooner(part, FPTT, BPTT, f"{_KAG}; a step is a batch"),
            contest.better(part, FPTT, BPTT, _KAG),
            fewer_updates(contest, part, FPTT, BPTT),
        ]
    if part.has(FPTT) and part.has(PLAIN):
        worth = "ours: what the penalty is worth"
        claims += [
            contest.sooner(part, FPTT, PLAIN, worth),
            contest.better(part, FPTT, PLAIN, worth),
        ]
    return claims


def fewer_updates(contest: Contest, part: Part, parts: str, full: str) -> Judged:
    """The claim that a row of parts needs fewer optimiser steps than one of whole batches."""
    claim = f"{contest.name}: {parts} solves it in fewer updates than {full}"
    return part.sooner(parts, full, claim, "ours", updates=PARTS)
