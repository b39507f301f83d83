"""Neural ODE and the package torchdiffeq, whose solver goes from each input to the next."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from linrnn.mixers import NeuralODE
from published.case import Case, compare, copies, fill, waves


def flow(field, h: Tensor, method: str) -> Tensor:
    """The state after a time of 1 by torchdiffeq, from ``h``."""
    from torchdiffeq import odeint

    times = torch.tensor([0.0, 1.0], dtype=h.dtype)
    return odeint(lambda _, h: field(h), h, times, method=method)[-1]


def _layer(method, solver, substeps=1):
    ours = NeuralODE(4, d_hidden=7, solver=solver, substeps=substeps, dtype=torch.float64)
    fill(list(ours.parameters()))
    leaves = copies(ours)

    def read(x):
        h, outputs = torch.zeros(len(x), 4, dtype=torch.float64), []
        for x_t in x.unbind(1):
            u = linear(x_t, leaves["in_proj.weight"], leaves["in_proj.bias"])

            def field(h, u=u):
                z = torch.tanh(linear(h, leaves["inner.weight"]) + u)
                return linear(z, leaves["outer.weight"], leaves["outer.bias"])

            h = flow(field, h, method)
            outputs.append(h)
        return torch.stack(outputs, 1)

    return compare(ours, read, waves(2, 9, 4), leaves)


SOURCE = "torchdiffeq 0.2.5, odeint"
CASES = [
    Case(
        "neural_ode",
        SOURCE,
        "default, method='dopri5'",
        "layer",
        lambda: _layer("dopri5", "rk4", substeps=32),
        1e-4,
        "theirs chooses its steps by rtol=1e-7; ours takes 32 by solver='rk4'",
    ),
    *(
        Case("neural_ode", SOURCE, f"method={m!r}", "layer", lambda m=m, s=s: _layer(m, s), 1e-12)
        for m, s in (("euler", "euler"), ("midpoint", "midpoint"), ("rk4", "rk4_38"))
    ),
]
