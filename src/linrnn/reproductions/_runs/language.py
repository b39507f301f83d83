"""Shared by reproductions of language models: the text, and losses in nats per token."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from linrnn.compare import Row
from linrnn.compare.report import learning_curves
from linrnn.compare.standard_error import standard_error
from linrnn.reproductions._page.quoted import Printed
from linrnn.reproductions._page.runs import slug
from linrnn.reproductions._page.verdict import groups, printed_order
from linrnn.reproductions._runs.trained import Outcome
from linrnn.train import Config, ModelConfig, OptimConfig, PositionLoss, TrainConfig
from linrnn.train.folder import RunFolder
from linrnn.train.model import load_model
from linrnn.train.positions import measure_positions

TEXT_NOTE = (
    "the text is tiny Shakespeare, 1,115,394 bytes, of which the last tenth is validation and test "
    "in one, as is usual; all of it is ASCII, so a byte is a character. A best test loss is of the "
    "weights with the best loss on the same text, and learning rates that are tuned are chosen on "
    "it too, so it is a little too good, for all alike."
)
CUT_NOTE = (
    "the text is tiny Shakespeare, 1,115,394 bytes, all of it ASCII, so a byte is a character; of "
    "its last tenth the first half is validation, by which learning rates and weights are chosen, "
    "and the second half is the test."
)
CUT: Mapping[str, Any] = {"validation": 0.05, "test": 0.05}
"""Options of the task where `CUT_NOTE` is true."""

RATES = (0.001, 0.003, 0.01, 0.03)
"""Learning rates that are tried where pages stand side by side; the second is the recipe's."""

Curve: TypeAlias = Sequence[PositionLoss]
BothWays: TypeAlias = Mapping[tuple[str, bool], Mapping[int, Curve]]
"""By label, and whether the state was kept from window to window, the loss by position in a window,
for the place of each seed."""


@dataclass(frozen=True)
class Mean:
    """A mean over seeds and its standard error, NaN for a single one."""

    value: float
    error: float

    @property
    def text(self) -> str:
        """The mean and its error as a cell of a table.

        Example:
            >>> Mean(1.5481, 0.0021).text, Mean(1.5, math.nan).text
            ('1.548 ± 0.002', '1.500')
        """
        error_text = "" if math.isnan(self.error) else f" ± {self.error:.3f}"
        return f"{self.value:.3f}{error_text}"


def mean_of(values: Sequence[float]) -> Mean:
    """The mean of one value a seed.

    Example:
        >>> mean_of([1.0, 3.0])
        Mean(value=2.0, error=1.0)
    """
    return Mean(statistics.fmean(values), standard_error(values))


def test_nats(row: Row) -> Mean | None:
    """Test loss in nats per token over the seeds; None if none finished."""
    results = [RunFolder(folder).read_result() for folder in row.folders]
    losses = [result.test_loss for result in results if result is not None]
    return mean_of(losses) if losses else None


def nats_by_seed(row: Row) -> dict[int, float]:
    """Test loss in nats per token of the runs that finished, by the place of their seed."""
    results = [RunFolder(folder).read_result() for folder in row.folders]
    return {seed: result.test_loss for seed, result in enumerate(results) if result is not None}


def losses_of(outcome: Outcome) -> dict[str, dict[int, float]]:
    """`nats_by_seed` of every row that has a run that finished."""
    return {row.label: nats for row in outcome.rows if (nats := nats_by_seed(row))}


def orders(ours: Mapping[str, Mapping[int, float]], printed: Printed) -> list[str]:
    """A note of two orders, smallest loss first: the printed one and ours; none of a single row.

    Args:
        ours: losses by row and by the place of the seed.
        printed: numbers of which the smallest is the best, by row.
    """
    if len(ours) < 2:
        return []
    theirs = printed_order({name: printed[name] for name in printed if name in ours}, False)
    return [
        f"smallest loss first: published {theirs} (> where no errors overlap); ours "
        f"{groups(ours, False)} (> where smaller with every seed)."
    ]


def read_both_ways(rows: Sequence[Row], streams: int) -> BothWays:
    """Test every trained model with its state kept and with it cleared at every window.

    Args:
        rows: models that failed are left out.
        streams: as many rows the test text is read in.
    """
    curves: dict[tuple[str, bool], dict[int, Curve]] = {}
    for row in rows:
        for seed, folder in enumerate(row.folders):
            if not (folder / "result.json").is_file():
                continue
            model, task, _ = load_model(folder)
            for carry in (True, False):
                curve = measure_positions(model, task, streams, carry=carry)
                curves.setdefault((row.label, carry), {})[seed] = curve
    return curves


def whole(curve: Curve, first: int = 1) -> float:
    """Mean loss over all positions of a window from one on, which begins a part of the curve."""
    sizes = [(p.loss, p.last - p.first + 1) for p in curve if p.first >= first]
    return sum(loss * n for loss, n in sizes) / sum(n for _, n in sizes)


def curves(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Learning curves of every column in which a run has finished, by name of their file."""
    return {
        f"curves-{slug(outcome.column.name)}": learning_curves(outcome.rows, outcome.task)
        for outcome in outcomes
        if any(row.values for row in outcome.rows)
    }


def best_steps(row: Row) -> str:
    """The step with the best validation of every seed."""
    results = [RunFolder(folder).read_result() for folder in row.folders]
    return ", ".join(f"{result.best_step:,}" for result in results if result is not None)


def small(length: int, batch_tokens: int, epochs: int, d_model: int, n_layers: int) -> Config:
    """A language model for a CPU; all models of a comparison share it but for the mixer.

    Args:
        length: tokens of a window.
        batch_tokens: tokens of a batch, so that all lengths have as many updates.
        epochs, d_model, n_layers: as in `Config`.
    """
    from linrnn.tasks.lm import LMOptions

    return Config(
        task="lm",
        task_options=LMOptions(length=length),
        model=ModelConfig(
            d_model=d_model,
            n_layers=n_layers,
            norm="rms",
            block="mlp",
            dropout=0.1,
            pool="none",
            final_norm=True,
        ),
        optim=OptimConfig(lr=2e-3, weight_decay=0.1),
        train=TrainConfig(epochs=epochs, batch_size=batch_tokens // length, threads=1),
    )


def with_model(
    config: Config, mixer: str, *, mixer_options: dict[str, Any] | None = None, **changes: Any
) -> Config:
    """The configuration with a mixer, its options, and other fields of the model."""
    model = replace(config.model, **changes)
    return replace(config, mixer=mixer, mixer_options=mixer_options or {}, model=model)
