"""Score a trained model, on sequences as long as in training or of other lengths."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from linrnn.backbone import Model
from linrnn.errors import ArgumentError, NonFiniteError, check_positive_int
from linrnn.tasks import Task
from linrnn.train._outputs import CHUNK, answers, carried_answers, why_not_streamed
from linrnn.train.checkpoint import write_atomically
from linrnn.train.config import Config
from linrnn.train.context import InFolder, Trained, open_run
from linrnn.train.data import Batch, check_memory, eval_loader, size_of, unpack
from linrnn.train.figures import metric_against_length, save

_READ = 2**16  # steps a model reads at once, over all rows of a batch
_HELD_STEPS = 2**21  # of sequences in memory, which are smaller than what is computed of them


@dataclass(frozen=True, kw_only=True)
class Score:
    """Loss and metric over a data set."""

    loss: float
    metric: float
    metric_name: str
    examples: int
    standard_error: float
    """Standard error of the metric over the examples; NaN for a single one."""
    side_metrics: Mapping[str, float] = field(default_factory=dict)
    """Other metrics of the same predictions, by name: see `Task.side_metrics`."""


@dataclass(frozen=True, kw_only=True)
class LengthScore:
    """The test of a run at one length."""

    length: int
    """The requested length: the task's option ``length``."""
    steps: int
    """Steps of the longest sequence."""
    chance: float
    """The metric of guessing at this length."""
    score: Score


class Tally:
    """Loss and metric of one model, batch by batch."""

    def __init__(self, task: Task) -> None:
        self.task, self._loss = task, 0.0
        self._scores: list[Tensor] = []

    def add(self, y: Tensor, target: Tensor, scores: Tensor | None = None) -> None:
        """Count what a model answers to a batch.

        Args:
            y, target: outputs and targets.
            scores: of the batch; None takes those of the outputs.

        Raises:
            NonFiniteError: its loss is not finite.
        """
        value = self.task.loss(y, target).item()
        scores = self.task.scores(y, target) if scores is None else scores
        self._scores.append(scores.double().cpu())
        if not math.isfinite(value):
            raise NonFiniteError(
                f"{type(self.task).__name__}: the loss of what the model answers must be finite, "
                f"got {value} in batch {len(self._scores)}. Its data or its length is beyond what "
                "the model can follow."
            )
        self._loss += value * len(target)

    @property
    def contributions(self) -> Tensor:
        """(examples,): numbers whose mean is the metric, of one batch at least."""
        return self.task.contributions(torch.cat(self._scores))

    def score(self) -> Score:
        """The score of all batches so far, one at least."""
        scores = torch.cat(self._scores)
        every = self.task.contributions(scores)
        n = len(every)
        return Score(
            loss=self._loss / n,
            metric=every.sum().item() / n,
            metric_name=self.task.metric,
            examples=n,
            standard_error=every.std().item() / math.sqrt(n) if n > 1 else math.nan,
            side_metrics=self.task.side_metrics(scores),
        )


@torch.no_grad()
def each(model: Model, task: Task, batches: Iterable[Batch]) -> Tensor:
    """Numbers (examples,) of some batches whose mean is the metric.

    Raises:
        NonFiniteError: as `score`.
    """
    tally = Tally(task)
    for batch in batches:
        tally.add(*answers(model, batch, None))
    return tally.contributions


@torch.no_grad()
def score(
    run: InFolder,
    data: Dataset[Any],
    *,
    rows: int | None = None,
    examples: int | None = None,
    chunk: int | None = None,
    carry: bool = False,
) -> Score:
    """Loss and metric of a run's model, in evaluation mode, over a data set.

    Args:
        run: whose model and task.
        data: that fits them.
        rows: of a batch. Default: as in training.
        examples: how many are used, spread evenly over the data set; None uses all.
        chunk: steps that are read at a time, with the state carried over; None reads whole
            sequences.
        carry: let each example begin with the state of the one before; takes them all.

    Raises:
        NonFiniteError: the loss of a batch is not finite; its metric would count NaN as an answer.
    """
    model, task = run.model, run.task
    rows = run.config.train.batch_size if rows is None else rows
    count = size_of(data, "evaluation data")
    check_memory(
        model, task, min(rows, examples or count, count), steps=chunk, examples=count * carry
    )
    tally = Tally(task)
    batches = map(unpack, eval_loader(data, rows, examples, contiguous=carry))
    if carry:
        for y, target in carried_answers(model, batches):
            tally.add(y, target)
        return tally.score()
    for batch in batches:
        decoded = task.decoded_scores(model, batch.x, batch.target) if task.decodes else None
        tally.add(*answers(model, batch, chunk), decoded)
    return tally.score()


