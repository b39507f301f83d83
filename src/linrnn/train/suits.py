"""Whether a model can read the data of a task at all: asked before a run has a folder."""

import math
from dataclasses import fields
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset

from linrnn.backbone import Model, SequenceModel
from linrnn.errors import ArgumentError
from linrnn.learn import unpack
from linrnn.streaming.input import mixers_of, reads_times
from linrnn.tasks import Splits, Task
from linrnn.train.config import Config
from linrnn.train.data import size_of, steps_per_epoch


def check_data(config: Config, task: Task, model: SequenceModel, splits: Splits) -> None:
    """Raise unless the model can read what the task gives.

    Args:
        config: of the run.
        task, model: of it, the model perhaps on the meta device.
        splits: the data of the task.

    Raises:
        ArgumentError: steps lie unevenly and no layer, or a form of one, reads times; or a batch
            holds a single number for a channel, of which batch norm has no statistics.
    """
    if _timed(splits.train):
        _check_times(config, task, model)
    _check_norm(config, task, model, splits)


def reads_dt(task: Task, model: Model) -> bool:
    """Whether answers depend on times between steps, which an array or a line does not hold."""
    return reads_times(model) and task.time_unit is not None


def no_times(where: str, fix: str) -> ArgumentError:
    """The error of steps that come without their times where those are read."""
    return ArgumentError(
        f"{where}: dt must be given, since the model reads the time between steps and was trained "
        f"on uneven ones, got none. {fix}"
    )


def _timed(dataset: Dataset[Any]) -> bool:
    first: tuple[Tensor, ...] = dataset[0]
    return unpack(first).dt is not None


def _check_times(config: Config, task: Task, model: SequenceModel) -> None:
    timed = [layer for layer in mixers_of(model) if layer.timed]
    bad = [m.form for m in timed if m.form in m.without_dt]
    if timed and not bad:
        return
    got = f"form {bad[0]!r} of {config.mixer}" if bad else f"{config.mixer}"
    names = {field.name for field in fields(task.options)}
    fix = ""
    if "times" in names:
        fix = " --task.times column makes times a channel, and none leaves them out."
    elif "time" in names:
        fix = " Without --task.time all steps are alike."
    raise ArgumentError(
        f"Config: mixer must be one that knows the time between steps, for those of the task "
        f"{config.task} lie unevenly, got {got}. `linrnn list mixers` marks such by [dt].{fix}"
    )


def one_step(config: Config, task: Task) -> bool:
    """Whether a sequence is of one step, at the lowest of several rates."""
    return task.documents == 1 and task.sequence_length <= math.prod(config.model.tiers)


def _check_norm(config: Config, task: Task, model: SequenceModel, splits: Splits) -> None:
    norms = any(isinstance(part, nn.BatchNorm1d) for part in model.modules())
    if not norms or not one_step(config, task):
        return
    size, rows = size_of(splits.train, "training data"), config.train.batch_size
    batches = steps_per_epoch(size, rows)
    last = size // batches if config.train.order == "contiguous" else size - (batches - 1) * rows
    if min(last, rows) > 1:
        return
    raise ArgumentError(
        f"Config: model.norm must not be 'batch' where a batch holds one sequence of one step, got "
        f"{size} training examples in batches of {rows}. Take --model.norm layer, or another "
        "--train.batch-size."
    )
