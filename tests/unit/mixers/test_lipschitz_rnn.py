"""LipschitzRNN against its equation, the spectrum of its matrices and its stability."""

from functools import partial

import numpy as np
import pytest
import torch
from transcribed import check, livelier, weights

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import LipschitzRNN
from linrnn.testing import MIXER_PROPERTIES

F64 = {"dtype": torch.float64}


@pytest.mark.parametrize("solver", ["euler", "midpoint"])
def test_equals_a_transcription(solver):
    torch.manual_seed(0)
    split = {"beta_A": 0.6, "gamma_A": 0.2, "beta_W": 0.9, "gamma_W": 0.1}
    layer = livelier(LipschitzRNN(3, step_size=0.4, solver=solver, **split, **F64))
    p = weights(layer)

    def matrix(M, beta, gamma):
        return (1 - beta) * (M + M.T) + beta * (M - M.T) - gamma * np.eye(3)

    A, W = matrix(p["M_A"], 0.6, 0.2), matrix(p["M_W"], 0.9, 0.1)

    def step(states, x, dt):
        def slope(h):
            return A @ h + np.tanh(W @ h + p["V.weight"] @ x + p["V.bias"])

        (h,) = states
        middle = h + 0.2 * dt * slope(h) if solver == "midpoint" else h
        h = h + 0.4 * dt * slope(middle)
        return h, [h]

    check(layer, step, 1)


def test_the_midpoint_is_of_second_order():
    torch.manual_seed(0)
    layers = {s: LipschitzRNN(3, solver=s, init_std=3, **F64) for s in ("euler", "midpoint")}
    layers["midpoint"].load_state_dict(layers["euler"].state_dict())
    x = torch.randn(1, 1, 3, **F64)

    def error(solver, steps):
        layer, exact = layers[solver], layers["midpoint"]
        layer.step_size, exact_steps = 1 / steps, 4096
        y = layer(x.expand(1, steps, 3))[0][:, -1]
        exact.step_size = 1 / exact_steps
        return (y - exact(x.expand(1, exact_steps, 3))[0][:, -1]).abs().max().item()

    for solver, order in (("euler", 1), ("midpoint", 2)):
        assert error(solver, 16) / error(solver, 32) == pytest.approx(2**order, rel=0.1)


def test_the_symmetric_part_is_that_of_m_held_down():
    torch.manual_seed(0)
    layer = LipschitzRNN(9, beta_A=0.7, gamma_A=0.3, init_std=5, **F64)
    A, _ = layer.transitions()
    M = layer.M_A
    wanted = torch.linalg.eigvalsh(0.3 * (M + M.mT)) - 0.3
    torch.testing.assert_close(torch.linalg.eigvalsh((A + A.mT) / 2), wanted)


def test_trajectories_come_together_at_the_rate_of_the_bound():
    torch.manual_seed(0)
    layer = LipschitzRNN(6, step_size=0.05, gamma_A=1.0, init_std=0.5, **F64)
    A, W = layer.transitions()
    low = torch.linalg.eigvalsh((A + A.mT) / 2)[-1]
    assert low < -torch.linalg.matrix_norm(W, 2)  # the condition of the paper
    rate = torch.linalg.matrix_norm(torch.eye(6, **F64) + 0.05 * A, 2)
    rate = rate + 0.05 * torch.linalg.matrix_norm(W, 2)
    assert rate < 1
    x = 3 * torch.randn(1, 100, 6, **F64).expand(2, -1, -1)
    h, _ = layer(x, 5 * torch.randn(2, 6, **F64))
    apart = (h[0] - h[1]).norm(dim=-1)
    assert (apart[1:] <= rate * apart[:-1] + 1e-15).all()
    assert apart[-1] > 0


def test_initial_spread():
    layer = LipschitzRNN(400, init_std=0.5)
    for M in (layer.M_A, layer.M_W):
        assert M.std().item() == pytest.approx(0.5 / 400, rel=0.02)


@pytest.mark.unchecked
def test_two_layers_learn_with_steps_of_one():
    MIXER_PROPERTIES["trains"](partial(LipschitzRNN, step_size=1.0, gamma_A=0.5))


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(ArgumentError, match=r"beta_W must be at most 1, got 1\.5, 0\.75"):
        LipschitzRNN(4, beta_A=1.5)
    with pytest.raises(ArgumentError, match="gamma_W must be at least 0 and finite, got -1"):
        LipschitzRNN(4, gamma_W=-1)
    with pytest.raises(UnknownNameError, match="solver"):
        LipschitzRNN(4, solver="rk4")
