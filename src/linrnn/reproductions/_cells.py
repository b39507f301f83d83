"""What the reproductions of recurrent cells share: models in columns of their own, and a race."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from linrnn.compare import Row
from linrnn.reproductions._base import Findings, Setting, Table
from linrnn.reproductions._beside import measured
from linrnn.reproductions._language import curves, mean_of
from linrnn.reproductions._trained import n_steps, problems, train
from linrnn.reproductions._verdict import Judged
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig
from linrnn.train._folder import RunFolder
from linrnn.train._metrics import read_metrics

RIVAL = "LSTM"
"""Whom the others are to beat."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A row: one layer at a learning rate."""

    mixer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    lr: float
    recurrent: float = 1.0
    """Of the learning rate, for parameters that a mixer names recurrent."""
    source: str
    """Whose settings these are."""
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
        optim=OptimConfig(weight_decay=0.0, warmup_fraction=0.0, schedule="constant"),
        train=TrainConfig(epochs=epochs, batch_size=batch_size, threads=1),
    )


@dataclass(frozen=True, kw_only=True)
class Race:
    """A task, what counts as solved, and who runs."""

    name: str
    base: Config
    """Of all runs, but for the layer and its learning rate."""
    models: Mapping[str, Model]
    said: Mapping[str, str]
    """What is published of each."""
    goal: float
    """Validation loss below which the task is solved."""
    baseline: float
    """Loss of an answer that remembers nothing."""
    notes: Sequence[str] = ()

    def run(self, setting: Setting) -> Findings:
        """Train all, and say who was there before the LSTM."""
        rows = {label: model.of(self.base) for label, model in self.models.items()}
        outcome = train(self.name, rows, setting)
        found = {row.label: row for row in outcome.rows}
        arrived = {label: [solved_at(folder, self.goal) for folder in row.folders]
                   for label, row in found.items()}  # fmt: skip
        cells = [self._cells(row, arrived[label]) for label, row in found.items()]
        return Findings(
            tables=(Table(f"{self.name}: who solves it", _HEAD, cells),),
            comparable=(
                "who solves the task within these steps and who does so first, at this width; most "
                "were published with wider layers, larger batches and many more steps, so that "
                "contradicted is said of this budget alone."
            ),
            complete=not outcome.problem,
            verdicts=tuple(judged(label, arrived, self.said[label]) for label in found),
            notes=(self._rules(), *self.notes, *problems(outcome)),
            figures=curves([outcome]),
        )

    def _rules(self) -> str:
        return (
            f"solved: the validation loss is below {self.goal:.3g} after an epoch; remembering "
            f"nothing gives {self.baseline:.3g}. The LSTM is claimed not to solve it, the others "
            "to solve it, in fewer steps than the LSTM of the same seed if that does."
        )

    def _cells(self, row: Row, arrived: Sequence[int | None]) -> list[str]:
        model = self.models[row.label]
        done = [RunFolder(folder).read_result() for folder in row.folders]
        losses = [result.test_loss for result in done if result is not None]
        loss = f"{mean_of(losses).value / self.baseline:.3g}" if losses else "failed"
        steps = ", ".join("never" if at is None else f"{at:,}" for at in arrived)
        sizes = [f"{row.n_parameters:,}", f"{n_steps(row):,}", f"{1e3 * row.seconds_per_step:.3g}"]
        ours = measured(row) if row.values else "failed"
        return [row.label, steps, loss, ours, *sizes, f"{model.lr:g}", model.source]


_HEAD = (
    "model",
    "solved at step, by seed",
    "test loss, of the baseline's",
    "test metric, mean ± s.e.",
    "parameters",
    "steps",
    "ms per step",
    "lr",
    "settings of",
)


def solved_at(folder: Path, goal: float) -> int | None:
    """The first step of a run after which the validation loss was below a goal; None: never."""
    if not (folder / "metrics.csv").is_file():
        return None
    rows = read_metrics(RunFolder(folder))
    return next((row.step for row in rows if row.validation_loss < goal), None)


def judged(label: str, arrived: Mapping[str, Sequence[int | None]], said: str) -> Judged:
    """A model's claim, by its seeds.

    Args:
        label: of the model.
        arrived: the step at which each seed of each model solved the task; None: it did not.
        said: what is published of it.
    """
    own = arrived[label]
    if label == RIVAL:
        return Judged(f"{label} does not solve it", said, tuple(at is None for at in own))
    never: list[int | None] = [None] * len(own)
    return Judged(f"{label} solves it first", said, earlier(own, arrived.get(RIVAL, never)))


def earlier(own: Sequence[int | None], rival: Sequence[int | None]) -> tuple[bool, ...]:
    """Whether each seed solved the task, and before the rival's same seed if that did.

    Example:
        >>> earlier([200, 400, None, 300], [None, 400, None, 500])
        (True, False, False, True)
    """
    pairs = zip(own, rival, strict=True)
    return tuple(mine is not None and (at is None or mine < at) for mine, at in pairs)
