"""coRNN against its equation, golden numbers and the bounds of the paper."""

from functools import partial

import numpy as np
import pytest
import torch
from transcribed import check, golden, livelier, state_jacobian, weights

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import CoRNN
from linrnn.testing import MIXER_PROPERTIES


@pytest.mark.parametrize("damping", ["explicit", "implicit"])
@pytest.mark.parametrize("d_state", [None, 5])
def test_equals_a_transcription(damping, d_state):
    torch.manual_seed(0)
    numbers = {"step_size": 0.3, "gamma": 1.7, "eps": 0.9, "damping": damping}
    layer = livelier(CoRNN(3, d_state=d_state, dtype=torch.float64, **numbers))
    p = weights(layer)

    def step(states, x, dt):
        y, z = states
        s = 0.3 * dt
        drive = np.tanh(p["W"] @ y + p["W_hat"] @ z + p["V.weight"] @ x + p["V.bias"])
        if damping == "explicit":
            z = z + s * (drive - 1.7 * y - 0.9 * z)
        else:  # z_t stands on both sides
            z = np.linalg.solve(np.eye(len(z)) * (1 + s * 0.9), z + s * (drive - 1.7 * y))
        y = y + s * z
        return (y if d_state is None else p["out_proj.weight"] @ y + p["out_proj.bias"]), [y, z]

    check(layer, step, 2)


def test_golden_numbers():
    layer = CoRNN(1, step_size=0.1, gamma=1.0, eps=0.5, dtype=torch.float64)
    with torch.no_grad():
        for parameter, value in zip(
            (layer.W, layer.W_hat, layer.V.weight), (0.5, 0.2, 1.0), strict=True
        ):
            parameter.fill_(value)
        layer.V.bias.zero_()
    golden(layer, [0.0049321677, 0.0057363083, -0.0011115597, -0.0134418548, -0.0225506033])


def test_initial_weights_are_those_of_one_linear_layer():
    layer = CoRNN(200, d_state=300)
    for weight in (layer.W, layer.W_hat, layer.V.weight, layer.V.bias):
        assert weight.abs().max().item() <= 800**-0.5
        assert weight.std().item() == pytest.approx((3 * 800) ** -0.5, rel=0.1)


@torch.no_grad()
def test_energy_stays_below_the_time_that_has_passed():
    torch.manual_seed(0)
    layer = CoRNN(4, step_size=0.4, gamma=1.0, eps=1.0, damping="implicit", dtype=torch.float64)
    livelier(layer, std=10.0)
    state = None
    for t in range(1, 40):
        _, state = layer(10 * torch.randn(8, 1, 4, dtype=torch.float64), state)
        energy = sum(h.square().sum(-1) for h in state.values())
        assert (energy <= 4 * t * 0.4).all()


def test_gradients_through_time_are_within_the_bound_and_do_not_vanish():
    torch.manual_seed(0)
    layer = CoRNN(8, step_size=0.01, gamma=1.0, eps=1.0, damping="implicit", dtype=torch.float64)
    start = {name: torch.randn(1, 8, dtype=torch.float64) for name in ("y", "z")}
    x = torch.randn(1, 400, 8, dtype=torch.float64)
    found = torch.linalg.matrix_norm(state_jacobian(layer, start, 400, x), ord=torch.inf)
    W, W_hat = (torch.linalg.matrix_norm(M, ord=torch.inf) for M in (layer.W, layer.W_hat))
    # of z: (1 + s |W_hat| + s (1 + |W|)) / (1 + s), of y: 1 + s times that
    growth = (1 + 0.01 * (1 + W + W_hat)) / 1.01
    bound = torch.maximum(growth, 1 + 0.01 * growth) ** 400
    assert 0.05 < found.item() <= bound.item()


@pytest.mark.unchecked
def test_two_layers_learn_with_steps_of_one():
    MIXER_PROPERTIES["trains"](partial(CoRNN, step_size=1.0, gamma=1.0, eps=1.0))


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(ArgumentError, match="eps must be positive and finite, got 0"):
        CoRNN(4, eps=0)
    with pytest.raises(UnknownNameError, match="damping"):
        CoRNN(4, damping="none")
