"""AntisymmetricRNN against its equation, and what its matrix is for."""

from functools import partial

import numpy as np
import pytest
import torch
from transcribed import check, livelier, sigmoid, weights

from linrnn.errors import ArgumentError
from linrnn.mixers import AntisymmetricRNN
from linrnn.testing import MIXER_PROPERTIES


@pytest.mark.parametrize("gated", [False, True])
def test_equals_a_transcription(gated):
    torch.manual_seed(0)
    options = {"gated": gated, "step_size": 0.4, "gamma": 0.3, "dtype": torch.float64}
    layer = livelier(AntisymmetricRNN(3, d_state=4, **options))
    p = weights(layer)
    A = p["M"] - p["M"].T - 0.3 * np.eye(4)

    def step(states, x, dt):
        (h,) = states
        inputs = p["V.weight"] @ x + p["V.bias"]
        gate = sigmoid(A @ h + inputs[4:]) if gated else 1.0
        h = h + 0.4 * dt * gate * np.tanh(A @ h + inputs[:4])
        return p["out_proj.weight"] @ h + p["out_proj.bias"], [h]

    check(layer, step, 1)


def test_a_gradient_neither_vanishes_nor_explodes_over_a_thousand_steps():
    torch.manual_seed(0)
    layer = AntisymmetricRNN(8, step_size=0.01, gamma=0.01, dtype=torch.float64)
    x = 0.1 * torch.randn(1, 1000, 8, dtype=torch.float64)
    h = torch.zeros(1, 8, dtype=torch.float64, requires_grad=True)
    last = layer(x, h)[1]
    rows = [torch.autograd.grad(last[0, i], h, retain_graph=True)[0] for i in range(8)]
    values = torch.linalg.svdvals(torch.cat(rows))
    assert 0.1 < values[-1].item() <= values[0].item() < 10


def test_initial_spread():
    layer = AntisymmetricRNN(300, d_state=400, sigma=2.0, gated=True)
    assert layer.M.std().item() == pytest.approx(2 / 20, rel=0.02)
    assert layer.V.weight.std().item() == pytest.approx(300**-0.5, rel=0.02)
    assert not layer.V.bias.any()


@pytest.mark.unchecked
@pytest.mark.parametrize("gated", [False, True])
def test_two_layers_learn_with_steps_of_one(gated):
    MIXER_PROPERTIES["trains"](partial(AntisymmetricRNN, step_size=1.0, gamma=0.5, gated=gated))


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(ArgumentError, match="gamma must be at least 0 and finite, got nan"):
        AntisymmetricRNN(4, gamma=float("nan"))
