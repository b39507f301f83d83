"""The input of a learner: a batch by names, or a range of its steps."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.typing import State


class Batch(NamedTuple):
    """A batch of a data set, by names."""

    x: Tensor
    target: Tensor
    lengths: Tensor | None
    """(batch,) integers: valid steps of rows that are padded."""
    reset: Tensor | None
    """(batch, time) boolean: a new sequence begins."""
    dt: Tensor | None = None
    """(batch, time) real: time since the step before."""


def unpack(batch: Sequence[Tensor]) -> Batch:
    """Tell apart by their dtype what may come after input and target."""
    x, target, *more = batch
    extras = {_kind(extra): extra for extra in reversed(more)}
    return Batch(x, target, extras.get("lengths"), extras.get("reset"), extras.get("dt"))


def _kind(extra: Tensor) -> str:
    if extra.dtype == torch.bool:
        return "reset"
    return "dt" if extra.is_floating_point() else "lengths"


def read(
    model: Callable[..., Any], batch: Batch, state: State | None, steps: slice | None = None
) -> tuple[Tensor, State]:
    """Run a model on a batch, or on some steps of it; returns its answer and the state after.

    Args:
        model: called as ``model(x, state)``, with ``lengths``, ``reset`` and ``dt`` where a
            batch has them.
        batch: the whole.
        state: before those steps; None: nothing was read yet.
        steps: which, along the second axis. Default: all.
    """
    x, _, lengths, reset, dt = batch
    if steps is not None:
        x = x[:, steps]
        lengths = None if lengths is None else (lengths - steps.start).clamp(0, x.shape[1])
        reset, dt = (None if v is None else v[:, steps] for v in (reset, dt))
    options = {"lengths": lengths, "reset": reset, "dt": dt}
    y, next_state = model(x, state, **{k: v for k, v in options.items() if v is not None})
    return y, next_state
