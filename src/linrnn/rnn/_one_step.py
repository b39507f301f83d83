"""Calls of `linrnn.RNN` with a single step, which one native call can answer."""

from functools import partial
from typing import Any

from torch import Tensor

from linrnn.engine.replay.step import Step, cleared, marks_rows, recorded_step
from linrnn.state import map_state
from linrnn.typing import State


def recorded(rnn: Any, step: Step, input: Any, hx: Any, reset: Any) -> tuple[Tensor, State] | None:
    """A call with one step in one native call; None where it must be run as it is.

    Nothing has been checked: what does not fit a record is run as it is, and checked there.

    Args:
        rnn: an `RNN`.
        step: its step, of an input (batch, channels) and a state of its form.
        input, hx, reset: of the call.
    """
    if type(input) is not Tensor or input.ndim not in (2, 3):
        return None
    alone, time = input.ndim == 2, int(rnn.batch_first)
    if input.shape[0 if alone else time] != 1:
        return None
    x = input if alone else input.select(time, 0)
    if hx is None:
        state: Any = partial(rnn.init_state, x.shape[0])
    else:
        state = map_state(_with_batch, hx) if alone else hx
    if reset is not None:
        if rnn.bidirectional or not marks_rows(reset, input.shape[:-1]):
            return None
        if hx is not None and reset.any():
            state = partial(cleared, state, reset, 1)
    done = recorded_step(rnn, step, x, state)
    if done is None:
        return None
    y, h_n = done
    return (y, map_state(_without_batch, h_n)) if alone else (y.unsqueeze(time), h_n)


def _with_batch(h: Any) -> Any:
    """A part of a state with an axis of one row; what is no such part stays what it is."""
    return h.unsqueeze(1) if isinstance(h, Tensor) and h.ndim else h


def _without_batch(h: Tensor) -> Tensor:
    return h.squeeze(1)
