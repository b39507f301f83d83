"""From the units of the data to what a model reads, and from what it answers back to them."""

from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from linrnn.backbone import Model
from linrnn.errors import ArgumentError
from linrnn.streaming.input import pools
from linrnn.tasks import Task


class Scale(NamedTuple):
    """``y = scale * x + shift``, of the channels of a step."""

    scale: Tensor
    shift: Tensor

    def plain(self) -> dict[str, Any]:
        """The scale as values that JSON has."""
        return {"scale": self.scale.tolist(), "shift": self.shift.tolist()}


def input_scale(task: Task) -> Scale | None:
    """The map from steps in the units of the data to what a model reads.

    None where it reads tokens, or copies of a step beside marks of what is missing.

    Raises:
        ArgumentError: what it reads of a step depends on others.
    """
    if task.encoder == "tokens" or task.channels != task.d_input:
        return None
    zero = torch.zeros(1, 1, task.d_input, dtype=torch.float64)
    shift = task.scaled(zero)
    return Scale((task.scaled(zero + 1) - shift)[0, 0], shift[0, 0])


def output_scale(task: Task, model: Model) -> Scale | None:
    """The map from a model's answers to numbers in the units of the data; None of classes."""
    if task.kind != "regression":
        return None
    steps = () if pools(model) else (1,)
    zero = torch.zeros(1, *steps, task.d_output, dtype=torch.float64)
    first = (0,) * (1 + len(steps))
    shift = task.numbers(zero)[first]
    return Scale(task.numbers(zero + 1)[first] - shift, shift)


def named(task: Task, y: Tensor) -> np.ndarray:
    """Answers in words: the names of classes, or numbers in the units of the data."""
    if task.kind == "regression":
        numbers: np.ndarray = task.numbers(y.cpu()).numpy()
        return numbers
    names = task.class_names or tuple(map(str, range(task.d_output)))
    labels: np.ndarray = np.array(names)[y.argmax(-1).cpu().numpy()]
    return labels


def described(name: str, task: Task, model: Model, *, times: bool = False) -> dict[str, Any]:
    """Describe, for JSON, what a program that runs a model without this package has to know."""
    read, answer = None, output_scale(task, model)
    with suppress(ArgumentError):  # then no such map makes of a step what is read
        read = input_scale(task)
    return {
        "name": name,
        "kind": task.kind,
        "classes": list(task.class_names or ()),
        "input": None if read is None else read.plain(),
        "output": None if answer is None else answer.plain(),
        **({"time_unit": task.time_unit} if times else {}),
    }
