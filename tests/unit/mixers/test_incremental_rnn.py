"""iRNN against its equation, SciPy's fixed point, and its derivative of -I."""

import numpy as np
import pytest
import torch
from scipy.optimize import root
from transcribed import check, livelier, weights

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import IncrementalRNN

F64 = {"dtype": torch.float64}
ACTS = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}


@pytest.mark.parametrize(
    ("act", "count", "readout"), [("relu", 1, "state"), ("tanh", 3, "equilibrium")]
)
def test_equals_a_transcription(act, count, readout):
    torch.manual_seed(0)
    options = {"n_iterations": count, "act": act, "readout": readout}
    layer = livelier(IncrementalRNN(3, d_state=4, **options, **F64))
    p = weights(layer)

    def step(states, x, dt):
        (h,) = states
        g = np.zeros(4)
        for eta in p["rates"]:
            s = g + h
            drive = ACTS[act](p["U"] @ s + p["V.weight"] @ x + p["V.bias"])
            g = g + eta * dt * (drive - p["decay"] * s)
        y = g + h if readout == "equilibrium" else g
        return p["out_proj.weight"] @ y + p["out_proj.bias"], [g]

    check(layer, step, 1)


def test_many_iterations_reach_the_equilibrium_and_a_derivative_of_minus_one():
    torch.manual_seed(0)
    layer = IncrementalRNN(5, n_iterations=30, act="tanh", readout="equilibrium", **F64)
    p = weights(layer)
    x, h = torch.randn(1, 1, 5, **F64), torch.randn(1, 5, **F64)
    u = p["V.weight"] @ x[0, 0].numpy()
    found = root(lambda s: np.tanh(p["U"] @ s + u) - s, np.zeros(5), tol=1e-13)
    assert found.success
    torch.testing.assert_close(layer(x, h)[0][0, 0], torch.from_numpy(found.x))
    jacobian = torch.autograd.functional.jacobian(lambda h: layer(x, h)[1][0], h)[:, 0]
    torch.testing.assert_close(jacobian, -torch.eye(5, **F64), rtol=0, atol=1e-9)


def test_gradients_keep_their_size_for_five_hundred_steps():
    torch.manual_seed(0)
    layer = IncrementalRNN(5, n_iterations=30, act="tanh", **F64)
    h = torch.zeros(1, 5, **F64, requires_grad=True)
    last = layer(torch.randn(1, 500, 5, **F64), h)[1]
    (grad,) = torch.autograd.grad(last[0, 0], h)
    assert grad.norm().item() == pytest.approx(1, rel=1e-3)


def test_initial_spread():
    layer = IncrementalRNN(200, d_state=300, alpha=2.0, eta=0.5)
    assert layer.U.std().item() == pytest.approx(0.1, rel=0.02)
    assert layer.V.weight.std().item() == pytest.approx(0.1, rel=0.02)
    assert not layer.V.bias.any()
    assert (layer.decay.item(), *layer.rates.tolist()) == (2.0, *[0.5] * 5)


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(ArgumentError, match="n_iterations must be an integer from 1 to 64, got 0"):
        IncrementalRNN(4, n_iterations=0)
    with pytest.raises(UnknownNameError, match="readout"):
        IncrementalRNN(4, readout="both")
