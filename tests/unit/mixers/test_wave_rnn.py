"""Wave RNN against PyTorch's circular convolution, its delay line, its start."""

import numpy as np
import pytest
import torch
from transcribed import check, livelier, weights

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import WaveRNN

F64 = {"dtype": torch.float64}
ACTS = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh, "identity": lambda x: x}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("units", [1, 2, 5, 60])
def test_equals_a_transcription(act, units):
    torch.manual_seed(0)
    layer = livelier(WaveRNN(3, n_channels=2, n_units=units, act=act, **F64), std=0.3)
    p = weights(layer)

    def step(states, x, dt):
        h = states[0].reshape(units, 2)
        near = np.stack([np.roll(h, -k, axis=0) for k in (-1, 0, 1)], -1)  # h_{i+k}
        waves = np.einsum("abk,ibk->ia", p["w"], near) + p["b_w"]
        h = ACTS[act](waves.reshape(-1) + p["V.weight"] @ x + p["V.bias"])
        return p["out_proj.weight"] @ h + p["out_proj.bias"], [h]

    check(layer, step, 1)


@torch.no_grad()
def test_it_starts_as_a_delay_line_for_each_channel():
    layer = WaveRNN(2, n_channels=3, n_units=4, act="identity", **F64)
    layer.b_w.zero_()
    x = torch.randn(1, 4, 2, **F64)
    rings = layer(x)[1].view(4, 3)
    for n in range(4):  # what was read n steps ago stands at unit -n
        torch.testing.assert_close(rings[-n % 4], x[0, 3 - n, [0, 1, 0]])


def test_initial_values():
    layer = WaveRNN(6)
    torch.testing.assert_close(layer.w[..., 2], torch.eye(6))
    assert not layer.w[..., :2].any()
    assert not layer.V.bias.any()
    assert layer.V.weight.sum().item() == 6
    bound = 18**-0.5
    assert 0 < layer.b_w.abs().max().item() <= bound


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(ArgumentError, match="n_units must be an integer of at least 1, got 0"):
        WaveRNN(4, n_units=0)
    with pytest.raises(UnknownNameError, match="act"):
        WaveRNN(4, act="gelu")
