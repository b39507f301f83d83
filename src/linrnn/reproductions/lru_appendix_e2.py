"""Whether a linear RNN learns faster than one with tanh."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

from linrnn.compare import Row
from linrnn.compare.tune import at_rate
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.beside import findings
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs.cells import when
from linrnn.reproductions._runs.trained import Column, Outcome, train
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig
from linrnn.train.figures import clip_outliers, legend_below, new_figure, over_seeds
from linrnn.train.folder import RunFolder
from linrnn.train.metrics import read_metrics
from linrnn.train.styles import styles

MIXERS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "linear": ("linear_rnn", {}),
    "tanh": ("tanh_rnn", {"bias": False}),
}
PART, SPEED = "convolution", "mean decade of the error"
"""A curve as one number: the mean over all steps of log10 of the training error."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """The printed size, and our choices where the paper prints none."""

    d_state: int = 100
    """Hidden units, as published."""
    steps: int = 1_000
    """Steps of Adam, each on all 32 sequences."""
    lrs: tuple[float, ...] = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
    """Learning rates; each model is judged at its best."""
    reached: float = 0.01
    """Fraction of the error of always answering 0 below which a model counts as having learned."""


class LRUAppendixE2(Reproduction):
    """Learning curves of a linear RNN and a tanh RNN on a long convolution.

    The target is the convolution of 32 inputs of 100 steps with a kernel that oscillates and
    decays; see the task `convolution`. A single recurrent layer reads them and is the output: no
    map in front of it or behind it is learned, and there is no skip over it.

    Args:
        size: of the experiment.
    """

    summary: ClassVar[str] = "linear and tanh RNN learning a convolution: which is faster"
    source: ClassVar[str] = "Orvieto et al. 2023, arXiv:2303.06349, appendix E.2"
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "100 hidden units, 32 sequences of 100 steps and Adam, as published; shows the claim, "
            "which is the order of two curves"
        )
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Statement on the learning curves; no number is printed",
            ["model", "learns"],
            [["linear RNN", "faster"], ["tanh RNN", "slower"]],
        ),
    )

    def __init__(self, size: Size | None = None) -> None:
        self.size = size or Size()

    def run(self, setting: Setting) -> Findings:
        """Train both with several learning rates."""
        size = self.size
        base = _config(size)
        column = Column(name=PART, config=base, paper=base, steps=size.steps)
        rows = {
            at_rate(name, lr): _row(base, mixer, options, lr)
            for name, (mixer, options) in MIXERS.items()
            for lr in size.lrs
        }
        outcome = train(column, rows, setting)
        threshold = size.reached * outcome.task.chance
        page = findings([outcome], {}, notes=_NOTES, figures=_figures(outcome, threshold))
        caveat = _COMPARABLE if page.figures else page.comparable
        speeds = {
            row.folders[seed]: {SPEED: _mean_decade(curve)}
            for row in outcome.rows
            for seed, curve in _curves(row).items()
        }
        runs = Runs.of_page(setting.out, setting.scale, measures=speeds)
        return replace(
            page,
            tables=(_speed(outcome, size, threshold), *page.tables),
            comparable=caveat,
            runs=runs,
            verdicts=tuple(self.claims(runs, setting.scale)),
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """Whether the linear RNN's mean error over all steps is lower, each at its best rate."""
        part = runs.part(PART, scale="")
        if not part.has(*MIXERS):
            return []
        words = "the linear RNN learns faster than tanh"
        judged = part.claim("linear", "tanh", words, "by curves", measure=SPEED)
        return [judged._replace(unit="decades of the mean error")]


_COMPARABLE = (
    "which of the two learns faster; sizes and optimiser are the published ones, the numbers that "
    "make the inputs, the learning rates and the number of steps are ours."
)
_NOTES = (
    "input, recurrence of 100 units, output, and nothing around them: a learned map of one number "
    "to one in front has a random bias, which drives a linear recurrence of radius 1 away. No "
    "schedule, no weight decay, no clipping.",
    "faster is who has the lower error over all steps, as the mean of its logarithm, each at the "
    "learning rate with the lowest validation error of the first seed.",
)


