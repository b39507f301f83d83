"""Calls of a mixer that may be one native call: a sequence of one step, and a step with signals."""

from functools import partial
from typing import Any

from torch import Tensor

from linrnn.engine.replay.step import cleared, marks_rows, recorded_step
from linrnn.mixers._contract.signals import grows
from linrnn.state import leaves
from linrnn.typing import Signals, State


def recorded_sequence(layer: Any, x: Any, state: Any, reset: Any) -> tuple[Any, State] | None:
    """A sequence of one step in one native call; None where it must be read as it is.

    Nothing has been checked: what does not fit a record is read as it is, and checked there.
    """
    if type(x) is not Tensor or x.ndim != 3 or x.shape[1] != 1 or not layer.causal:
        return None
    if reset is not None:
        if not marks_rows(reset, x.shape[:2]) or layer.form in layer.without_reset:
            return None
        if state is not None and reset.any():
            state = partial(cleared, state, reset, 0)
    if state is None:
        state = partial(layer.init_state, x.shape[0])
    done = recorded_step(layer, layer._step_by_operators, x[:, 0], state)
    return None if done is None else (done[0].unsqueeze(1), done[1])


def step_with_signals(
    layer: Any, x_t: Any, state: State, dt: Tensor | None, signals: Signals
) -> tuple[Any, State, Signals]:
    """A step whose state and signals are one tree, which is what can be recorded."""

    def step(x_t: Tensor, tree: Any) -> tuple[Tensor, State]:
        y, state, *outgoing = layer._step_by_operators(x_t, tree["state"], dt, tree["signals"])
        return y, {"state": state, "signals": dict(*outgoing)}

    read = {name: signals[name] for name in layer.receives if name in signals}
    tree: Any = {"state": state, "signals": read}
    spec = layer.signal_spec() if dt is None else {}
    done = None
    if dt is None and not any([grows(spec[name]) for name in read]):
        done = recorded_step(layer, step, x_t, tree, "with signals")
    y, tree = step(x_t, tree) if done is None else done
    return y, tree["state"], tree["signals"]


def apart(y: Tensor, state: Any) -> tuple[Tensor, Any]:
    """Both in memory of their own: a GRU answers with its state, which ``y.relu_()`` changes."""
    return (y.clone() if any(y is h for h in leaves(state)) else y), state
