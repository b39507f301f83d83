"""The plots of a run folder."""

from math import ceil, pi
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, MaxNLocator
from torch import Tensor
from torch.utils.data import Dataset

from linrnn._options.numbers import counted
from linrnn.backbone import SequenceModel
from linrnn.tasks import Task
from linrnn.train._answer_plots import draw_confusion, draw_forecasts
from linrnn.train._memory import LayerMemory, measure
from linrnn.train._outputs import outputs
from linrnn.train._report import EpochReport
from linrnn.train.context import Run
from linrnn.train.data import eval_loader, unpack
from linrnn.train.figures import (
    clip_outliers,
    legend_below,
    metric_scale,
    new_figure,
    save,
    spans_decades,
)
from linrnn.train.metrics import read_metrics
from linrnn.train.model import build_model
from linrnn.train.styles import COLOURS, dense_styles

_EXAMPLES = 32  # sequences the memory is measured on
_DARK, _LIGHT = COLOURS[5], COLOURS[4]  # far apart in lightness as well as in hue
_SAMPLES = 16


def draw_plots(run: Run) -> None:
    """Draw curves, eigenvalues and memory of a trained model, and its answers to test data.

    The memory is measured on the validation data. Answers are samples where inputs are images,
    confusions of classes, and numbers beside the true ones.

    Args:
        run: its folder gets the images and gives the metrics; its model has the trained weights
            and is in evaluation mode.
    """
    folder, task, model = run.folder, run.task, run.model
    save(_curves(read_metrics(folder), task), folder.curves)
    initial = build_model(run.config, task)
    if any(m.eigenvalues() is not None for m in model.mixers):
        save(_eigenvalues(initial, model), folder.eigenvalues)
    x = next(iter(eval_loader(run.splits.validation, _EXAMPLES)))[0]
    weight = model.head.weight
    x = x.to(weight.device, weight.dtype) if x.is_floating_point() else x.to(weight.device)
    save(_memory(measure(model, x)), folder.memory)
    for draw, path in (
        (draw_samples, folder.samples),
        (draw_confusion, folder.confusion),
        (draw_forecasts, folder.forecasts),
    ):
        figure = draw(task, model, run.splits.test)
        if figure is not None:
            save(figure, path)


