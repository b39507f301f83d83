"""TARNN against its equation, the input before the first, its fixed point."""

import numpy as np
import pytest
import torch
from transcribed import check, livelier, sigmoid, weights

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import TARNN

F64 = {"dtype": torch.float64}
ACTS = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}


@pytest.mark.parametrize("gate", ["after", "inside"])
@pytest.mark.parametrize(("act", "count"), [("relu", 1), ("tanh", 3)])
def test_equals_a_transcription(gate, act, count):
    torch.manual_seed(0)
    layer = livelier(TARNN(3, d_state=4, n_iterations=count, gate=gate, act=act, **F64))
    p = weights(layer)
    W_1, W_g = np.split(p["W.weight"], 2)
    b_1, b_g = np.split(p["W.bias"], 2)

    def step(states, x, dt):
        h, before, begun = states
        before = before[:3] if begun.any() else x
        g = sigmoid(p["U_g"] @ h + W_g @ x + b_g)
        q = p["U_2"] @ h + W_1 @ x + p["W_2.weight"] @ before + b_1
        s = h
        for eta in dt * p["rates"]:
            F = ACTS[act](p["U_1"] @ s + q) - s - h + p["B_1.weight"] @ x + p["B_2"] @ h
            s = (1 - eta) * s + eta * F if gate == "after" else s + eta * g * F
        h = (1 - g) * h + g * s if gate == "after" else s
        kept = np.append(x, 0.0)
        return p["out_proj.weight"] @ h + p["out_proj.bias"], [h, kept, np.ones(4)]

    check(layer, step, 3)


def test_a_closed_gate_keeps_the_state():
    layer = livelier(TARNN(3, **F64))
    with torch.no_grad():
        layer.W.bias[3:] = -1e4
    state = layer.init_state(2) | {"h": torch.randn(2, 3, **F64)}
    last = layer(torch.randn(2, 20, 3, **F64), state)[1]
    torch.testing.assert_close(last["h"], state["h"], rtol=0, atol=1e-12)


def test_many_iterations_with_the_gate_inside_reach_the_equilibrium():
    torch.manual_seed(0)
    layer = TARNN(3, n_iterations=40, gate="inside", act="tanh", eta=1.0, **F64)
    x, h = torch.randn(1, 1, 3, **F64), torch.randn(1, 3, **F64)
    s = layer(x, layer.init_state(1) | {"h": h})[1]["h"]
    u, (W_1, _) = x[:, 0], layer.W.weight.split(3)
    q = h @ layer.U_2.mT + u @ W_1.mT + layer.W_2(u)
    rest = torch.tanh(s @ layer.U_1.mT + q) - h + layer.B_1(u) + h @ layer.B_2.mT
    torch.testing.assert_close(s, rest, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("gate", "bias"), [("after", -3.0), ("inside", 0.0)])
def test_initial_values(gate, bias):
    layer = TARNN(200, d_state=300, gate=gate, eta=0.02, n_iterations=2)
    W = layer.W.weight, layer.B_1.weight, layer.W_2.weight
    for weight in (*W, layer.U_1, layer.U_2, layer.U_g, layer.B_2):
        assert weight.std().item() == pytest.approx(0.1, rel=0.02)
    assert layer.W.bias.unique().tolist() == sorted({0.0, bias})
    assert layer.rates.tolist() == pytest.approx([0.02, 0.02])


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(ArgumentError, match="eta must be positive and finite, got 0"):
        TARNN(4, eta=0)
    with pytest.raises(UnknownNameError, match="gate"):
        TARNN(4, gate="before")
