"""Shared by the reproductions of recurrent cells: models in separate columns, and a race."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from linrnn.compare import Row
from linrnn.reproductions._page.base import Findings, Setting, Table
from linrnn.reproductions._page.beside import measured
from linrnn.reproductions._page.runs import SOLVED_AT, Runs
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs.language import curves, mean_of
from linrnn.reproductions._runs.trained import n_steps, problems, train
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig
from linrnn.train.figures import metric_scale
from linrnn.train.folder import RunFolder
from linrnn.train.metrics import read_metrics

RIVAL = "LSTM"
"""The model that the others are to beat."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A row: one layer at a learning rate."""

    mixer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    lr: float
    recurrent: float = 1.0
    """Factor of the learning rate, for parameters that a mixer names recurrent."""
    source: str
    """The source of these settings."""
    n_layers: int = 1

    def of(self, base: Config) -> Config:
        """The configuration of its runs."""
        optim = replace(base.optim, lr=self.lr, recurrent_lr_factor=self.recurrent)
        return replace(
            base,
            mixer=self.mixer,
            mixer_options=dict(self.options),
            model=replace(base.model, n_layers=self.n_layers),
            optim=optim,
        )


def one_layer(
    task: str, options: Any, *, d_model: int, epochs: int, batch_size: int, pool: str
) -> Config:
    """One layer and nothing around it but maps in and out, at a constant learning rate."""
    model = ModelConfig(
        d_model=d_model, n_layers=1, norm="none", block="bare", dropout=0.0, pool=pool
    )
    return Config(
        task=task,
        task_options=options,
        model=model,
        optim=OptimConfig(lr=1e-3, weight_decay=0.0, warmup_fraction=0.0, schedule="constant"),
        train=TrainConfig(epochs=epochs, batch_size=batch_size, threads=1),
    )


SOLVES = "solves it"
BEFORE = f"solves it before the {RIVAL}"
FAILS = "does not solve it"


class Said(NamedTuple):
    """Published statement about a model, in words."""

    words: str
    claim: str | None = None
    """The claim that seeds can test, one of the three above; None if there is none."""


NOT_PUBLISHED = Said("not published")


@dataclass(frozen=True, kw_only=True)
class Race:
    """A task, what counts as solved, and who runs."""

    name: str
    base: Config
    """Configuration of all runs, but for the layer and its learning rate."""
    models: Mapping[str, Model]
    said: Mapping[str, Said]
    """Published statement about each model."""
    goal: float
    """Validation loss below which the task is solved."""
    baseline: float
    """Loss of an answer that remembers nothing."""
    notes: Sequence[str] = ()

    def run(self, setting: Setting) -> Findings:
        """Train all, and say who was there, and before the LSTM."""
        rows = {label: model.of(self.base) for label, model in self.models.items()}
        outcome = train(self.name, rows, setting)
        rows_by_label = {row.label: row for row in outcome.rows}
        arrived = {label: arrivals(row, self.goal) for label, row in rows_by_label.items()}
        folders = [f for row in outcome.rows for f in row.folders if RunFolder(f).result.is_file()]
        measures = {folder: {SOLVED_AT: solved_at(folder, self.goal)} for folder in folders}
        runs = Runs.of_page(setting.out, setting.scale, measures=measures)
        cells = [self._cells(row, arrived[label]) for label, row in rows_by_label.items()]
        metric = outcome.task.metric
        head = [name.format(metric + metric_scale(metric)[1]) for name in _HEAD]
        return Findings(
            tables=(Table(f"{self.name}: who solves it", head, cells),),
            comparable=(
                "which models solve the task in these steps, and which first, at this width. Most "
                "were published with wider layers, larger batches and many more steps: a "
                "contradicted claim is contradicted for this budget only."
            ),
            complete=not outcome.problem,
            runs=runs,
            verdicts=tuple(self.claims(runs)),
            notes=(self._rules(), *self.notes, *problems(outcome)),
            figures=curves([outcome]),
        )

    def claims(self, runs: Runs) -> list[Judged]:
        """Judge the published words about each model that has runs."""
        part = runs.part(self.name)
        judgements = []
        for label in filter(part.has, self.models):
            words, claim = self.said[label]
            text = f"{label} {claim}"
            if claim == BEFORE and part.has(RIVAL):
                judgements.append(part.sooner(label, RIVAL, text, words))
            elif claim in (SOLVES, FAILS):
                judgements.append(part.under(label, self.goal, text, words, claim == SOLVES))
        return judgements

    def _rules(self) -> str:
        return (
            f"solved: the validation loss is below {self.goal:.3g} after an epoch; remembering "
            f"nothing gives {self.baseline:.3g}. Before the {RIVAL}: in fewer steps than that "
            "of the same seed; where neither does, neither way."
        )

    def _cells(self, row: Row, arrived: Mapping[int, float]) -> list[str]:
        model = self.models[row.label]
        results = [RunFolder(folder).read_result() for folder in row.folders]
        losses = [result.test_loss for result in results if result is not None]
        loss = f"{mean_of(losses).value / self.baseline:.3g}" if losses else "failed"
        sizes = [f"{row.n_parameters:,}", f"{n_steps(row):,}", f"{1e3 * row.seconds_per_step:.3g}"]
        ours = measured(row) if row.values else "failed"
        return [row.label, when(row, arrived), loss, ours, *sizes, f"{model.lr:g}", model.source]


_HEAD = (
    "model",
    "solved at step, by seed",
    "test loss / baseline",
    "test {}, mean ± s.e.",
    "parameters",
    "steps",
    "ms per step",
    "lr",
    "source of settings",
)


def solved_at(folder: Path, goal: float) -> float:
    """The first step of a run after which the validation loss was below a goal; inf: never."""
    rows = read_metrics(RunFolder(folder))
    return next((row.step for row in rows if row.validation_loss < goal), inf)


def arrivals(row: Row, goal: float) -> dict[int, float]:
    """`solved_at` of the runs of a row that finished, by the place of their seed."""
    finished = {
        seed: folder
        for seed, folder in enumerate(row.folders)
        if RunFolder(folder).result.is_file()
    }
    return {seed: solved_at(folder, goal) for seed, folder in finished.items()}


def when(row: Row, arrived: Mapping[int, float]) -> str:
    """The steps of `arrivals` as a cell."""
    steps = (arrived.get(seed) for seed in range(len(row.folders)))
    return ", ".join("failed" if s is None else "never" if s == inf else f"{s:,}" for s in steps)
