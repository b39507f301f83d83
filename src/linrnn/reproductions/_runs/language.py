"""Shared by reproductions of language models: the text, and losses in nats per token."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from linrnn.compare import Row
from linrnn.compare.report import learning_curves
from linrnn.compare.standard_error import standard_error
from linrnn.reproductions._page.quoted import Printed
from linrnn.reproductions._page.runs import Part, seed_by_seed, slug
from linrnn.reproductions._page.verdict import (
    NOT_KEPT,
    Judged,
    groups,
    margin,
    printed_order,
    steps,
)
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

NATS = "nats per character"
"""Unit of differences between losses; all texts are ASCII, and tokens are bytes."""
LOSS = "test_loss"
"""Field of a run: its loss on the test, in nats per token."""

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


def lower_nats(
    part: Part,
    label: str,
    rival: str,
    text: str,
    published: str,
    *,
    measure: str = LOSS,
    printed: float = math.nan,
) -> Judged:
    """The claim that a row has a smaller loss than another, in nats.

    Args:
        part: a text at one size.
        label, rival: the rows.
        text: the claim in words.
        published: the numbers or words it rests on.
        measure: a loss in nats per token of each run.
        printed: the published difference, if it is in nats per character too.
    """
    losses = part.values(rival, measure), part.values(label, measure)
    return _gain(text, published, losses, part, (label, rival))._replace(printed=printed)


def longer_windows(
    name: str, ends: tuple[Part, Part], text: str, published: str, *, gains: bool
) -> Judged:
    """The claim that a row has a smaller loss with longer windows, or a larger one.

    Args:
        name: of the row.
        ends: the same text in short windows, and in long ones.
        text: the claim in words.
        published: the numbers or words it rests on.
        gains: whether the loss with longer windows is claimed to be the smaller one.
    """
    short, long = (part.values(name, LOSS) for part in ends)
    losses = (short, long) if gains else (long, short)
    judged = _gain(text, published, losses, ends[0], (name,))
    return judged._replace(why_not=judged.why_not or ends[1].why_not(name))


def kept_state(part: Part, label: str, first: int, text: str, published: str) -> Judged:
    """The claim that a kept state lowers the loss of a row from a place of a window on.

    Args:
        part: a text whose runs have `measured_both_ways`.
        label: of the row.
        first: of the places that count.
        text: the claim in words.
        published: the numbers or words it rests on.
    """
    losses = part.values(label, loss_from(first, False)), part.values(label, loss_from(first, True))
    return _gain(text, published, losses, part, (label,))


def _gain(
    text: str,
    published: str,
    losses: tuple[Mapping[int, float], Mapping[int, float]],
    part: Part,
    labels: Sequence[str],
) -> Judged:
    """The claim that the second of two losses is the smaller one."""
    gains = seed_by_seed(lambda larger, smaller: larger - smaller, *losses)
    why = part.why_not(*labels) if gains else NOT_KEPT
    return margin(text, published, gains, unit=NATS, scale=part.scale, why_not=why)


def loss_order(
    part: Part, printed: Printed, *, measure: str = LOSS, in_nats: bool = False
) -> list[Judged]:
    """The claims of a printed column whose smallest number is the best.

    Args:
        part: a text at one size.
        printed: numbers by row.
        measure: a loss in nats per token of each run; rows without it are left out.
        in_nats: whether the printed numbers are nats per character too.
    """
    compared = {label: printed[label] for label in printed if part.values(label, measure)}
    verdicts = []
    for better, worse in steps(compared, higher_is_better=False):
        first, second = compared[better], compared[worse]
        difference = second.value - first.value if in_nats else math.nan
        words = f"{better} is better than {worse}", f"{first.text} against {second.text}"
        judged = lower_nats(part, better, worse, *words, measure=measure, printed=difference)
        verdicts.append(judged)
    return verdicts


def losses_by_row(
    part: Part, labels: Sequence[str], measure: str = LOSS
) -> dict[str, dict[int, float]]:
    """Losses of the rows that have any, by seed."""
    return {label: losses for label in labels if (losses := part.values(label, measure))}


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


def measured_both_ways(
    rows: Sequence[Row], read: BothWays, first: int
) -> dict[Path, dict[str, float]]:
    """Measures of runs by their folder: losses with the state kept, and with it cleared.

    Args:
        rows: that were read.
        read: their losses.
        first: place of a window from which on losses are measured besides those of all.
    """
    measures: dict[Path, dict[str, float]] = {}
    for row in rows:
        for carry, start in itertools.product((True, False), (1, first)):
            for seed, curve in read.get((row.label, carry), {}).items():
                losses = measures.setdefault(row.folders[seed], {})
                losses[loss_from(start, carry)] = whole(curve, start)
    return measures


def loss_from(first: int, carry: bool) -> str:
    """Name of a measure of `measured_both_ways`.

    Example:
        >>> loss_from(1, True), loss_from(128, False)
        ('loss, state kept', 'loss from 128 on, state cleared')
    """
    where = f"loss from {first} on" if first > 1 else "loss"
    return f"{where}, state {'kept' if carry else 'cleared'}"


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
