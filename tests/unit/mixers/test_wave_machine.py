"""The Neural Wave Machine against coRNN with circulant matrices, and PyTorch's convolutions."""

import numpy as np
import pytest
import torch
from scipy.signal import correlate2d
from transcribed import check, livelier, sigmoid, weights

from linrnn.errors import ArgumentError
from linrnn.mixers import CoRNN, WaveMachine

F64 = {"dtype": torch.float64}


def around(kernel, y):
    """A convolution as PyTorch counts taps, on a torus (rows, columns)."""
    rows = min(len(kernel), 3)
    padded = np.pad(y, ((rows // 2,) * 2, (1, 1)), mode="wrap")
    return correlate2d(padded, kernel, mode="valid")


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("shared", [False, True])
def test_equals_a_transcription(rows, shared):
    torch.manual_seed(0)
    layer = WaveMachine(4, d_state=24, n_channels=2, rows=rows, shared=shared, **F64)
    p = weights(livelier(layer, std=0.3))
    gamma, eps = np.maximum(p["spring"], 0), np.maximum(p["drag"], 0)

    def coupled(kernels, y):
        grid = y.reshape(rows, 12 // rows, 2)
        taps = kernels.reshape(len(kernels), -1, 3)
        each = [around(taps[0 if shared else c], grid[..., c]) for c in range(2)]
        return np.stack(each, -1).reshape(-1)

    def step(states, x, dt):
        y, z = states
        s = sigmoid(p["delta"]) * dt
        local = coupled(p["w_y"], y) + coupled(p["w_z"], z)
        force = np.tanh(local + p["V.weight"] @ x + p["V.bias"]) - gamma * y - eps * z
        z = z + s * force
        y = y + s * z
        return p["out_proj.weight"] @ y + p["out_proj.bias"], [y, z]

    check(layer, step, 2)


def test_is_cornn_with_the_circulant_matrices_of_its_kernels():
    torch.manual_seed(0)
    layer = WaveMachine(5, step_size=0.3, gamma=1.5, eps=0.7, **F64)
    other = CoRNN(5, step_size=0.3, gamma=1.5, eps=0.7, **F64)
    taps = {"W": layer.w_y, "W_hat": layer.w_z}
    with torch.no_grad():
        other.V.load_state_dict(layer.V.state_dict())
        for name, (w,) in taps.items():
            rolls = (w[k] * torch.eye(5, **F64).roll(k - 1, 1) for k in range(3))
            getattr(other, name).copy_(sum(rolls))
    x = torch.randn(2, 20, 5, **F64)
    torch.testing.assert_close(layer(x)[0], other(x)[0])


@torch.no_grad()
def test_a_pulse_reaches_one_ring_of_neighbours_a_step():
    torch.manual_seed(0)
    layer = WaveMachine(49, **F64)
    layer.V.bias.zero_()
    state = {name: torch.zeros(1, 49, **F64) for name in ("y", "z")}
    state["y"][0, 24] = 1.0  # the middle
    for reach in (1, 2, 3):
        _, state = layer(torch.zeros(1, 1, 49, **F64), state)
        moved = state["y"].view(7, 7) != 0
        inner = slice(3 - reach, 4 + reach)
        assert moved[inner, inner].all()
        assert moved.sum() == (2 * reach + 1) ** 2


def test_initial_values_and_shape_of_the_torus():
    layer = WaveMachine(4096, step_size=0.2)
    assert layer.rows == 64
    assert WaveMachine(7).rows == 1
    assert layer.delta.sigmoid().item() == pytest.approx(0.2)
    assert (layer.spring.item(), layer.drag.item()) == (1.0, 0.5)
    many = WaveMachine(2048, n_channels=1024, rows=2)
    assert many.w_y.abs().max().item() == pytest.approx(1 / 3, rel=1e-2)


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(ArgumentError, match="rows must divide 6 oscillators, got 4"):
        WaveMachine(6, rows=4)
    with pytest.raises(ArgumentError, match="n_channels must divide 6 oscillators, got 5"):
        WaveMachine(6, n_channels=5)
    with pytest.raises(ArgumentError, match="step_size must be below 1, got 2"):
        WaveMachine(6, step_size=2)
