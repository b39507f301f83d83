"""Losses and metrics by name, over the steps that a row has; and those of users."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    ShapeError,
    UnknownNameError,
    show,
)
from linrnn.tasks import IGNORE

Scored: TypeAlias = Callable[..., Tensor]
"""Called with ``y`` and ``target``, and with ``lengths`` where it has such an argument."""


class Rows(NamedTuple):
    """Facts about the rows of a batch beside x and target."""

    lengths: Tensor | None = None
    per_step: bool = False  # whether there is a target for each step, and so for padding too


Objective: TypeAlias = Callable[[Tensor, Tensor, Rows], Tensor]
"""A loss or a metric as it is called here, whoever wrote it."""


def loss_of(loss: str | Scored) -> Objective:
    """A function of ``(y, target, rows)``.

    Raises:
        UnknownNameError: no loss of that name.
        ArgumentTypeError: neither a name nor a function.
    """
    return _function("loss", loss, _LOSSES)


def metrics_of(metrics: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Names of metrics to functions as of `loss_of`, or to objects of torchmetrics.

    Raises:
        UnknownNameError, ArgumentTypeError: as `loss_of`.
    """
    if isinstance(metrics, str) or not isinstance(metrics, (Sequence, Mapping)):
        raise ArgumentTypeError(
            "fit: metrics must be names, or a mapping of names to functions, got "
            f"{show(metrics, 60)}. Write metrics=['accuracy']."
        )
    names = list(metrics)
    for name in names:
        _check_name(name)
    if len(set(names)) < len(names):
        raise ArgumentError(f"fit: metrics must name each once, got {show(names)}.")
    by_name = metrics if isinstance(metrics, Mapping) else {name: name for name in names}
    return {
        name: metric if _of_torchmetrics(metric) else _function("metric", metric, _METRICS)
        for name, metric in by_name.items()
    }


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ArgumentTypeError(f"fit: a name of metrics must be a text, got {show(name)}.")
    if name in ("loss", "loss_step", "loss_epoch"):
        raise ArgumentError(
            f"fit: a name of metrics must not be {name!r}, as which the loss is logged. Take "
            "another."
        )


def _of_torchmetrics(metric: object) -> bool:
    parts = ("update", "compute", "reset", "clone")
    return isinstance(metric, nn.Module) and all(hasattr(metric, part) for part in parts)


def _function(kind: str, scored: Any, objectives: Mapping[str, Objective]) -> Objective:
    if isinstance(scored, str):
        if scored not in objectives:
            by_name = f" in metrics={{{scored!r}: function}}" if kind == "metric" else ""
            fix = f"Or give a function of (y, target){by_name}."
            raise UnknownNameError(kind, scored, objectives, fix)
        return objectives[scored]
    if isinstance(scored, type):
        name = scored.__name__
        raise ArgumentTypeError(
            f"fit: a {kind} must be a name, a function of (y, target) or an object of {name}, got "
            f"the class. Say {name}()."
        )
    if not callable(scored):
        raise ArgumentTypeError(
            f"fit: a {kind} must be a name or a function of (y, target), got {show(scored, 60)}. "
            f"Names are {', '.join(objectives)}."
        )
    function = cast(Scored, scored)
    called = getattr(scored, "forward", scored)  # of a module, such as nn.CrossEntropyLoss()
    try:
        wants = "lengths" in inspect.signature(called).parameters
    except (TypeError, ValueError):  # one that is built in says nothing
        wants = False
    return _WithLengths(function) if wants else _TwoArguments(function)


class _WithLengths:
    """A function of outputs, targets and ``lengths``."""

    def __init__(self, function: Scored) -> None:
        self.function = function

    def __call__(self, y: Tensor, target: Tensor, rows: Rows) -> Tensor:
        return self.function(y, target, lengths=rows.lengths)


class _TwoArguments:
    """A function of outputs and targets alone."""

    def __init__(self, function: Scored) -> None:
        self.function = function

    def __call__(self, y: Tensor, target: Tensor, rows: Rows) -> Tensor:
        return self.function(y, target)


