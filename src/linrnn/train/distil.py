"""Distil a run: its long filters become small recurrences, in a new run folder."""

import csv
import io
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linrnn.backbone import SequenceModel
from linrnn.backbone.pattern import label, options_of, pattern, stored
from linrnn.distillation import Distilled, LayerFit, distill_orders
from linrnn.errors import ArgumentError, check_positive_int
from linrnn.tasks import IGNORE
from linrnn.train._outputs import answers, carried_answers
from linrnn.train.checkpoint import save_tensors, write_atomically
from linrnn.train.config import Config
from linrnn.train.context import Trained, open_run
from linrnn.train.data import check_memory, eval_loader, size_of, unpack
from linrnn.train.evaluation import Score, Tally
from linrnn.train.folder import RunFolder, check_free
from linrnn.train.model import sizes


@dataclass(frozen=True, kw_only=True)
class OrderFit:
    """A run distilled at one order."""

    order: int
    layers: tuple[LayerFit, ...]
    """How near the filters are, of each layer that was replaced."""
    outputs: float
    """Norm of the difference of the model's outputs on the validation data, as part of theirs."""
    score: Score
    """On the validation data."""
    n_state: int
    """Floats of state for one sequence, before it has read anything."""

    @property
    def largest(self) -> float:
        """The filters' largest error."""
        return max(layer.largest for layer in self.layers)

    @property
    def median(self) -> float:
        """The median error over all channels of all layers."""
        return float(torch.cat([layer.errors.flatten() for layer in self.layers]).median())

    @property
    def floor(self) -> float:
        """A lower bound of `largest`, whatever the method."""
        return max(layer.floor for layer in self.layers)


@dataclass(frozen=True, kw_only=True)
class DistilledRun:
    """A run distilled at some orders."""

    before: Score
    """Score of the run itself, on the validation data."""
    orders: tuple[OrderFit, ...]
    length: int
    """Steps of the filters that were fitted."""
    kept: tuple[str, ...]
    """Layers that have no long filters and are as they were: class and name."""
    mixer: str
    """Mixer of the new run."""
    folder: Path
    """Folder of the new run, which is of the last order."""


def distill_run(
    run: Path | str,
    orders: Sequence[int] = (16,),
    *,
    length: int | None = None,
    examples: int | None = None,
    out: Path | str | None = None,
) -> DistilledRun:
    """Distil the best weights of a run, measure what that changes, and write it as a run.

    Args:
        run: the run folder, which stays as it is.
        orders: see `linrnn.distill`; the new run is of the last one.
        length: steps of the filters that are fitted. Default: those of a sequence of the task.
        examples: how many validation sequences are used, spread evenly; None uses all. Those of a
            run that carries its state begin without a past then.
        out: the new run folder, new or empty; None takes the next free ``runs/<task>-<mixer>-<n>``.

    Raises:
        RunFolderError: not a run folder, without weights yet, damaged, or of a newer linrnn; or
            ``out`` is there and not empty.
        ArgumentError: no layer has long filters, an order that is too large, or the data has times
            between steps, which the layers that are made do not know.
    """
    out = None if out is None else Path(out)
    if out is not None:
        check_free(out)
    if examples is not None:
        check_positive_int("distill", examples=examples)
    trained = open_run(run)
    model = trained.layers
    length = trained.task.sequence_length if length is None else length
    distilled = distill_orders(model, orders, length=length)
    config, last = _config(trained, distilled[-1]), distilled[-1].model
    original, fits = measure_orders(trained, distilled, examples)

    def fill(folder: RunFolder) -> None:
        save_tensors(last.state_dict(), folder.model, inside=folder.path)
        write_atomically(folder.distillation, _table(fits).encode(), inside=folder.path)

    folder = RunFolder.create(out, config, trained.task.run_files(), fill)
    replaced = {layer.name for layer in fits[-1].layers}
    mixers = [(type(m).__name__, f"blocks.{i}.mixer") for i, m in enumerate(model.mixers)]
    return DistilledRun(
        before=original,
        orders=fits,
        length=length,
        kept=tuple(f"{kind} in {name}" for kind, name in mixers if name not in replaced),
        mixer=config.mixer,
        folder=folder.path,
    )


