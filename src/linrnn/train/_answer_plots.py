"""Plots of predictions against targets: confusion matrices of classes, forecasts and truth."""

from collections.abc import Iterator
from math import ceil
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.utils.data import Dataset

from linrnn._options.numbers import counted
from linrnn.backbone import Model
from linrnn.tasks import Task
from linrnn.train._outputs import outputs
from linrnn.train.data import eval_loader, size_of, unpack
from linrnn.train.figures import legend_below, new_figure
from linrnn.train.styles import COLOURS

MAX_CLASSES = 30
"""Beyond which the cells of a matrix of confusions cannot be read."""
_EXAMPLES = 2_000  # of the test data that are counted at most
_ROWS = 64  # that are read at once
_WRITTEN = 15  # classes up to which counts stand in the cells
_SHOWN = 3  # forecasts beside one another
_CHANNELS = 3  # below one another
_TRUTH: dict[str, Any] = {"color": "0.45", "linewidth": 2.4, "label": "truth"}
_ANSWER: dict[str, Any] = {
    "color": COLOURS[1], "linestyle": "--", "linewidth": 1.4, "label": "answer of the model"
}  # fmt: skip


@torch.no_grad()
def draw_confusion(task: Task, model: Model, data: Dataset[Any]) -> Figure | None:
    """A confusion matrix, predicted class by label; None where the task has no classes to count.

    Args:
        task: one of up to 30 classes with one answer a sequence is drawn.
        model: in evaluation mode.
        data: of which up to 2,000 examples are counted, spread evenly.
    """
    names = [*map(str, task.class_names or range(task.d_output))]
    if task.kind != "classification" or len(names) > MAX_CLASSES:
        return None
    counts = torch.zeros(len(names), len(names), dtype=torch.long)
    for y, target in _predictions(model, data, _EXAMPLES):
        if target.ndim != 1 or y.ndim != 2:
            return None
        counts += confusions(y.argmax(-1), target, len(names))
    side = max(4.2, 0.42 * len(names) + 2)
    figure = new_figure(side + 0.6, side)
    axes = figure.subplots()
    axes.imshow(counts.numpy(), cmap="Greys", label="examples")
    places = range(len(names))
    vertical = max(map(len, names)) > 3
    axes.set_xticks(places, names, rotation=90 if vertical else 0)
    axes.set_yticks(places, names)
    axes.set(xlabel="predicted", ylabel="true")
    right = int(counts.diagonal().sum())
    axes.set_title(
        f"{counted(int(counts.sum()), 'test example')}, {right:,} of them right", fontsize=10
    )
    if len(names) <= _WRITTEN:
        _write(axes, counts)
    return figure


def confusions(predicted: Tensor, targets: Tensor, classes: int) -> Tensor:
    """Counts by label (rows) and predicted class (columns).

    Args:
        predicted, targets: (examples,) integers below ``classes``.
        classes: how many there are.

    Returns:
        (classes, classes), int64.

    Example:
        >>> confusions(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 2).tolist()
        [[1, 1], [0, 1]]
    """
    return torch.bincount(targets * classes + predicted, minlength=classes**2).reshape(-1, classes)


def _write(axes: Axes, counts: Tensor) -> None:
    largest = int(counts.max())
    for row, line in enumerate(counts.tolist()):
        for column, count in enumerate(line):
            if count:
                ink = "white" if count > largest / 2 else "black"
                axes.text(column, row, f"{count}", ha="center", va="center", color=ink, fontsize=8)


@torch.no_grad()
def draw_forecasts(task: Task, model: Model, data: Dataset[Any]) -> Figure | None:
    """A model's predictions beside the true numbers; None for a task that is no regression.

    Answers of many steps are drawn over them, three test examples beside one another and up to
    three channels below; single ones as points against the truth, up to 2,000 of them.

    Args:
        task: in whose units the numbers are.
        model: in evaluation mode.
        data: from which examples are taken, spread evenly.
    """
    if task.kind != "regression":
        return None
    y, target = next(_predictions(model, data, _SHOWN))
    if y.shape != target.shape:
        return None
    answer = task.numbers(y)
    if answer.ndim == 3 and answer.shape[1] > 1:
        return _over_steps(task, answer, task.numbers(target))
    parts = [(task.numbers(a), task.numbers(t)) for a, t in _predictions(model, data, _EXAMPLES)]
    answer, truth = (torch.cat(part).flatten(1) for part in zip(*parts, strict=True))
    return _against_truth(task, answer, truth)


def _names(task: Task, count: int) -> list[str]:
    return [*(task.number_names or ("y",) * count)][:count]


def _over_steps(task: Task, answer: Tensor, truth: Tensor) -> Figure:
    channels = min(_CHANNELS, answer.shape[2])
    figure = new_figure(3.1 * len(answer) + 0.4, 0.8 + 1.9 * channels)
    grid = figure.subplots(channels, len(answer), sharex=True, sharey="row", squeeze=False)
    steps = range(1, answer.shape[1] + 1)
    for c, name in zip(range(channels), _names(task, answer.shape[2]), strict=False):
        for example, axes in enumerate(grid[c]):
            axes.plot(steps, truth[example, :, c], **_TRUTH)
            axes.plot(steps, answer[example, :, c], **_ANSWER)
            axes.grid(alpha=0.3)
            axes.set_title(f"test example {example + 1}" if c == 0 else "")
        grid[c][0].set_ylabel(name)
    for axes in grid[-1]:
        axes.set_xlabel("step")
    legend_below(figure, grid[0][0])
    return figure


def _against_truth(task: Task, answer: Tensor, truth: Tensor) -> Figure:
    shown = min(_CHANNELS, answer.shape[1])
    figure = new_figure(4.4 * shown, 4.4)
    panels = figure.subplots(1, shown, squeeze=False)[0]
    for c, (axes, name) in enumerate(zip(panels, _names(task, answer.shape[1]), strict=False)):
        x, y = truth[:, c].tolist(), answer[:, c].tolist()
        axes.plot(x, y, ".", color=COLOURS[1], markersize=4, label="_answers")
        axes.axline((x[0], x[0]), slope=1, color="0.45", linewidth=1)
        axes.set(xlabel="true", ylabel="predicted", title=f"{name}: {len(x):,} test examples")
        axes.grid(alpha=0.3)
    return figure


def _predictions(
    model: Model, data: Dataset[Any], examples: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Predictions and targets, both on the CPU."""
    count = min(examples, size_of(data, "evaluation data"))
    for x, target, *more in map(unpack, eval_loader(data, min(_ROWS, ceil(count)), count)):
        yield outputs(model, x, *more).cpu(), target.cpu()