class _PlainLogFormatter(LogFormatter):
    """0.3 and not 3 times a power of ten, at the ticks at which there is room."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def _curves(rows: list[EpochReport], task: Task) -> Figure:
    figure = new_figure(9, 3.6)
    loss, metric = figure.subplots(1, 2)
    epochs = [r.epoch for r in rows]
    train = {"color": _LIGHT, "linestyle": "--", "marker": "o", "markersize": 3}
    validation = {"color": _DARK, "linestyle": "-", "marker": "s", "markersize": 3}
    loss.plot(epochs, [r.train_loss for r in rows], label="training", **train)
    loss.plot(epochs, [r.validation_loss for r in rows], label="validation", **validation)
    loss.set(xlabel="epoch", ylabel=task.loss_name, yscale="log", title="Loss")
    scale, unit = metric_scale(task.metric)
    for name, style in (("train_metric", train), ("validation_metric", validation)):
        values = [scale * getattr(r, name) for r in rows]
        metric.plot(epochs, values, label=name.split("_")[0].replace("train", "training"), **style)
    metric.axhline(scale * task.chance, color="0.5", linestyle=":", label="chance")
    metric.set(xlabel="epoch", ylabel=task.metric + unit, title="Metric")
    shown = [getattr(r, name) for r in rows for name in ("train_metric", "validation_metric")]
    if not task.higher_is_better and spans_decades(shown):
        metric.set_yscale("log")
    for axes, higher in ((loss, False), (metric, task.higher_is_better)):
        if axes.get_yscale() == "log":
            axes.yaxis.set_major_formatter(_PlainLogFormatter())
            axes.yaxis.set_minor_formatter(_PlainLogFormatter())
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(alpha=0.3)
        clip_outliers(axes, "high" if higher else "low")
    legend_below(figure, metric)
    return figure


def _eigenvalues(initial: SequenceModel, trained: SequenceModel) -> Figure:
    layers = len(trained.mixers)
    columns = min(layers, 4)
    rows = ceil(layers / columns)
    figure = new_figure(4.2 * columns, 4.5 * rows)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    pairs = zip(initial.mixers, trained.mixers, strict=True)
    for layer, (axes, (initial_mixer, trained_mixer)) in enumerate(zip(grid, pairs, strict=False)):
        _unit_disk(
            axes, getattr(initial_mixer, "r_min", None), getattr(initial_mixer, "r_max", None)
        )
        for mixer, style in (
            (initial_mixer, {"marker": "o", "s": 26, "facecolors": "none", "edgecolors": _LIGHT}),
            (trained_mixer, {"marker": "x", "s": 22, "color": _DARK, "linewidths": 1.3}),
        ):
            _scatter(axes, mixer, style, "initial" if mixer is initial_mixer else "trained")
        axes.set(title=f"Layer {layer + 1}", xlabel="Re λ", ylabel="Im λ")
    for axes in grid[layers:]:
        axes.set_axis_off()
    legend_below(figure, grid[0])
    return figure


def _scatter(axes: Axes, mixer: Any, style: dict[str, Any], label: str) -> None:
    with torch.no_grad():
        values = mixer.eigenvalues()
    if values is not None:
        flat = values.flatten().cpu().numpy()
        axes.scatter(flat.real, flat.imag, label=label, zorder=3, **style)


def _unit_disk(axes: Axes, r_min: float | None, r_max: float | None) -> None:
    circle = torch.polar(torch.ones(361), torch.linspace(0, 2 * pi, 361)).numpy()
    axes.plot(circle.real, circle.imag, color="black", linewidth=1, label="|λ| = 1")
    if r_min is not None and r_max is not None:
        x = [*(r_max * circle.real), *(r_min * circle.real[::-1])]
        y = [*(r_max * circle.imag), *(r_min * circle.imag[::-1])]
        axes.fill(x, y, color="0.88", zorder=0, label=f"initial ring {r_min:g} to {r_max:g}")
    axes.set_aspect("equal")
    axes.set(xlim=(-1.08, 1.08), ylim=(-1.08, 1.08))
    axes.axhline(0, color="0.7", linewidth=0.6, zorder=1)
    axes.axvline(0, color="0.7", linewidth=0.6, zorder=1)


def _memory(layers: list[LayerMemory]) -> Figure:
    timed = [m for m in layers if m.time_constants is not None]
    columns = 2 if timed else 1
    figure = new_figure(4.8 * columns, 3.9)
    axes = figure.subplots(1, columns, squeeze=False)[0]
    looks = [*dense_styles([f"layer {i + 1}" for i in range(len(layers))]).values()]
    for i, (memory, look) in enumerate(zip(layers, looks, strict=True)):
        label = f"layer {i + 1}: 90 % within {counted(memory.span, 'step')}"
        axes[0].plot(memory.influence.numpy(), label=label, **look)
    axes[0].set(
        xlabel="lag k (steps back)",
        ylabel="influence of input t − k on output t",
        title="Measured on validation data (largest = 1)",
        yscale="log",
    )
    if timed:
        _draw_time_constants(axes[1], layers, looks)
    axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    for a in axes:
        a.grid(alpha=0.3, which="both")
    legend_below(figure, *axes)
    return figure


def _draw_time_constants(
    axes: Axes, layers: list[LayerMemory], looks: list[dict[str, Any]]
) -> None:
    for i, (memory, look) in enumerate(zip(layers, looks, strict=True)):
        if memory.time_constants is not None:
            axes.plot(
                range(1, len(memory.time_constants) + 1),
                memory.time_constants.numpy(),
                label=f"_layer {i + 1}",
                **look,
            )
    steps = len(layers[0].influence)
    axes.axhline(
        steps, color="0.4", linewidth=1, label=f"sequence length, {counted(steps, 'step')}"
    )
    axes.set(
        xlabel="mode, slowest first",
        ylabel="time constant −1 / ln|λ| (steps)",
        title="Time constants of the trained modes",
        yscale="log",
    )


@torch.no_grad()
def draw_samples(task: Task, model: SequenceModel, data: Dataset[Any]) -> Figure | None:
    """A few inputs as images with label and predicted class; None if there are none.

    A wrong answer has a thick frame and a cross before its name.

    Args:
        task: whose `Task.picture` makes the images.
        model: in evaluation mode.
        data: from which inputs are taken, spread evenly.
    """
    x, target, *more = unpack(next(iter(eval_loader(data, _SAMPLES, _SAMPLES))))
    first = task.picture(x[0])
    if first is None or task.kind != "classification" or target.ndim != 1:
        return None
    answers = outputs(model, x, *more).argmax(-1).tolist()
    columns = min(8, len(x))
    rows = ceil(len(x) / columns)
    figure = new_figure(1.5 * columns, 0.5 + 1.85 * rows)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, image, label, predicted in zip(grid, x, target.tolist(), answers, strict=False):
        _draw_sample(axes, task, image, label, predicted)
    for axes in grid[len(x) :]:
        axes.set_axis_off()
    wrong = sum(a != t for a, t in zip(answers, target.tolist(), strict=True))
    figure.suptitle(
        f"{counted(len(x), 'test example')}: prediction over target; {wrong} wrong, with × and a "
        "thick frame",
        fontsize=10,
    )
    return figure


def _draw_sample(axes: Axes, task: Task, x: Tensor, label: int, predicted: int) -> None:
    image = task.picture(x)
    assert image is not None
    axes.imshow(image.cpu().numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    names = task.class_names or range(task.d_output)
    right = label == predicted
    mark, weight = ("", "normal") if right else ("× ", "bold")
    axes.set_title(f"{mark}{names[predicted]}", fontsize=9, fontweight=weight, pad=4)
    axes.set_xlabel(str(names[label]), fontsize=9)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():  # neither black nor white, as most images are
        spine.set(linewidth=0.8 if right else 4, color="black" if right else _LIGHT)