def _config(run: Trained, distilled: Distilled[SequenceModel]) -> Config:
    """The configuration of the distilled model."""
    config, parts = run.config, pattern(run.config.mixer)
    every = options_of(config.mixer, config.mixer_options)
    new = {layer.name for layer in distilled.layers}
    mixers: list[Any] = []
    options: dict[str, Any] = {}
    for i, part in enumerate(parts):
        if f"blocks.{i}.mixer" in new:
            mixers.append(distilled.model.mixers[i])
        else:
            mixers.append(part)
            options[label(part)] = every[label(part)]
    mixer, new_options = stored(tuple(mixers), options, config.model.d_model)
    return replace(config, mixer=mixer, mixer_options=new_options)


@torch.no_grad()
def measure_orders(
    run: Trained, distilled: Sequence[Distilled[SequenceModel]], examples: int | None = None
) -> tuple[Score, tuple[OrderFit, ...]]:
    """A run on its validation data, and beside it what it was distilled to.

    Args:
        run: the run.
        distilled: its model distilled, at each order.
        examples: see `distill_run`.
    """
    task, data = run.task, run.task.datasets().validation
    count = size_of(data, "validation data")
    rows = run.config.train.batch_size
    check_memory(run.model, task, min(rows, examples or count, count))
    models = [run.layers, *(one.model for one in distilled)]
    carry = run.config.train.carry_state and examples is None
    loader = eval_loader(data, rows, examples, contiguous=carry)
    batches = (_untimed(run, batch) for batch in map(unpack, loader))
    tallies = [Tally(task) for _ in models]
    errors, size = [0.0] * len(distilled), 0.0
    for pairs in _together(models, batches, carry):
        for tally, (y, target) in zip(tallies, pairs, strict=True):
            tally.add(y, target)
        reference = _at_targets(*pairs[0]).double()
        size += reference.square().sum().item()
        for i, (y, target) in enumerate(pairs[1:]):
            errors[i] += (_at_targets(y, target).double() - reference).square().sum().item()
    original, *scores = (tally.score() for tally in tallies)
    fits = [
        OrderFit(
            order=one.order,
            layers=one.layers,
            outputs=(error / size) ** 0.5 if size else 0.0,
            score=score,
            n_state=sizes(one.model)[1],
        )
        for one, error, score in zip(distilled, errors, scores, strict=True)
    ]
    return original, tuple(fits)


def _together(
    models: Sequence[SequenceModel], batches: Iterator[Any], carry: bool
) -> Iterator[tuple[tuple[Tensor, Tensor], ...]]:
    """Pairs (y, target) of every model, batch after batch."""

    def one(model: SequenceModel, copy: Iterator[Any]) -> Iterator[tuple[Tensor, Tensor]]:
        return carried_answers(model, copy) if carry else (answers(model, b, None) for b in copy)

    copies = itertools.tee(batches, len(models))
    return zip(*map(one, models, copies), strict=True)


def _untimed(run: Trained, batch: Any) -> Any:
    """A batch, whose steps must be alike."""
    if batch.dt is not None:
        raise ArgumentError(
            f"distill: the data must have no times between steps, which a distilled layer does not "
            f"know, got those of the task {run.config.task}. Keep the run as it is."
        )
    return batch


def _at_targets(y: Tensor, target: Tensor) -> Tensor:
    """The outputs at steps that have a target."""
    if target.is_floating_point() or target.shape != y.shape[:-1]:
        return y
    return y[target != IGNORE]  # (targets, classes)


def _table(fits: Sequence[OrderFit]) -> str:
    """``distillation.csv``: a row for each order and layer."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    filters = ("order", "layer", "was", "largest_error", "median_error", "floor", "singular_value")
    writer.writerow((*filters, "outputs_error", "validation_loss", "validation_metric"))
    for fit in fits:
        for layer in fit.layers:
            numbers = [layer.largest, layer.median, layer.floor, float(layer.singular.max())]
            numbers += [fit.outputs, fit.score.loss, fit.score.metric]
            writer.writerow((fit.order, layer.name, layer.kind, *(f"{v:.6g}" for v in numbers)))
    return text.getvalue()
