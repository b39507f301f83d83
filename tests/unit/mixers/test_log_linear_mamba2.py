"""Log-linear Mamba-2: golden numbers, its plain limit, and the naive function of fla."""

import pytest
import torch
import torch.nn.functional as F
from fixture_f import DECAY, K, Q, V, near
from fla_naive import naive

from linrnn.errors import LinrnnError
from linrnn.mixers import LogLinearMamba2, Mamba2
from linrnn.ops import fenwick_scan

SCALES = torch.tensor(
    [(1, 0.5, 0.25), (0.9, 0.6, 0.3), (0.8, 0.7, 0.2), (0.7, 0.4, 0.1)], dtype=torch.float64
).view(1, 4, 1, 3)


def test_levels_give_the_golden_numbers():
    o, _, _ = fenwick_scan(Q, K, V, DECAY.log(), SCALES)
    near(o, 1, 2, 2.16, -0.72, -0.848, 0.736, 1.6928, 0.7064)


@pytest.mark.parametrize("time", [64, 128])
def test_equals_the_naive_function_of_fla_inside_of_its_layer(time):
    loop = naive("log_linear_attn/naive.py").naive_log_linear_attn
    layer = LogLinearMamba2(8, d_state=5, d_head=4, levels=time.bit_length(), n_groups=2)
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(torch.randn_like(p), alpha=0.3)
    x = torch.randn(2, time, 8)
    z, u, dt, more = layer.in_proj(x).split([16, 36, 4, 4 * layer.levels], -1)
    padded = F.pad(u.transpose(1, 2), (3, 0))
    taps = layer.conv1d
    u = F.conv1d(padded, taps.weight[:, None], taps.bias, groups=36).transpose(1, 2)
    s, k, q = F.silu(u).split([16, 10, 10], -1)
    s, k, q = s.unflatten(-1, (4, 4)), k.unflatten(-1, (2, 5)), q.unflatten(-1, (2, 5))
    dt = F.softplus(dt + layer.dt_bias)
    scales = F.softplus(layer.scales.L * more.unflatten(-1, (4, -1)))
    o = loop(q, k, dt[..., None] * s, -layer.A_log.exp() * dt, scales)
    o = (o + layer.D[:, None] * s).flatten(2) * F.silu(z)
    normed = F.rms_norm(o.unflatten(-1, (2, 8)), (8,), eps=layer.norm_eps).flatten(2)
    expected = layer.out_proj(normed * layer.norm.weight.flatten())
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-3, atol=1e-4)


def test_equal_weights_of_levels_are_mamba2():
    layer = LogLinearMamba2(8, d_state=5, d_head=4, levels=6).double()
    plain = Mamba2(8, d_state=5, d_head=4).double()
    weights = layer.state_dict()
    rows = plain.in_proj.out_features
    with torch.no_grad():
        layer.scales.L.zero_()  # softplus(0) = log 2 each
        layer.D.mul_(torch.log(torch.tensor(2.0)))
    weights["in_proj.weight"] = weights["in_proj.weight"][:rows]
    del weights["scales.L"]
    plain.load_state_dict(weights)
    with torch.no_grad():
        plain.D.fill_(1)
    layer.norm_eps = plain.norm_eps = 0
    layer.norm.eps = plain.norm.eps = 0
    x = torch.randn(2, 90, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0], plain(x)[0])  # the norm takes out log 2


def test_starts_are_the_published_ones():
    layer = LogLinearMamba2(64, d_head=16)
    torch.testing.assert_close(layer.A_log.exp(), torch.arange(1.0, 9))
    assert layer.levels == 15
    assert bool((layer.scales.L == 1).all())
    assert bool((layer.D == 1).all())


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": 0}, "LogLinearMamba2: levels must be an integer of at least 1, got 0"),
        ({"levels": 63}, "LogLinearMamba2: levels must be at most 62, got 63"),
        ({"d_head": 3}, "LogLinearMamba2: d_head must divide d_inner=16"),
        ({"norm_eps": -1.0}, "LogLinearMamba2: norm_eps must be positive and finite, got -1.0"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        LogLinearMamba2(8, **options)
