"""Mamba-3 against golden numbers of its reference, a loop over its equation, and its start."""

from math import pi

import pytest
import torch
import torch.nn.functional as F
from fixture_f import K, Q, V, near, rows
from plain_loop import check_equal

from linrnn.errors import LinrnnError
from linrnn.mixers import Mamba3
from linrnn.mixers.mamba3 import trapezoidal, turned, turns

F64 = torch.float64


def test_recurrence_gives_the_golden_numbers():
    """Of ``mamba3_siso_step_ref`` in the tests of state-spaces/mamba."""
    dt, share = rows(0.5, 1, 0.25, 0.5), rows(0.5, 0.25, 0.75, 0.999999)
    theta = torch.tensor([0.1, 0.2, -0.3, 0.4], dtype=F64).view(1, 4, 1, 1)
    step = pi * theta.tanh() * dt[..., None]
    start = {"cos": torch.ones(1, 1, 1, dtype=F64), "sin": torch.zeros(1, 1, 1, dtype=F64)}
    cos, sin = turns(step, start, None)
    B, C = turned(K + 1, cos, sin), turned(Q + 1, cos, sin)
    empty = torch.zeros(1, 1, 2, dtype=F64)
    state = {"memory": torch.zeros(1, 1, 2, 2, dtype=F64), "key": empty, "value": empty}
    g = rows(-1, -0.5, -2, -1) * dt
    o, _ = trapezoidal(B, C, V, dt, share, g, state, None)
    near(o + V, 2.25, 4.5, 7.817111, -0.465777, 1.224144, 4.406630, 4.252602, 4.479152)


def transcription(layer, u):
    """One step after another, with both writes of the trapezoidal rule."""
    N, H, P, R = layer.d_state, layer.n_heads, layer.d_head, layer.pairs
    h, phi = torch.zeros(H, P, N, dtype=F64), torch.zeros(H, R, dtype=F64)
    key, value = torch.zeros(H, N, dtype=F64), torch.zeros(H, P, dtype=F64)
    outputs = []
    for row in u:
        z, x, B, C, d, a, m, theta = layer.in_proj(row).split(layer.widths)
        x, dt, share = x.view(H, P), F.softplus(d + layer.dt_bias), m.sigmoid()
        f = F.softplus(a) if layer.decay == "softplus" else torch.where(a > 0, 1 + a, 1 / (1 - a))
        alpha = torch.exp(-f.clamp(min=layer.decay_floor) * dt)
        phi = phi + pi * theta.tanh() * dt[:, None]

        def prepared(w, norm, bias, phi=phi):
            w = w.view(layer.n_groups, N)
            w = F.rms_norm(w, (N,), norm.weight.flatten(), layer.norm_eps)
            w = w.repeat_interleave(H // layer.n_groups, 0) + bias
            pairs = torch.view_as_complex(w[:, : 2 * R].reshape(H, R, 2)) * torch.exp(1j * phi)
            return torch.cat([torch.view_as_real(pairs).flatten(1), w[:, 2 * R :]], 1)

        B, C = prepared(B, layer.B_norm, layer.B_bias), prepared(C, layer.C_norm, layer.C_bias)
        past = ((1 - share) * dt * alpha)[:, None, None] * value[:, :, None] * key[:, None]
        now = (share * dt)[:, None, None] * x[:, :, None] * B[:, None]
        h = alpha[:, None, None] * h + past + now
        key, value = B, x
        o = torch.einsum("hpn,hn->hp", h, C) + layer.D[:, None] * x
        if layer.norm is not None:
            o = F.rms_norm(o, (P,), None, layer.norm_eps) * layer.norm.weight.view(H, P)
        outputs.append(layer.out_proj(o.flatten() * F.silu(z)))
    return torch.stack(outputs)


OPTIONS = [{}, {"n_groups": 2, "turned": 1.0}, {"decay": "softplus", "out_norm": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equals_a_transcription_split_and_whole_gradients_too(options):
    check_equal(Mamba3(6, d_state=4, d_head=3, dtype=F64, **options), transcription)


@pytest.mark.parametrize("pieces", [1, 1000])
def test_turns_keep_their_digits_over_a_long_sequence(pieces):
    step = torch.full((1, 100_000, 1, 1), 0.1)
    state = {"cos": torch.ones(1, 1, 1), "sin": torch.zeros(1, 1, 1)}
    for piece in step.chunk(pieces, 1):
        cos, sin = turns(piece, state, None)
        state = {"cos": cos[:, -1], "sin": sin[:, -1]}
    angle = 100_000 * step[0, 0].double()
    torch.testing.assert_close(state["cos"][0], angle.cos().float(), rtol=0, atol=2e-5)
    torch.testing.assert_close(state["sin"][0], angle.sin().float(), rtol=0, atol=2e-5)


def test_sizes_and_starts_are_the_published_ones():
    layer = Mamba3(1024, device="meta")
    assert (layer.d_inner, layer.n_heads, layer.d_state, layer.pairs) == (2048, 32, 128, 32)
    layer = Mamba3(64)
    for parameter in (layer.B_bias, layer.C_bias, layer.D):
        assert parameter.eq(1).all()
    dt = F.softplus(layer.dt_bias)
    assert dt.min() > 0.99e-3
    assert dt.max() < 0.101


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"turned": 1.5}, "Mamba3: turned must be at most 1, and leave a pair"),
        ({"d_state": 2}, "Mamba3: turned must be at most 1, and leave a pair"),
        ({"d_head": 5}, "Mamba3: d_head must divide d_inner=16"),
        ({"decay": "exp"}, "no Mamba3 decay named 'exp'"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        Mamba3(8, **options)
