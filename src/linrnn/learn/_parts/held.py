"""An input that is held until the state settles."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from linrnn.errors import NonFiniteError
from linrnn.learn._exact.influence import flat
from linrnn.learn._exact.owners import real_parts, with_real_parts
from linrnn.learn._parts.batch import Batch, read
from linrnn.state import detach
from linrnn.typing import State


def apart(batch: Batch) -> tuple[Batch, Batch]:
    """Split a batch: it with padding replaced by each row's last input, and that input alone."""
    x, target, lengths, _, dt = batch
    time = x.shape[1]
    ends = torch.full((len(x),), time, device=x.device) if lengths is None else lengths.clamp(min=1)
    rows, steps = torch.arange(len(x), device=x.device), torch.arange(time, device=x.device)
    valid = torch.minimum(steps, ends[:, None] - 1)  # the step that stands at each place
    filled = x[rows[:, None], valid]
    times = None if dt is None else dt[rows[:, None], valid]
    reset = None if batch.reset is None else batch.reset & (steps < ends[:, None])
    last = None if times is None else times[:, -1:]
    return (
        Batch(filled, target, None, reset, times),
        Batch(filled[:, -1:], target, None, None, last),
    )


def settle(
    model: nn.Module,
    reading: Batch,
    held_input: Batch,
    carried: State | None,
    hold: int,
    settled: float,
) -> State:
    """The state that a held input leads to; running statistics of the model stay as they are.

    Args:
        model: what reads.
        reading, held_input: from `apart`.
        carried: the state before; None: nothing was read yet.
        hold: steps at most.
        settled: change in a step, as a part of the state, at which it ends.

    Raises:
        NonFiniteError: the state changes as much after all steps as it did in the first.
    """
    step = _with_buffers(model)
    first = change = torch.inf
    with torch.no_grad():
        _, state = read(step, reading, carried)
        for count in range(hold):
            previous, (_, state) = flat(state), read(step, held_input, state)
            h = flat(state)
            change = float((h - previous).norm() / h.norm().clamp(min=1e-30))
            first = first if count else change
            if not change > settled:  # or not a number, which is not ours to find
                return detach(state)
    if change >= first and hold > 1:
        raise NonFiniteError(
            "RBP: the state must settle where the last input is held, got a change of "
            f"{change:.3g} of it in step {hold}, after {first:.3g} in the first. Start with "
            "smaller recurrent weights, or raise the weight of the penalty, lipschitz."
        )
    return detach(state)


def with_flat(state: State, h: Tensor) -> State:
    """A state with other numbers: the inverse of `flat`."""
    sizes = [part.shape[1] for part in real_parts(state)]
    return with_real_parts(state, h.split(sizes, 1))


def _with_buffers(model: nn.Module) -> Callable[..., Any]:
    """The model, with temporary running statistics."""
    buffers = {n: b.detach().clone() for n, b in model.named_buffers()}

    def called(*args: Any, **kwargs: Any) -> Any:
        return functional_call(model, buffers, args, kwargs)

    return called
