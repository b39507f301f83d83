"""The law that a layer equals its copies: stored weights, deep copies and pickles."""

import copy
import pickle
import sys

import safetensors.torch
import torch

from linrnn.state import flatten, unflatten
from linrnn.testing._mixer_runs import (
    BATCH,
    TIME,
    WIDTH,
    MakeMixer,
    build,
    busy_state,
    in_laws,
    quiet,
    signal,
)
from linrnn.testing._tolerance import BrokenPropertyError, check_true


def round_trip(make: MakeMixer) -> None:
    """Parameters and states in safetensors, a deep copy and a pickle give the same bits."""
    mixer = build(make)
    x, state = signal(BATCH, TIME, WIDTH), busy_state(mixer)
    y, _ = mixer(x, state)
    data = safetensors.torch.save({n: p.contiguous() for n, p in mixer.state_dict().items()})
    torch.manual_seed(99)
    restored = quiet(make(d_model=WIDTH, dtype=torch.float64, **in_laws(make)))
    restored.load_state_dict(safetensors.torch.load(data))
    stored = safetensors.torch.load(safetensors.torch.save(flatten(state)))
    y_again, _ = restored(x, unflatten(stored, mixer.init_state(1)))
    check_true("outputs differ after a round trip", torch.equal(y, y_again))
    check_true("a deep copy gives other outputs", torch.equal(y, copy.deepcopy(mixer)(x, state)[0]))
    if _importable(type(mixer)):  # else no pickle can name the class
        try:
            again = pickle.loads(pickle.dumps(mixer))  # noqa: S301 - our own bytes
        except Exception as error:
            raise BrokenPropertyError(
                f"a layer must be picklable, as torch.save(model) and worker processes need, got "
                f"{type(error).__name__}: {error}. Make a cell that depends on options in a "
                f"function decorated with linrnn.cells.cell_factory."
            ) from error
        check_true("a pickle gives other outputs", torch.equal(y, again(x, state)[0]))


def _importable(cls: type) -> bool:
    """Whether a module has the class under its name."""
    return getattr(sys.modules.get(cls.__module__), cls.__qualname__, None) is cls
