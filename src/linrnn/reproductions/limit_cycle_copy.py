"""A tanh network that starts on limit cycles, beside other starts, on the copy problem."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any, ClassVar

from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.runs import Part, Runs
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs.cells import one_layer
from linrnn.reproductions._runs.sooner import Contest
from linrnn.tasks.copy import CopyOptions
from linrnn.train import Config

SYMBOLS, TOKENS = 4, 5
BATCH, EPOCHS, PER_EPOCH = 32, 8, 100  # steps
WIDTH = 64
BASELINE = log(SYMBOLS)
RATES = (3e-4, 1e-3, 3e-3, 1e-2)

CYCLE, RING, ORTHOGONAL, GLOROT = "limit cycle", "rotations, gain 1", "orthogonal", "Glorot"
STARTS: Mapping[str, Mapping[str, Any]] = {
    CYCLE: {"init": "limit_cycle", "gain": 1.1},
    RING: {"init": "limit_cycle", "gain": 1.0},
    ORTHOGONAL: {"init": "orthogonal"},
    GLOROT: {"init": "glorot"},
}
"""Options of `tanh_rnn`; the second is an orthogonal matrix with the weak input of the first."""

_PARK = "Park et al. 2023, arXiv:2308.12585"


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is computed."""

    delays: Sequence[int] = (100,)
    epochs: int = EPOCHS
    rates: Sequence[float] = RATES
    starts: Sequence[str] = tuple(STARTS)


class LimitCycleCopy(Reproduction):
    """Which start of a tanh network learns to copy: limit cycles, orthogonal matrices, Glorot's.

    One layer between an embedding and a linear map reads five tokens and gives them back after a
    silence. The layer is the same in all rows, and so is the number of parameters; what differs is
    how its recurrent matrix, and with the rotations its input, are drawn. Rows are trained at the
    best of four learning rates.

    Args:
        size: of everything, in place of ours.
    """

    summary: ClassVar[str] = "copying by tanh networks that start on limit cycles, or do not"
    source: ClassVar[str] = f"{_PARK}: stable limit cycles as a start"
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "layers of 64 channels, five tokens of four symbols over 100 blanks, 800 steps "
            "of 32 sequences; shows which start learns within that, not which would later; "
            "some ten minutes of processor time with five seeds, tuning included"
        )
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Published statements about the start; no numbers are printed for our task",
            ["statement", "published"],
            [
                ["a periodic attractor can carry gradients over any time", "shown"],
                ["a start on limit cycles beats standard ones at tasks of time", "yes"],
            ],
        ),
    )

    def __init__(self, size: Size | None = None) -> None:
        self.size = Size() if size is None else size

    def run(self, setting: Setting) -> Findings:
        """Train every start at every delay, and compare them seed by seed."""
        results = [contest(delay, self.size).run(setting) for delay in self.size.delays]
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
                "which start learns sooner, at this width and within these steps; the published "
                "networks, tasks and training are others."
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
        """The claims of every delay."""
        contests = [contest(delay, self.size) for delay in self.size.delays]
        return [line for each in contests for line in judged(each, runs.part(each.name))]


NOTES = (
    "rotations: the recurrent matrix turns pairs of channels with periods of 8 to 128 steps, "
    "the layer's own and not tuned, and the input is a tenth as strong as Glorot's. With a gain of "
    "1.1 a pair that is moved from 0 comes to turn for ever at one size; with a gain of 1 the "
    "matrix is orthogonal and a pair comes to rest, slowly. So the first two rows differ by the "
    "gain alone, and the second and the third by the input and by how angles are drawn.",
    "a loss is that of the tokens alone, which are the targets, one a step, after the silence; the "
    "marker stands at each of them.",
)


def contest(delay: int, size: Size) -> Contest:
    """All starts, at a delay."""
    options = CopyOptions(
        length=delay,
        n_tokens=TOKENS,
        vocabulary=SYMBOLS + 2,
        markers="all",
        train_size=BATCH * PER_EPOCH,
        validation_size=256,
        test_size=1_000,
    )
    base: Config = one_layer(
        "copy", options, d_model=WIDTH, epochs=size.epochs, batch_size=BATCH, pool="none"
    )
    base = replace(base, mixer="tanh_rnn", optim=replace(base.optim, recurrent_lr_factor=1.0))
    return Contest(
        name=f"delay {delay}",
        rows={label: replace(base, mixer_options=dict(STARTS[label])) for label in size.starts},
        rates=size.rates,
        goal=BASELINE / 2,
        baseline=BASELINE,
        does="halves the loss of guessing",
        does_not="does not halve the loss of guessing",
    )


def judged(contest: Contest, part: Part) -> list[Judged]:
    """Claims at a delay, seed by seed."""
    rivals = {ORTHOGONAL: _PARK, GLOROT: _PARK, RING: "ours: is it the cycle, or the weak input?"}
    trained = {rival: where for rival, where in rivals.items() if part.has(rival)}
    return [
        contest.solves(part, CYCLE, _PARK),
        *(contest.sooner(part, CYCLE, rival, where) for rival, where in trained.items()),
        *(contest.better(part, CYCLE, rival, where) for rival, where in trained.items()),
    ]
