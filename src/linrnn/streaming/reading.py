"""A model that reads on from a state, without gradients and at bounded memory."""

from typing import Any

import torch
from torch import Tensor

from linrnn import state as states
from linrnn.streaming.input import Streamable, pools
from linrnn.typing import State

CHUNK = 4096
"""Steps computed at once by default: enough to fill a processor, and few megabytes."""


@torch.no_grad()
def fresh(model: Streamable, rows: int) -> State:
    """The state before the first step, in new memory, without a history of gradients."""
    return states.map_state(lambda h: h.clone(), model.init_state(rows))


@torch.no_grad()
def read(
    model: Streamable,
    x: Tensor,
    state: State,
    *,
    chunk: int = CHUNK,
    dt: Tensor | None = None,
) -> tuple[Tensor, State]:
    """``model(x, state)`` without gradients, at most ``chunk`` steps at once.

    Args:
        model: in evaluation mode.
        x: (batch, time, channels), or (batch, time) of token ids.
        state: of as many rows.
        chunk: bounds the memory a call takes; a single step is read by ``model.step``.
        dt: times between steps (batch, time), or None.

    Returns:
        ``(y, state)`` as the model's `forward` gives them.
    """
    if x.shape[1] == 1:
        times: dict[str, Any] = {} if dt is None else {"dt": dt[:, 0]}
        y, state = model.step(x[:, 0], state, **times)
        return (y if pools(model) else y[:, None]), state
    if x.shape[1] <= chunk:
        y, state = model(x, state, **({} if dt is None else {"dt": dt}))
        return y, state
    ys = []
    for i, part in enumerate(x.split(chunk, 1)):
        times = {} if dt is None else {"dt": dt[:, i * chunk :][:, :chunk]}
        y, state = model(part, state, **times)
        ys.append(y)
    return (ys[-1] if pools(model) else torch.cat(ys, 1)), state