def _classes(y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (n, classes) and classes (n,) of what is asked."""
    if target.is_floating_point() or target.is_complex():
        raise DTypeError(
            "fit: for cross_entropy and accuracy y of a batch must be the classes as integers, got "
            f"{target.dtype}. {_as_classes(y, target)}"
        )
    if y.ndim != target.ndim + 1 or y.shape[:-1] != target.shape:
        raise ShapeError(
            "fit: for cross_entropy and accuracy the model must answer with a score for each "
            f"class, {(*target.shape, 'classes')}, got {tuple(y.shape)} for targets "
            f"{tuple(target.shape)}. {_of_one_shape(y, target)}"
        )
    y, target = y.flatten(0, -2), target.flatten().long()  # (targets, classes), (targets,)
    is_target = target != IGNORE
    if not bool(is_target.all()):
        y, target = y[is_target], target[is_target]
    _check_classes(target, y.shape[-1])
    return y, target


def _as_classes(y: Tensor, target: Tensor) -> str:
    """The usual way from real numbers to classes."""
    if target.ndim > 1 and target.shape == y.shape:
        return "Of scores, or ones at the class, take the largest: y.argmax(-1)."
    if target.ndim > 1 and target.shape == (*y.shape[:-1], 1):
        return "Use y.squeeze(-1).long()."
    return "Use y.long(), or for numbers loss='mse' and metrics=['mae']."


def _of_one_shape(y: Tensor, target: Tensor) -> str:
    """The usual fix where scores and classes are of different shapes."""
    if target.shape == (*y.shape[:-1], 1):
        return "Use y.squeeze(-1)."
    if target.ndim >= y.ndim:
        return "For a target at each step build the model with pool='none'."
    return "For one target a sequence build the model with pool='mean' or 'last'."


def _check_classes(target: Tensor, classes: int) -> None:
    """Raise for a class that has no score: on a GPU PyTorch would end the program."""
    if target.numel() == 0:
        return
    low, high = (int(end) for end in target.aminmax())
    if low < 0 or high >= classes:
        raise ArgumentError(
            f"fit: the classes of y must be in 0..{classes - 1}, as many as the model has scores, "
            f"or {IGNORE} for steps without a target, got {low if low < 0 else high}. Count "
            "classes from 0, or give the model more outputs."
        )


def _numbers(y: Tensor, target: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Answers and what was asked, of one shape, without the padding of rows."""
    if y.shape != target.shape:  # PyTorch would stretch one of them, with a warning
        raise ShapeError(
            "fit: for mse, mae, huber and bce the model must answer in the shape of the target "
            f"{tuple(target.shape)}, got {tuple(y.shape)}. Is an axis of one number missing, "
            "y[:, None]?"
        )
    target = target.to(y.dtype)
    lengths = rows.lengths
    if lengths is None or not rows.per_step:
        return y, target
    steps = torch.arange(y.shape[1], device=y.device) < lengths.to(y.device)[:, None]
    return y[steps], target[steps]


def _cross_entropy(y: Tensor, target: Tensor, rows: Rows) -> Tensor:
    return F.cross_entropy(*_classes(y, target))


def _mse(y: Tensor, target: Tensor, rows: Rows) -> Tensor:
    return F.mse_loss(*_numbers(y, target, rows))


def _mae(y: Tensor, target: Tensor, rows: Rows) -> Tensor:
    return F.l1_loss(*_numbers(y, target, rows))


def _huber(y: Tensor, target: Tensor, rows: Rows) -> Tensor:
    return F.huber_loss(*_numbers(y, target, rows))


def _bce(y: Tensor, target: Tensor, rows: Rows) -> Tensor:
    return F.binary_cross_entropy_with_logits(*_numbers(y, target, rows))


def _accuracy(y: Tensor, target: Tensor, rows: Rows) -> Tensor:
    scores, classes = _classes(y, target)
    return (scores.argmax(-1) == classes).double()


def _elementwise(loss: Callable[..., Tensor]) -> Objective:
    def score(y: Tensor, target: Tensor, rows: Rows) -> Tensor:
        # the square of what float32 holds may be beyond it
        return loss(*_numbers(y.double(), target, rows), reduction="none").flatten()

    return score


_LOSSES: dict[str, Objective] = {
    "cross_entropy": _cross_entropy,
    "mse": _mse,
    "mae": _mae,
    "huber": _huber,
    "bce": _bce,
}
_METRICS: dict[str, Objective] = {
    "accuracy": _accuracy,
    "mse": _elementwise(F.mse_loss),
    "mae": _elementwise(F.l1_loss),
}


def of_numbers(objective: Objective) -> bool:
    """Whether it is one of ours that leaves padding out by the lengths of rows."""
    return objective in _LOSSES.values() and objective is not _cross_entropy


def check_targets(name: str, objective: Objective, target: Tensor) -> None:
    """Raise where a loss needs classes, and all targets of a batch are those of padding."""
    if objective is _cross_entropy and not bool((target != IGNORE).any()):
        raise ArgumentError(
            f"{name}: a batch must have at least one target, got only padding or {IGNORE}. Leave "
            "such batches out of the data."
        )


def check_scalar(name: str, value: Any, learns: bool) -> Tensor:
    """A loss, which must be a real number, and have a gradient where it is learned from."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ArgumentError(
            f"{name}: the loss must be a tensor of one number, the mean over a batch, got {got}."
        )
    _check_dense(name, "the loss", value)
    if not value.is_floating_point():
        raise DTypeError(f"{name}: the loss must be real and no integer, got {value.dtype}.")
    if learns and not value.requires_grad:
        raise ArgumentError(
            f"{name}: the loss must have a gradient, got one that depends on no parameter. Leave "
            "out detach(), item() and argmax() on the way to it, and let parameters of the model "
            "require gradients."
        )
    return value.reshape(())


def scores_of(label: str, value: Any) -> Tensor:
    """Check the scores of a batch by a metric, whose mean is logged: float64.

    Raises:
        ArgumentError, DTypeError: it is no number, and none for each row or target.
    """
    try:
        scores = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        scores = None
    if scores is None or scores.numel() == 0:
        raise ArgumentError(
            f"fit: the metric {label} must give a number, or one for each row, got {show(value)}."
        )
    _check_dense("fit", f"the metric {label}", scores)
    if scores.is_complex():
        raise DTypeError(f"fit: the metric {label} must be real, got {scores.dtype}.")
    return scores.detach().double()


def _check_dense(where: str, what: str, value: Tensor) -> None:
    if value.is_meta or value.is_quantized or value.layout != torch.strided:
        raise DTypeError(f"{where}: {what} must be a dense tensor of numbers, got {show(value)}.")