def evaluate(
    run: Path | str, *, length: int | None = None, examples: int | None = None
) -> tuple[Score, Config]:
    """Test loss and metric of a run's best weights, computed anew.

    Args:
        run: the run folder.
        length: test on sequences of another length: see `Task.at_length`. None: as in training.
        examples: how many test sequences are used, spread evenly; None uses all. Those of a run
            that carries its state begin without a past then.

    Raises:
        RunFolderError: not a run folder, without weights yet, damaged, or of a newer linrnn.
        DataError: the task's data is missing or damaged.
        ArgumentError: the task cannot be of this length, or examples is below 1.
    """
    _check_examples(examples)
    trained = open_run(run)
    config = trained.config
    if length is not None:
        return _score_at(_at_length(trained, length), examples), config
    test = trained.task.datasets().test
    carry = config.train.carry_state and examples is None
    return score(trained, test, examples=examples, carry=carry), config


def evaluate_lengths(
    run: Path | str,
    lengths: Sequence[int],
    *,
    examples: int | None = None,
    say: Callable[[LengthScore], Any] = lambda result: None,
) -> list[LengthScore]:
    """Test a run's best weights on sequences of other lengths.

    A model whose state has a constant size reads long sequences in chunks with the state carried
    over, so that what is in memory besides the sequences themselves does not grow with their
    length. One that reads in both directions, or attention without a window, reads them whole.

    After each length, what was found so far is written into the run folder: ``lengths.csv``, and
    the plot ``lengths`` (PNG and SVG).

    Args:
        run: the run folder.
        lengths: what `Task.at_length` is given; each is tested once, the shortest first.
        examples: how many test sequences are used at each length, spread evenly over the test
            data; None uses all.
        say: told the result at each length.

    Raises:
        RunFolderError, DataError: as `evaluate`.
        ArgumentError: no lengths, a length below 1 or one the task cannot have, or examples is
            below 1. The lengths are checked before any is tested.
    """
    _check_examples(examples)
    if not lengths:
        raise ArgumentError("evaluate_lengths: there must be at least one length, got none.")
    trained = open_run(run)
    runs = {length: _at_length(trained, length) for length in sorted(set(lengths))}
    scores = []
    for length, longer in runs.items():
        result, task = _score_at(longer, examples), longer.task
        scores.append(
            LengthScore(length=length, steps=task.sequence_length, chance=task.chance, score=result)
        )
        _write(trained, scores)
        say(scores[-1])
    return scores


def _check_examples(examples: int | None) -> None:
    if examples is not None:
        check_positive_int("evaluate", examples=examples)


def _at_length(run: Trained, length: int) -> Trained:
    """The model with its task at another length."""
    check_positive_int("evaluate", length=length)
    task, changed = run.task, run.task.at_length(length)
    if (changed.d_input, changed.d_output) != (task.d_input, task.d_output):
        raise ArgumentError(
            f"evaluate: at length {length} the task must have {task.d_input} inputs and "
            f"{task.d_output} outputs as the model has, got {changed.d_input} and "
            f"{changed.d_output}."
        )
    return replace(run, task=changed)


def _score_at(run: Trained, examples: int | None) -> Score:
    """Score with batches, and if possible chunks, of bounded size."""
    steps = run.task.sequence_length
    chunk = CHUNK if steps > CHUNK and why_not_streamed(run.model) is None else None
    rows = min(run.config.train.batch_size, _READ // (chunk or steps), _HELD_STEPS // steps)
    test = run.task.datasets().test
    return score(run, test, rows=max(1, rows), examples=examples, chunk=chunk)


def _write(run: Trained, scores: list[LengthScore]) -> None:
    """Write ``lengths.csv`` and the plot."""
    folder = run.folder
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ("length", "steps", "metric", "value", "standard_error", "chance", "loss", "examples")
    )
    for f in scores:
        s = f.score
        numbers = (s.metric, s.standard_error, f.chance, s.loss)
        writer.writerow(
            (f.length, f.steps, s.metric_name, *(f"{v:.6g}" for v in numbers), s.examples)
        )
    write_atomically(folder.lengths, text.getvalue().encode(), inside=folder.path)
    figure = metric_against_length(
        {run.label: [(f.steps, f.score.metric, f.score.standard_error) for f in scores]},
        metric=run.task.metric,
        chance={f.steps: f.chance for f in scores},
        trained=run.task.sequence_length,
        title=f"{run.config.task}, one trained model: mean ± s.e. over test sequences",
    )
    save(figure, folder.lengths_plot)
