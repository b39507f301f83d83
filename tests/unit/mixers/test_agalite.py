"""AGaLiTe against GaLiTe where it is exact, and against a loop over its equation."""

from math import pi

import pytest
import torch

from linrnn.errors import LinrnnError
from linrnn.mixers import AGaLiTe, GaLiTe

DOUBLE = {"dtype": torch.float64}


def test_enough_waves_are_galite_split_and_whole_gradients_too():
    """21 waves for 10 steps; parameters have the same names."""
    exact, layer = GaLiTe(6, n_heads=2, **DOUBLE), AGaLiTe(6, n_heads=2, r=21, **DOUBLE)
    layer.load_state_dict(exact.state_dict())
    x = torch.randn(2, 10, 6, **DOUBLE, requires_grad=True)
    expected, _ = exact(x)
    first, state = layer(x[:, :4])
    y = torch.cat([first, layer(x[:, 4:], state)[0]], 1)
    torch.testing.assert_close(y, expected, rtol=1e-8, atol=1e-9)
    weight, mine = torch.randn_like(y), dict(layer.named_parameters())
    names, parameters = zip(*exact.named_parameters(), strict=True)
    want = torch.autograd.grad((expected * weight).sum(), (x, *parameters))
    got = torch.autograd.grad((y * weight).sum(), (x, *(mine[n] for n in names)))
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("r", [1, 2, 5])
@pytest.mark.parametrize("waves", ["paper", "released"])
def test_equals_a_loop(waves, r):
    """The features are those of GaLiTe; here they are taken from the layer."""
    layer = AGaLiTe(6, n_heads=2, r=r, waves=waves, **DOUBLE)
    x = torch.randn(1, 12, 6, **DOUBLE)
    w = layer._written(x)
    if waves == "paper":
        omega, first = 2 * pi * torch.arange(r, **DOUBLE) / r, 1
    else:
        omega, first = torch.linspace(-pi, pi, r, **DOUBLE), 2
    K, V, s, y = 0, 0, 0, []
    for t in range(12):
        wave = torch.cos(omega * (t + first))[:, None]
        forget_k, forget_v = (w[i][0, t].exp()[:, None] for i in (3, 4))
        K = forget_k * K + wave * w.k[0, t][:, None]
        V = forget_v * V + wave * w.v[0, t][:, None]
        s = forget_k[:, 0] * s + w.k[0, t]
        o = torch.einsum("hrv,hrk,hk->hv", V, K, w.q[0, t])
        n = (s * w.q[0, t]).sum(-1, keepdim=True)
        o = 2 / r * o / (n + 1e-5) if waves == "paper" else o / (2 * r * n + 1e-5)
        y.append(layer.out_proj(o.flatten()))
    torch.testing.assert_close(layer(x)[0][0], torch.stack(y), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("waves", ["paper", "released"])
def test_waves_are_exact_after_a_trillion_steps(waves):
    layer, late = AGaLiTe(4, r=7, waves=waves), 84 * 10**10  # a multiple of both periods
    early = layer._waves(torch.arange(9)[None])
    torch.testing.assert_close(layer._waves(torch.arange(9)[None] + late), early, rtol=0, atol=0)


BAD = [
    ({"r": 0}, "AGaLiTe: r must be an integer of at least 1, got 0"),
    ({"waves": "sine"}, "no AGaLiTe waves named 'sine'"),
    ({"eps": -1.0}, "AGaLiTe: eps must be positive and finite, got -1.0"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        AGaLiTe(8, **options)
