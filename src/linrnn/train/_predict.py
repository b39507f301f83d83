"""Let a trained model answer for a user's file."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from linrnn.tasks import Task
from linrnn.train._model import load_model
from linrnn.train._outputs import outputs


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The class for one sequence, or for one step of it."""

    index: int
    """Of the sequence: its row in the file, from 0."""
    step: int | None = None
    """Of the sequence, from 0; None where there is one answer a sequence."""
    label: str
    """Name of the most probable class."""
    probability: float
    """Of that class, in [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The numbers for one sequence, or for one step."""

    index: int
    """Of the sequence: its row in the file, from 0."""
    step: int | None = None
    """Of the sequence, or of the forecast, from 0; None where there is one answer a sequence."""
    values: Mapping[str, float]
    """By name, in the units of the data."""


@torch.no_grad()
def predict(run: Path | str, file: Path | str) -> list[Prediction] | list[Estimate]:
    """The answers to a file: classes with their probability or, in regression, numbers.

    Args:
        run: the run folder.
        file: one that the run's task can read, with sequences of different lengths where the
            task has them: see `Task.read`.

    Raises:
        RunFolderError: the run cannot be used.
        DataError: the file cannot be used.
    """
    model, task, config = load_model(run)
    x, lengths = task.read_padded(Path(file))
    rows = torch.arange(len(x)).split(config.train.batch_size)
    y = torch.cat([outputs(model, x[i], None if lengths is None else lengths[i]) for i in rows])
    if task.kind == "regression":
        return list(_estimates(task, y, lengths))
    return list(_predictions(task, y, lengths))


def _predictions(task: Task, y: Tensor, lengths: Tensor | None) -> Iterator[Prediction]:
    names = task.class_names or tuple(map(str, range(task.d_output)))
    probabilities, labels = y.softmax(-1).max(-1)
    for index, step, place in _places(labels, lengths):
        label = names[int(labels[place])]
        yield Prediction(
            index=index, step=step, label=label, probability=probabilities[place].item()
        )


def _estimates(task: Task, y: Tensor, lengths: Tensor | None) -> Iterator[Estimate]:
    numbers = task.numbers(y)  # (batch, numbers) or (batch, steps, numbers)
    n = numbers.shape[-1]
    names = task.number_names or (("y",) if n == 1 else tuple(f"y{i + 1}" for i in range(n)))
    for index, step, place in _places(numbers[..., 0], lengths):
        values = dict(zip(names, numbers[place].tolist(), strict=True))
        yield Estimate(index=index, step=step, values=values)


def _places(
    answers: Tensor, lengths: Tensor | None
) -> Iterator[tuple[int, int | None, tuple[int, ...]]]:
    """Sequence, step and place of every answer (batch,) or (batch, steps), padding left out."""
    for index in range(len(answers)):
        if answers.ndim == 1:
            yield index, None, (index,)
            continue
        end = answers.shape[1] if lengths is None else int(lengths[index])
        yield from ((index, step, (index, step)) for step in range(end))
