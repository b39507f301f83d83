"""ODE-RNN: torchdiffeq between the inputs, the GRU of torch.nn at each."""

import torch
from torch.nn.functional import linear

from linrnn.mixers import ODERNN
from published.case import Case, compare, copies, fill, waves
from published.neural_ode import flow


def _layer(method, solver):
    ours = ODERNN(4, d_hidden=7, solver=solver, dtype=torch.float64)
    fill(list(ours.parameters()))
    leaves, gru = copies(ours), torch.nn.GRUCell(4, 4, dtype=torch.float64)
    gates = {n.removeprefix("gru."): w for n, w in leaves.items() if n.startswith("gru.")}

    def field(h):
        z = torch.tanh(linear(h, leaves["inner.weight"], leaves["inner.bias"]))
        return linear(z, leaves["outer.weight"], leaves["outer.bias"])

    def read(x):
        h, outputs = torch.zeros(len(x), 4, dtype=torch.float64), []
        for x_t in x.unbind(1):
            h = torch.func.functional_call(gru, gates, (x_t, flow(field, h, method)))
            outputs.append(h)
        return torch.stack(outputs, 1)

    return compare(ours, read, waves(2, 9, 4), leaves)


SOURCE = "torchdiffeq 0.2.5, odeint, and torch.nn.GRUCell"
CELL = (
    "its gates have two layers, and its cell carries a deviation beside the state and takes masks"
)
CASES = [
    Case("ode_rnn", "latent_ode@c0682d4, Encoder_z0_ODE_RNN", "default", "layer", None, note=CELL),
    *(
        Case("ode_rnn", SOURCE, f"method={m!r}", "layer", lambda m=m, s=s: _layer(m, s), 1e-12)
        for m, s in (("euler", "euler"), ("midpoint", "midpoint"), ("rk4", "rk4_38"))
    ),
]
