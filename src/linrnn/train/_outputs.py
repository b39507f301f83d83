"""The outputs of a model for a batch: in one pass, or in chunks with the state carried over."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from linrnn.backbone import Model
from linrnn.learn import Batch
from linrnn.state import map_state
from linrnn.tasks import IGNORE
from linrnn.typing import State

CHUNK = 8192
"""Steps that are read at once where a model can be streamed."""


def outputs(
    model: Model,
    x: Tensor,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    dt: Tensor | None = None,
) -> Tensor:
    """The model's output for its input, read in one pass on the model's device."""
    x, arguments = _placed(model, x, lengths, reset, dt)
    y: Tensor = model(x, **arguments)[0]
    return y


def first_rows(state: State | None, rows: int) -> State | None:
    """A carried state for a batch that may be without the last rows of the one before."""
    return None if state is None else map_state(lambda h: h[:rows], state)


def carried_answers(model: Model, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
    """`answers` to batches whose rows each go on where they ended in the batch before."""
    state = None
    for x, target, *more in batches:
        x, arguments = _placed(model, x, *more)
        y, state = model(x, first_rows(state, len(x)), **arguments)
        yield y, target.to(y.device)


def why_not_streamed(model: Model) -> str | None:
    """Why a model has to read a sequence in one pass; None if it can carry its state over."""
    if model.documents > 1:
        return "it compares whole documents"
    for mixer in model.mixers:
        if not mixer.causal:
            return "it reads in both directions"
        if "constant_memory" in mixer.declared:
            return f"the state of {type(mixer).__name__} grows with what was read"
    return None


def answers(model: Model, batch: "Batch", chunk: int | None) -> tuple[Tensor, Tensor]:
    """Output and target of a batch, both on the model's device.

    In chunks, with one output a step, those steps are left out for which no row has a target; what
    a task's loss and scores say does not depend on them.

    Args:
        model: in evaluation mode; one for which `why_not_streamed` is None where there is a chunk.
        batch: on any device.
        chunk: steps that are read at a time, with the state carried over; None reads them all.

    Returns:
        ``(y, target)``.
    """
    x, target, lengths, reset, dt = batch
    if chunk is None:
        y = outputs(model, x, lengths, reset, dt)
        return y, target.to(y.device)
    state, parts, targets = None, [], []
    per_step = model.pool.kind == "none"
    for start in range(0, x.shape[1], chunk):
        steps = slice(start, start + chunk)
        ends = None if lengths is None else (lengths - start).clamp(0, x[:, steps].shape[1])
        cut = (None if v is None else v[:, steps] for v in (reset, dt))
        piece, arguments = _placed(model, x[:, steps], ends, *cut)
        y, state = model(piece, state, **arguments)
        if per_step:
            has_target = _has_target(target[:, steps])
            parts.append(y[:, has_target.to(y.device)])  # (batch, steps, d_output)
            targets.append(target[:, steps][:, has_target])
    if per_step:
        y, target = torch.cat(parts, 1), torch.cat(targets, 1)
    return y, target.to(y.device)


def _has_target(target: Tensor) -> Tensor:
    """(time,): whether a step has a target in any row."""
    if target.is_floating_point() or target.ndim > 2:
        return torch.ones(target.shape[1], dtype=torch.bool)
    has_target: Tensor = (target != IGNORE).any(0)
    return has_target


def _placed(
    model: Model,
    x: Tensor,
    lengths: Tensor | None,
    reset: Tensor | None,
    dt: Tensor | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Inputs on the device, of the dtype of the weights if they are real numbers; and the rest."""
    weight = model.head.weight
    x = x.to(weight.device, weight.dtype) if x.is_floating_point() else x.to(weight.device)
    arguments = {"lengths": lengths, "reset": reset, "dt": dt}
    return x, {k: v.to(weight.device) for k, v in arguments.items() if v is not None}
