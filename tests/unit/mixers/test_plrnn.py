"""The piecewise-linear network against its equation, and the map it is with its input held."""

import numpy as np
import pytest
import torch
from transcribed import check, livelier, weights

from linrnn.dynamics import scyfi, step_jacobians
from linrnn.mixers import PLRNN, ReLURNN


def test_equals_a_transcription():
    torch.manual_seed(0)
    layer = livelier(PLRNN(3, d_state=4, dtype=torch.float64))
    p = weights(layer)

    def step(states, x, dt):
        (z,) = states
        z = p["A"] * z + p["W"] @ np.maximum(z, 0) + p["C.weight"] @ x + p["C.bias"]
        return p["out_proj.weight"] @ z + p["out_proj.bias"], [z]

    check(layer, step, 1)


def test_initial_weights_have_the_stated_spread_and_come_to_rest():
    torch.manual_seed(0)
    layer = PLRNN(100, d_state=200)
    assert layer.W.std().item() == pytest.approx(0.25 * 200**-0.5, rel=0.02)
    assert layer.C.weight.std().item() == pytest.approx(0.1, rel=0.02)
    assert 0.3 <= layer.A.min() < 0.32 < 0.68 < layer.A.max() <= 0.7
    assert not layer.C.bias.any()
    _, last = layer(torch.zeros(1, 500, 100), torch.randn(1, 200))
    assert last.abs().max() < 1e-6


def maps(kind):
    """Layers with an input that is held, and the cycles of each."""
    for seed in range(8):
        torch.manual_seed(seed)
        layer = livelier(kind(2, d_state=4, dtype=torch.float64), std=0.8)
        x_t = torch.randn(2, dtype=torch.float64)
        yield layer, x_t, scyfi(*layer.piecewise_linear(x_t), order=2)


@pytest.mark.parametrize("kind", [PLRNN, ReLURNN])
def test_cycles_of_its_map_are_gone_through_by_its_steps(kind):
    orders = []
    for layer, x_t, found in maps(kind):
        for cycle in found:
            state = cycle.points[:1] if kind is PLRNN else cycle.points[:1].relu()
            begun, J = state, torch.eye(4, dtype=torch.float64)
            for _ in range(cycle.order):
                J = next(step_jacobians(layer, x_t[None], state)) @ J
                state = layer.step(x_t[None], state)[1].detach()
            torch.testing.assert_close(state, begun, rtol=1e-8, atol=1e-8)
            sizes = torch.linalg.eigvals(J).abs().sort(descending=True).values
            torch.testing.assert_close(sizes, cycle.eigenvalues.abs(), rtol=1e-6, atol=1e-7)
            orders.append(cycle.order)
    assert orders.count(1) >= 3
    assert orders.count(2) >= 1
