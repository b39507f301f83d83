"""Equations of one step written out in NumPy, float64, against layers that are one cell."""

import numpy as np
import torch


def weights(layer):
    """The parameters by name, as arrays."""
    return {name: p.detach().numpy() for name, p in layer.named_parameters()}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def livelier(layer, std=0.5):
    """Parameters of order one: the initial ones leave some terms out."""
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_(std=std)
    return layer


def check(layer, step, n_states, width=None, time=9):
    """Whole, in two pieces, and with uneven times, the layer gives what the equation gives.

    Args:
        layer: of float64.
        step: ``step(states, x_t, dt_t)`` returns ``(y_t, states)``, of one row of a batch.
        n_states: how many there are, zeros before the first step.
        width: of each.
        time: steps.
    """
    torch.manual_seed(1)
    x = torch.randn(2, time, layer.d_model, dtype=torch.float64)
    uneven = torch.rand(2, time, dtype=torch.float64) + 0.2
    for dt in (None, uneven) if layer.timed else (None,):
        numbers = np.ones((2, time)) if dt is None else dt.numpy()
        wanted = np.zeros(x.shape)
        for i in range(2):
            states = [np.zeros(width or layer.d_state) for _ in range(n_states)]
            for t in range(time):
                wanted[i, t], states = step(states, x[i, t].numpy(), numbers[i, t])
        given = {} if dt is None else {"dt": dt}
        y, _ = layer(x, **given)
        torch.testing.assert_close(y, torch.from_numpy(wanted), rtol=1e-11, atol=1e-12)
        cut = ({}, {}) if dt is None else ({"dt": dt[:, :4]}, {"dt": dt[:, 4:]})
        first, state = layer(x[:, :4], **cut[0])
        second, _ = layer(x[:, 4:], state, **cut[1])
        torch.testing.assert_close(torch.cat([first, second], 1), y, rtol=1e-12, atol=1e-13)


def golden(layer, numbers):
    """The outputs for the input cos(t), t = 1, 2, ..., of a layer of one channel."""
    x = torch.arange(1, len(numbers) + 1, dtype=torch.float64).cos()
    got = layer(x[None, :, None])[0].flatten()
    torch.testing.assert_close(got, torch.tensor(numbers).double(), rtol=0, atol=1e-7)


def state_jacobian(layer, state, steps, x=None):
    """The derivative of all states after some steps with respect to those before, one row."""
    names = list(state)

    def run(*parts):
        begun = dict(zip(names, (p[None] for p in parts), strict=True))
        u = torch.zeros(1, steps, layer.d_model, dtype=torch.float64) if x is None else x
        last = layer(u, begun)[1]
        return torch.cat([last[n][0] for n in names])

    found = torch.autograd.functional.jacobian(run, tuple(state[n][0] for n in names))
    return torch.cat(found, 1)
