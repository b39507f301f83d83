"""LEM against its equation, golden numbers and its bound."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from transcribed import check, golden, livelier, sigmoid, weights

from linrnn.errors import ArgumentError
from linrnn.mixers import LEM


def test_equals_a_transcription():
    torch.manual_seed(0)
    layer = livelier(LEM(3, d_state=4, step_size=0.6, dtype=torch.float64))
    p = weights(layer)
    V = dict(zip("srzy", np.split(p["V.weight"], 4), strict=True))
    b = dict(zip("srzy", np.split(p["V.bias"], 4), strict=True))
    W = dict(zip("srz", np.split(p["W.weight"], 3), strict=True)) | {"y": p["W_y.weight"]}
    c = dict(zip("srz", np.split(p["W.bias"], 3), strict=True)) | {"y": p["W_y.bias"]}

    def step(states, x, dt):
        y, z = states
        s, r = (0.6 * dt * sigmoid(W[k] @ y + c[k] + V[k] @ x + b[k]) for k in "sr")
        z = (1 - s) * z + s * np.tanh(W["z"] @ y + c["z"] + V["z"] @ x + b["z"])
        y = (1 - r) * y + r * np.tanh(W["y"] @ z + c["y"] + V["y"] @ x + b["y"])
        return p["out_proj.weight"] @ y + p["out_proj.bias"], [y, z]

    check(layer, step, 2)


def test_golden_numbers():
    layer = LEM(1, dtype=torch.float64)
    with torch.no_grad():
        for linear in (layer.V, layer.W, layer.W_y):
            linear.weight.fill_(1.0)
            linear.bias.zero_()
        layer.W.weight[:2, 0] = torch.tensor([0.5, -0.5])
    golden(layer, [0.4373201754, 0.2057363933, -0.0425181958, -0.2760546534, -0.0052091076])


def test_without_weights_states_go_half_way_to_their_biases():
    layer = LEM(2, dtype=torch.float64)
    with torch.no_grad():
        for p in layer.parameters():
            p.zero_()
        layer.V.bias[4:6], layer.W_y.bias[:] = 1.0, 2.0
    _, last = layer(torch.randn(1, 7, 2, dtype=torch.float64))
    for name, value in (("z", 1.0), ("y", 2.0)):
        wanted = (1 - 0.5**7) * torch.full((1, 2), value).double().tanh()
        torch.testing.assert_close(last[name], wanted, rtol=1e-12, atol=0)


def test_states_stay_within_one():
    torch.manual_seed(0)
    layer = livelier(LEM(6), std=20.0)
    x = 100 * torch.randn(4, 200, 6)
    y, last = layer(x, dt=torch.rand(4, 200))
    assert max(h.abs().max().item() for h in (y, *last.values())) <= 1 + 1e-6


def test_every_weight_is_uniform_within_the_root_of_the_width():
    layer = LEM(30, d_state=400)
    for p in (layer.V.weight, layer.W.weight, layer.W_y.weight, layer.out_proj.weight):
        few = p.detach().flatten()[:2000].double()
        assert kstest((few * 20 + 1) / 2, "uniform").pvalue > 0.01


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(ArgumentError, match="step_size must be positive and finite, got -1"):
        LEM(4, step_size=-1)