def _config(size: Size) -> Config:
    return Config(
        task="convolution",
        mixer="linear_rnn",
        mixer_options={"d_state": size.d_state},
        model=ModelConfig(
            d_model=1,
            n_layers=1,
            norm="none",
            block="bare",
            skip=False,
            identity_ends="both",
            dropout=0.0,
            pool="none",
        ),
        optim=OptimConfig(
            lr=1e-3,
            recurrent_lr_factor=1.0,
            weight_decay=0.0,
            warmup_fraction=0.0,
            schedule="constant",
            clip=0.0,
        ),
        train=TrainConfig(epochs=size.steps, batch_size=32, threads=1),
    )


def _row(base: Config, mixer: str, options: Mapping[str, Any], lr: float) -> Config:
    return replace(
        base,
        mixer=mixer,
        mixer_options={**base.mixer_options, **options},
        optim=replace(base.optim, lr=lr),
    )


Curve: TypeAlias = Sequence[tuple[int, float]]
"""Step and training error."""


def _curves(row: Row) -> dict[int, Curve]:
    """Read the training curves of the seeds that finished, by index."""
    folders = enumerate(map(RunFolder, row.folders))
    finished = {seed: read_metrics(folder) for seed, folder in folders if folder.result.is_file()}
    return {seed: [(r.step, r.train_loss) for r in run] for seed, run in finished.items()}


def _speed(outcome: Outcome, size: Size, threshold: float) -> Table:
    """When each row has learned, in steps."""
    rows_by_label = {row.label: row for row in outcome.rows}
    rows = []
    for label in outcome.labels:
        curves = _curves(rows_by_label[label]) if label in rows_by_label else {}
        steps = {seed: _reached(curve, threshold) or math.inf for seed, curve in curves.items()}
        low = list(map(_lowest, curves.values()))
        best = f"{statistics.fmean(low):.2g}" if low else "failed"
        rows.append(
            [
                label,
                when(rows_by_label[label], steps) if label in rows_by_label else "not run",
                best,
            ]
        )
    reached = f"steps to a training MSE of {threshold:.2g}, seed by seed, in {size.steps:,}"
    head = ["model", reached, "mean over seeds of the lowest MSE"]
    return Table(f"Steps until the error is {size.reached:.0%} of that of answering 0", head, rows)


def _reached(curve: Curve, threshold: float) -> int | None:
    """The first step at which an error is no more than that; None: there is none."""
    return next((step for step, loss in curve if loss <= threshold), None)


def _mean_decade(curve: Curve) -> float:
    return statistics.fmean(math.log10(loss) for _, loss in curve)


def _lowest(curve: Curve) -> float:
    return min(loss for _, loss in curve)


def _figures(outcome: Outcome, threshold: float) -> dict[str, Any]:
    if not any(row.values for row in outcome.rows):
        return {}
    figure = new_figure(9.6, 4.4)
    axes = figure.subplots()
    rows = [row for row in outcome.rows if row.values]
    looks = styles([row.label for row in rows])
    for row in rows:
        style = {**looks[row.label], "markevery": 0.1}
        curves = list(_curves(row).values())
        steps = [s for s, _ in curves[0]]
        means = [
            statistics.fmean(v) for v in zip(*([x for _, x in c] for c in curves), strict=True)
        ]
        axes.plot(steps, means, label=row.label, **style)
    axes.axhline(outcome.task.chance, color="0.5", linestyle=":", label="always 0")
    axes.axhline(threshold, color="0.5", linestyle="--", label="learned")
    axes.set(xlabel="step of Adam", ylabel="training MSE", yscale="log")
    axes.set(title=over_seeds(len(row.values) for row in rows))
    axes.grid(alpha=0.3)
    legend_below(figure, axes)
    clip_outliers(axes, "low")
    return {"curves": figure}
