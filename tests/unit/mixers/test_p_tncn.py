"""P-TNCN against its equations in NumPy, its start and its errors."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from transcribed import check, livelier, sigmoid, weights

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import PTNCN


@pytest.mark.parametrize("output", ["identity", "sigmoid"])
def test_equals_a_transcription(output):
    torch.manual_seed(0)
    alpha, beta = 0.7, 0.3
    options = {"output": output, "alpha": alpha, "beta": beta}
    layer = livelier(PTNCN(3, **options, dtype=torch.float64))
    p = weights(layer)
    out = sigmoid if output == "sigmoid" else lambda v: v

    def first(u, y1, y2):
        return p["M1"] @ u + p["U1"] @ y2 + p["V1"] @ y1

    def step(states, x, dt):
        u, y1, y2 = states
        z1, z2 = first(u, y1, y2), p["M2"] @ np.tanh(y1) + p["V2"] @ y2
        f1, f2 = np.tanh(z1), np.tanh(z2)
        e1, e_x = p["W2"] @ f2 - f1, out(p["W1"] @ f1) - x
        d1, d2 = p["E1"] @ e_x - alpha * e1, p["E2"] @ e1
        y1, y2 = np.tanh(z1 - beta * d1), np.tanh(z2 - beta * d2)
        return p["W1"] @ np.tanh(first(x, y1, y2)), [x, y1, y2]

    check(layer, step, 3)


def test_targets_without_errors_are_the_predictions():
    """Where the feedback is zero, states follow the predictions alone."""
    torch.manual_seed(0)
    layer = livelier(PTNCN(4, alpha=0.0, dtype=torch.float64))
    with torch.no_grad():
        layer.E1.zero_()
        layer.E2.zero_()
        x = torch.randn(2, 6, 4, dtype=torch.float64)
        _, state = layer(x)
        y1 = y2 = u = torch.zeros(2, 4, dtype=torch.float64)
        for t in range(6):
            new1 = torch.tanh(u @ layer.M1.mT + y2 @ layer.U1.mT + y1 @ layer.V1.mT)
            y2 = torch.tanh(y1.tanh() @ layer.M2.mT + y2 @ layer.V2.mT)
            y1, u = new1, x[:, t]
    torch.testing.assert_close([state[n] for n in ("y1", "y2", "u")], [y1, y2, x[:, -1]])


def test_weights_are_normal():
    layer = PTNCN(60)
    for p in layer.parameters():
        assert kstest(p.detach().flatten().double()[:2000] / 0.025, "norm").pvalue > 0.001


@pytest.mark.unchecked
def test_errors():
    for options, said in (
        ({"beta": 0.0}, "beta must be positive and finite, got 0"),
        ({"alpha": -1.0}, "alpha must be at least 0 and finite, got -1"),
    ):
        with pytest.raises(ArgumentError, match=said):
            PTNCN(4, **options)
    with pytest.raises(UnknownNameError, match="output"):
        PTNCN(4, output="relu")
