"""Score a trained model, and let it answer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from linrnn.backbone import SequenceModel
from linrnn.errors import ArgumentError
from linrnn.tasks import Task
from linrnn.train._config import Config
from linrnn.train._data import eval_loader
from linrnn.train._model import load_model


@dataclass(frozen=True, kw_only=True)
class Score:
    """Means over a data set."""

    loss: float
    metric: float
    metric_name: str
    examples: int


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The answer for one sequence."""

    index: int
    """Its row in the file, from 0."""
    label: str
    """Name of the most probable class."""
    probability: float
    """Of that class, in [0, 1]."""


@torch.no_grad()
def score(model: SequenceModel, task: Task, data: Dataset[Any], batch_size: int) -> Score:
    """Loss and metric of a model in evaluation mode over a data set."""
    loss = total = 0.0
    examples = 0
    for x, target, *lengths in eval_loader(data, batch_size):
        y = _outputs(model, x, lengths[0] if lengths else None)
        target = target.to(y.device)
        loss += task.loss(y, target).item() * len(x)
        total += task.scores(y, target).double().sum().item()
        examples += len(x)
    return Score(
        loss=loss / examples,
        metric=total / examples,
        metric_name=task.metric,
        examples=examples,
    )


def evaluate(run: Path | str) -> tuple[Score, Config]:
    """Test loss and metric of a run's best weights, computed anew.

    Raises:
        RunFolderError: not a run folder, without weights yet, damaged, or of a newer linrnn.
        DataError: the task's data is missing or damaged.
    """
    model, task, config = load_model(run)
    return score(model, task, task.datasets().test, config.train.batch_size), config


@torch.no_grad()
def predict(run: Path | str, file: Path | str) -> list[Prediction]:
    """Class and probability for each row of a file.

    Args:
        run: the run folder.
        file: a table that the run's task can read; see `Task.read`.

    Raises:
        RunFolderError: the run cannot be used.
        DataError: the file cannot be used.
        ArgumentError: the task is no classification.
    """
    model, task, config = load_model(run)
    if not task.class_names:
        raise ArgumentError(f"predict: the task must have classes, got {config.task}.")
    parts = task.read(Path(file)).split(config.train.batch_size)
    probabilities = torch.cat([_outputs(model, x).softmax(-1) for x in parts])
    best, label = probabilities.max(-1)
    return [
        Prediction(index=i, label=task.class_names[k], probability=p)
        for i, (k, p) in enumerate(zip(label.tolist(), best.tolist(), strict=True))
    ]


def _outputs(model: SequenceModel, x: Tensor, lengths: Tensor | None = None) -> Tensor:
    weight = model.head.weight
    x = x.to(weight.device)
    lengths = None if lengths is None else lengths.to(weight.device)
    y: Tensor = model(x.to(weight.dtype) if x.is_floating_point() else x, lengths=lengths)[0]
    return y
