"""The nonlinear recurrences, one step after another, by PyTorch's kernels."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from linrnn.ops._opaque import opaque

_KERNELS: dict[str, Any] = {
    "gru": torch.gru,
    "lstm": torch.lstm,
    "tanh": torch.rnn_tanh,
    "relu": torch.rnn_relu,
}
_CELLS: dict[str, Any] = {
    "gru": torch.gru_cell,
    "tanh": torch.rnn_tanh_cell,
    "relu": torch.rnn_relu_cell,
}


def _shapes(
    x: Tensor, state: list[Tensor], weights: list[Tensor], reset: Tensor | None, kind: str
) -> tuple[Tensor, ...]:
    y = x.new_empty(x.shape[0], x.shape[1], weights[1].shape[1])
    return y, *(h.new_empty(h.shape) for h in state)


@opaque(
    "recurrence", "Tensor x, Tensor[] state, Tensor[] weights, Tensor? reset, str kind", _shapes
)
def recurrence(
    x: Tensor, state: list[Tensor], weights: list[Tensor], reset: Tensor | None, kind: str
) -> tuple[Tensor, ...]:
    """``gru``, ``lstm``, ``tanh`` or ``relu`` over at least one step.

    Args:
        x: (batch, time, d_model).
        state: before the first step, (batch, d_state) each: h, of the LSTM h and c.
        weights: in the order of PyTorch's kernels.
        reset: boolean (batch, time) or None.
        kind: which recurrence.

    Returns:
        The outputs (batch, time, d_state), then the state after the last step.
    """
    ys = []
    for begin, end in stretches(reset, x.shape[1]):
        if reset is not None:
            # a choice and not a product, for what is forgotten may be NaN
            state = [torch.where(reset[:, begin, None], 0.0, h) for h in state]
        y, state = _stretch(x[:, begin:end], state, weights, kind)
        ys.append(y)
    return torch.cat(ys, 1) if len(ys) > 1 else ys[0], *state


def _stretch(
    x: Tensor, state: list[Tensor], weights: list[Tensor], kind: str
) -> tuple[Tensor, list[Tensor]]:
    if x.shape[1] == 1 and kind in ("gru", "lstm"):
        state = cell(x[:, 0], state, weights, kind)
        return state[0][:, None], state
    start = [h[None] for h in state]
    train = torch.is_grad_enabled()  # cuDNN keeps what its backward needs only if told to
    y, *last = _KERNELS[kind](
        x,
        tuple(start) if kind == "lstm" else start[0],
        weights,
        len(weights) > 2,
        1,
        0.0,
        train,
        False,
        True,
    )
    return y, [h[0] for h in last]


def cell(x_t: Tensor, state: list[Tensor], weights: list[Tensor], kind: str) -> list[Tensor]:
    """The state after one step (batch, d_model) of which the first part is the output."""
    if kind == "lstm":
        return list(torch.lstm_cell(x_t, (state[0], state[1]), *weights))
    return [_CELLS[kind](x_t, state[0], *weights)]


def stretches(reset: Tensor | None, time: int) -> list[tuple[int, int]]:
    """The spans (begin, end) of time inside which no row of a batch starts anew.

    Example:
        >>> stretches(torch.tensor([[False, False, True], [False, False, False]]), 3)
        [(0, 2), (2, 3)]
    """
    cuts = [0]
    if reset is not None:
        cuts += [t for t in reset.any(0).nonzero().flatten().tolist() if t]
    return list(pairwise([*cuts, time]))
