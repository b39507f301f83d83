"""Rodimus against the plain loop of fla, golden numbers and its published sizes."""

import pytest
import torch
import torch.nn.functional as F
from fixture_f import K, Q, S, V, near, rows
from fla_naive import naive

from linrnn.errors import LinrnnError
from linrnn.mixers import Rodimus
from linrnn.ops import outer_scan


def test_gates_with_a_temperature_give_the_golden_numbers():
    e, tau = F.softplus(S), rows((0.5, 0.5), (0.25, 0.75), (1, 0.5), (0.5, 1))
    o, _ = outer_scan(Q, F.normalize(K, dim=-1) * e**tau, V, -e * tau, scale=2**-0.5)
    near(o, 0.697881, 1.395763, 1.995563, -0.665188, 0.744296, 0.545065, 1.411963, 1.069107)


def test_equals_the_loop_of_fla_inside_of_its_layer():
    loop = naive("gla/naive.py").naive_recurrent_gla
    layer = Rodimus(6, d_state=5, d_conv=3)
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(torch.randn_like(p), alpha=0.3)
    x = torch.randn(2, 30, 6)
    u, z = layer.in_proj(x).chunk(2, -1)
    taps = layer.conv1d
    padded = F.pad(u.transpose(1, 2), (2, 0))
    c = F.conv1d(padded, taps.weight[:, None], taps.bias, groups=12).transpose(1, 2)
    c = F.silu(c)
    q, k = layer.qk_proj(c).chunk(2, -1)
    e, tau = layer.gates(c).chunk(2, -1)
    e, tau = F.softplus(e), tau.sigmoid()
    k = F.normalize(k, dim=-1) * e**tau
    v = layer.value_gate(u).sigmoid() * u
    o, _ = loop(q[:, :, None], k[:, :, None], v[:, :, None], -(e * tau)[:, :, None])
    o = (o[:, :, 0] + layer.rho * c) * F.silu(z)
    expected = layer.out_proj(F.rms_norm(o, o.shape[-1:], eps=layer.norm_eps))
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-4, atol=1e-5)


def test_sizes_are_the_published_ones():
    layer = Rodimus(2048, device="meta")
    assert (layer.d_inner, layer.d_state, layer.gate_rank, layer.d_conv) == (4096, 64, 32, 4)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_state": 0}, "Rodimus: d_state must be an integer of at least 1, got 0"),
        ({"norm_eps": -1.0}, "Rodimus: norm_eps must be positive and finite, got -1.0"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        Rodimus(8, **options)
