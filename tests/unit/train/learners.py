"""A learner with a memory, put into a catalogue beside ours for as long as a test lasts."""

import sys
from contextlib import contextmanager

from linrnn import learn

SOURCE = '''"""A learner of a test."""

import torch

from linrnn.errors import ArgumentError
from linrnn.learn import Learner, Step, read
from linrnn.mixers import Mixer
from linrnn.state import detach


class Averaged(Learner):
    """Back-propagation whose gradients are means over the steps, weighted by a trace of each row.

    Args:
        decay: of the means.
    """

    def __init__(self, *, decay: float = 0.9) -> None:
        self.decay, self.means, self.trace = decay, {}, None

    def check(self, model):
        for name, layer in model.named_modules():
            if isinstance(layer, Mixer) and type(layer).__name__ == "GRU":
                raise ArgumentError(f"Averaged: every layer must be other than {name} (GRU).")

    def step(self, model, batch, carried, loop):
        y, after = read(model, batch, carried)
        loss = loop.loss(y, batch.target)
        loop.backward(loss)
        rows = len(batch.x)
        before = torch.zeros(rows) if carried is None else self.trace[:rows]
        self.trace = 0.5 * before + 1
        scale = float(self.trace.mean())
        for name, p in model.named_parameters():
            mean = self.means.get(name, torch.zeros_like(p))
            self.means[name] = self.decay * mean + (1 - self.decay) * scale * p.grad
            p.grad = self.means[name].clone()
        return Step(loss.detach(), y.detach(), detach(after))

    def state_dict(self):
        return {} if self.trace is None else {"trace": self.trace, **self.means}

    def load_state_dict(self, state):
        if state and "trace" not in state:
            raise ArgumentError(f"Averaged: the state must have a trace, got {sorted(state)}.")
        self.means = {n: x for n, x in state.items() if n != "trace"}
        self.trace = state.get("trace")
'''


@contextmanager
def averaged_in(folder):
    """Inside, ``averaged`` is a learner of the catalogue."""
    (folder / "averaged.py").write_text(SOURCE)
    learn.__path__.append(str(folder))
    try:
        yield "averaged"
    finally:
        learn.__path__.remove(str(folder))
        sys.modules.pop("linrnn.learn.averaged", None)
        vars(learn).pop("averaged", None)
