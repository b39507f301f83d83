"""The functions that the training loop lends a learner, and the result of a learner's step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from linrnn.typing import State


class Step(NamedTuple):
    """Loss, output and state of a batch, all without a history."""

    loss: Tensor
    """Scalar: the mean over the batch."""
    y: Tensor
    """The output of the model, as `Loop.loss` and a task's scores take it."""
    state: State
    """State of the model, after the batch."""


def _no_update() -> None:
    """Stands for a step of the optimiser where there is none."""


@dataclass(frozen=True)
class Loop:
    """The functions that the training loop lends a learner.

    Args:
        loss: of an answer and its target: a scalar, the mean over what is asked in them.
        backward: adds the gradients of a scalar to ``.grad``; a loop may scale it or switch
            autocast off in it, so a learner calls this and not the tensor's own.
        update: takes a step of the optimiser with what ``.grad`` holds, checked and clipped, and
            clears it. The loop does that itself after a batch; a learner that calls this takes
            more steps inside one.

    Example:
        >>> from linrnn import SequenceModel, learn
        >>> model, mse = SequenceModel(1, 1, d_model=4, n_layers=1), torch.nn.functional.mse_loss
        >>> batch = learn.Batch(torch.randn(2, 9, 1), torch.randn(2, 1), None, None)
        >>> step = learn.build("bptt").step(model, batch, None, Loop(mse))
        >>> bool(step.loss > 0), model.head.weight.grad.shape
        (True, torch.Size([1, 4]))
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    backward: Callable[[Tensor], None] = torch.autograd.backward
    update: Callable[[], None] = _no_update
