"""sLSTM against its equation without a stabiliser, golden numbers and the public code."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import LinrnnError
from linrnn.mixers import SLSTM
from linrnn.mixers.slstm import CELLS
from linrnn.ops import cell_scan


def scattered(**options):
    """Recurrent products that matter, and biases and weights that differ by channel."""
    torch.manual_seed(0)
    layer = SLSTM(6, n_heads=2, dtype=torch.float64, **options)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return layer


def transcription(layer, x):
    """One step and one head at a time, sums of exponentials as they are, of one sequence."""
    H, d, y = layer.n_heads, layer.d_model // layer.n_heads, []
    gates = layer.i_gate, layer.f_gate, layer.z_gate, layer.o_gate
    C, n, h = (x.new_zeros(H, d) for _ in range(3))
    padded = F.pad(x, (0, 0, max(layer.d_conv - 1, 0), 0))
    for t in range(len(x)):
        c = x[t]
        if layer.d_conv:
            taps = layer.conv1d.weight.T
            c = F.silu((padded[t : t + layer.d_conv] * taps).sum(0) + layer.conv1d.bias)
        i, f, z, o = (
            torch.stack([v.view(H, d)[a] @ W.weight[a] + R[a] @ h[a] for a in range(H)])
            + (0 if W.bias is None else W.bias)
            for W, R, v in zip(gates, layer.R, (c, c, x[t], x[t]), strict=True)
        )
        f = f.exp() if layer.forget == "exp" else f.sigmoid()
        C, n = f * C + i.exp() * z.tanh(), f * n + i.exp()
        h = o.sigmoid() * C / n
        normed = h - h.mean(-1, keepdim=True)
        normed = normed / (normed.square().mean(-1, keepdim=True) + layer.norm_eps).sqrt()
        y.append(layer.outnorm.weight * normed.flatten())
    return torch.stack(y)


@pytest.mark.parametrize("options", [{}, {"forget": "exp"}, {"d_conv": 0}], ids=str)
def test_equals_a_transcription_split_and_whole_gradients_too(options):
    layer = scattered(**options)
    x = torch.randn(1, 20, 6, dtype=torch.float64, requires_grad=True)
    expected = transcription(layer, x[0])[None]
    first, state = layer(x[:, :7])
    y = torch.cat([first, layer(x[:, 7:], state)[0]], 1)
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(layer(x)[0], y, rtol=1e-10, atol=1e-10)
    sources, weight = (x, *layer.parameters()), torch.randn_like(y)
    got, want = (torch.autograd.grad((z * weight).sum(), sources) for z in (y, expected))
    torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)


def test_golden_numbers():
    t = torch.arange(1, 6, dtype=torch.float64).view(1, 5, 1)
    no = torch.zeros(1, 1, 1, dtype=torch.float64)
    gates = {"i": t.cos(), "f": torch.ones_like(t), "z": t.sin(), "o": 50 * torch.ones_like(t)}
    h, _ = cell_scan(CELLS["sigmoid"], **gates, Ri=no, Rf=no, Rz=no, Ro=no)
    golden = [0.6865874070, 0.6983727801, 0.5812696086, 0.2315021129, -0.2563553935]
    np.testing.assert_allclose(h.flatten().numpy(), golden, rtol=0, atol=1e-10)


def test_gates_that_no_exponential_holds_stay_finite():
    layer = scattered(forget="exp").float()
    x = 1e4 * torch.randn(1, 30, 6)
    x.requires_grad_()
    y, state = layer(x)
    assert state["h"].abs().max() <= 1
    grads = torch.autograd.grad(y.sum(), (x, *layer.parameters()))
    assert all(z.isfinite().all() for z in (y, *state.values(), *grads))


def test_starts_as_published():
    layer = SLSTM(512, layer=1, n_layers=3)
    assert layer.n_heads == 4
    assert not layer.R.any()
    assert layer.z_gate.weight.std().item() == pytest.approx((0.4 / 512) ** 0.5, rel=0.02)
    j = np.arange(128) / 127
    expected = np.broadcast_to(5 - 12 * j**0.95, (4, 128))
    np.testing.assert_allclose(layer.f_gate.bias.detach(), expected, rtol=1e-5, atol=1e-6)
    assert not layer.z_gate.bias.any()
    other = SLSTM(64, forget_bias="linear", recurrent_init="uniform")
    assert other.f_gate.bias[:, [0, -1]].tolist() == [[3, 6]] * 4
    assert other.R.abs().max() <= 1 / 8
    assert other.R.std().item() == pytest.approx(1 / 8 / 3**0.5, rel=0.05)
    assert [SLSTM(d).n_heads for d in (6, 48, 50, 64)] == [1, 3, 2, 4]


BAD = [
    ({"n_heads": 3}, "SLSTM: n_heads must divide d_model=8, got 3"),
    ({"n_heads": 0}, "SLSTM: n_heads must be an integer of at least 1, got 0"),
    ({"n_heads": 8}, "must have at least 2 channels, whose mean is subtracted, got d_value=1"),
    ({"forget": "relu"}, "forget.*relu"),
    ({"d_conv": -1}, "width must be an integer of at least 1, got -1"),
    ({"layer": 1}, "SLSTM: layer must be an integer from 0 to n_layers-1=0, got 1"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        SLSTM(8, **options)
