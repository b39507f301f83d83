"""Let a trained model answer for a user's file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linrnn.compute.finite import all_finite
from linrnn.errors import DataError, NonFiniteError
from linrnn.tasks import Given, Task
from linrnn.train._outputs import outputs
from linrnn.train.context import Trained, open_run


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The class for one sequence, or for one step of it."""

    index: int
    """Row of the sequence in the file, from 0."""
    id: str | None = None
    """Id of the sequence, where the file has one."""
    step: int | None = None
    """Step of the sequence, from 0; None where there is one answer per sequence."""
    label: str
    """Name of the most probable class."""
    probability: float
    """Probability of that class, in [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The numbers for one sequence, or for one step."""

    index: int
    """Row of the sequence in the file, from 0."""
    id: str | None = None
    """Id of the sequence, where the file has one."""
    step: int | None = None
    """Step of the sequence or forecast, from 0; None where there is one answer per sequence."""
    time: str | None = None
    """Time of the forecast step, where the file has evenly spaced time stamps."""
    values: Mapping[str, float]
    """By name, in the units of the data."""


@torch.no_grad()
def predict(
    run: Path | str, file: Path | str | Sequence[Path | str]
) -> list[Prediction] | list[Estimate]:
    """The answers to a file: classes with their probability or, in regression, numbers.

    Args:
        run: the run folder.
        file: one that the run's task can read, with sequences of different lengths where the
            task has them: see `Task.read_given`. Or several of them; their names are in the ids
            then.

    Raises:
        RunFolderError: the run cannot be used.
        DataError: the file cannot be used, or its numbers do not fit the model's dtype.
        NonFiniteError: the answer to a sequence is not finite.
    """
    trained = open_run(run)
    if isinstance(file, str | Path):
        return _answers_of(trained, Path(file))
    answers: list[Any] = []
    for path in file:
        answers += _answers_of(trained, Path(path), named=True)
    return answers


def _answers_of(
    trained: Trained, file: Path, *, named: bool = False
) -> list[Prediction] | list[Estimate]:
    """The answers to one file, whose name is in their ids if it is to be."""
    model, task = trained.model, trained.task
    inputs = task.read_given(file)
    x = inputs.x
    if inputs.dt is None and trained.reads_dt:
        raise DataError(
            f"{file}: steps must have times, since the model reads those between them and was "
            "trained on uneven ones, got none. Give a table with the time of each step."
        )
    check_inputs(x.to(model.head.weight.dtype) if x.is_floating_point() else x, file)
    if named:
        ids = inputs.ids or ("",) * len(x)
        inputs = inputs._replace(
            ids=tuple(f"{file}: {name}" if name else str(file) for name in ids)
        )
    y = answers_to(trained, inputs, file)
    if task.kind == "regression":
        return list(_estimates(task, y, inputs))
    return list(_predictions(task, y, inputs))


def answers_to(
    trained: Trained, inputs: Given, where: Path | str, batch_size: int | None = None
) -> Tensor:
    """Answer sequences as the model reads them, some at a time.

    Raises:
        NonFiniteError: an answer is not finite; named by ``where``.
    """
    x, lengths, dt, *_ = inputs
    rows = torch.arange(len(x)).split(batch_size or trained.config.train.batch_size)

    def answer(i: Tensor) -> Tensor:
        row_lengths, times = (None if part is None else part[i] for part in (lengths, dt))
        return outputs(trained.model, x[i], row_lengths, dt=times)

    y = torch.cat([answer(i) for i in rows])
    _check_answers(y, lengths, where)
    return y


def check_inputs(x: Tensor, file: Path | str) -> None:
    """Raise unless the sequences of a file are finite, as they are scaled for training."""
    if not all_finite([x]):
        place = (~x.isfinite()).nonzero()[0].tolist()
        raise DataError(
            f"{file}: sequence {place[0] + 1} must be finite in {x.dtype} where it is brought to "
            f"the scale of training, got {x[tuple(place)].item()} at step {place[1] + 1}. Is it "
            "of another kind than the training data?"
        )


def _check_answers(y: Tensor, lengths: Tensor | None, file: Path | str) -> None:
    """Raise unless every prediction is finite; one NaN would still have a most probable class."""
    if all_finite([y]):
        return
    bad = ~y.isfinite()
    if bad.ndim == 3 and lengths is not None:  # an answer a step, of which padding has none
        bad &= (torch.arange(y.shape[1]) < lengths[:, None])[..., None].to(y.device)
    if not bad.any():
        return
    place = tuple(bad.nonzero()[0].tolist())
    step = f", step {place[1] + 1}" if y.ndim == 3 else ""
    raise NonFiniteError(
        f"{file}: the answer to every sequence must be finite, got {y[place].item()} for sequence "
        f"{place[0] + 1}{step}. Its numbers are beyond what the model can follow: leave it out, or "
        "scale it as in training."
    )


def _predictions(task: Task, y: Tensor, inputs: Given) -> Iterator[Prediction]:
    names = task.class_names or tuple(map(str, range(task.d_output)))
    probabilities, labels = y.softmax(-1).max(-1)
    for index, step, place in _places(labels, inputs.lengths):
        yield Prediction(
            index=index,
            id=inputs.ids[index] if inputs.ids else None,
            step=step,
            label=names[int(labels[place])],
            probability=probabilities[place].item(),
        )


def _estimates(task: Task, y: Tensor, inputs: Given) -> Iterator[Estimate]:
    numbers = task.numbers(y)  # (batch, numbers) or (batch, steps, numbers)
    n = numbers.shape[-1]
    names = task.number_names or (("y",) if n == 1 else tuple(f"y{i + 1}" for i in range(n)))
    for index, step, place in _places(numbers[..., 0], inputs.lengths):
        yield Estimate(
            index=index,
            id=inputs.ids[index] if inputs.ids else None,
            step=step,
            time=inputs.times[step] if inputs.times and step is not None else None,
            values=dict(zip(names, numbers[place].tolist(), strict=True)),
        )


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
