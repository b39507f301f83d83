"""Mamba-3 against golden numbers of its reference, a loop over its equation, and its start."""

from math import pi

import pytest
import torch
import torch.nn.functional as F
from fixture_f import K, Q, V, near, rows
from plain_loop import check_equal

from linrnn.errors import LinrnnError
from linrnn.mixers import Mamba3
from linrnn.mixers.mamba3 import trapezoidal, turns
from linrnn.ops.matrix.turns import turned

F64 = torch.float64


def test_recurrence_gives_the_golden_numbers():
    """Numbers of ``mamba3_siso_step_ref`` in the tests of state-spaces/mamba."""
    dt, share = rows(0.5, 1, 0.25, 0.5), rows(0.5, 0.25, 0.75, 0.999999)
    theta = torch.tensor([0.1, 0.2, -0.3, 0.4], dtype=F64).view(1, 4, 1, 1)
    step = pi * theta.tanh() * dt[..., None]
    start = {"cos": torch.ones(1, 1, 1, dtype=F64), "sin": torch.zeros(1, 1, 1, dtype=F64)}
    cos, sin = turns(step, start, None)
    B, C = turned(K + 1, cos, sin), turned(Q + 1, cos, sin)
    empty = torch.zeros(1, 1, 2, dtype=F64)
    state = {"memory": torch.zeros(1, 1, 2, 2, dtype=F64), "key": empty, "value": empty}
    g = rows(-1, -0.5, -2, -1) * dt
    o, _ = trapezoidal(B, C, V, (1 - share) * dt, share * dt, g, state, None)
    near(o + V, 2.25, 4.5, 7.817111, -0.465777, 1.224144, 4.406630, 4.252602, 4.479152)


def test_several_inputs_and_outputs_give_the_golden_numbers():
    """Two rows, against the equations of ``mamba3_MIMO_step_ref``."""
    dt, share = rows(0.5, 1, 0.25, 0.5), rows(0.5, 0.25, 0.75, 0.999999)
    theta = torch.tensor([0.1, 0.2, -0.3, 0.4], dtype=F64).view(1, 4, 1, 1)
    start = {"cos": torch.ones(1, 1, 1, dtype=F64), "sin": torch.zeros(1, 1, 1, dtype=F64)}
    turn = [part.unsqueeze(2) for part in turns(pi * theta.tanh() * dt[..., None], start, None)]
    B, C = (torch.stack([x + 1, 2 * x + 1], 2) for x in (K, Q))  # (1, 4, 2, 1, 2)
    B, C = turned(B, *turn), turned(C, *turn)
    layer = Mamba3(2, d_state=2, expand=1, turned=1.0, rank=2, dtype=F64)
    by_row = {"x": [(0.5, 0.5), (1, -0.5)], "z": [(1, 1), (0.5, 2)], "o": [(0.5, 0.25), (-0.5, 1)]}
    several = [torch.tensor(by_row[n], dtype=F64).unsqueeze(1) for n in "xzo"]  # (2, 1, 2)
    state = {"memory": torch.zeros(1, 1, 2, 2, dtype=F64)}
    state |= {"key": torch.zeros(1, 2, 1, 2, dtype=F64), "value": torch.zeros(1, 1, 2, dtype=F64)}
    g = rows(-1, -0.5, -2, -1) * dt
    o, _ = trapezoidal(B, C, V, (1 - share) * dt, share * dt, g, state, None, several[0])
    y = layer._gated(o, V, V.flip(-1).flatten(-2), several)
    near(y, 0.933101, -2.991407, -0.081286, 8.601288, 0.736340, 0.062661, 0.796044, -3.081823)


def transcription(layer, u):
    """One step after another, with both writes of the trapezoidal rule, row by row."""
    N, H, P, R, rank = layer.d_state, layer.n_heads, layer.d_head, layer.pairs, layer.rank
    h, phi = torch.zeros(H, P, N, dtype=F64), torch.zeros(H, R, dtype=F64)
    keys, value = torch.zeros(rank, H, N, dtype=F64), torch.zeros(H, P, dtype=F64)
    ones = torch.ones(H, rank, P, dtype=F64)
    X, Z, O = (  # noqa: E741
        ones if p is None else p for p in (layer.mimo_x, layer.mimo_z, layer.mimo_o)
    )
    outputs = []
    for row in u:
        z, x, B, C, d, a, m, theta = layer.in_proj(row).split(layer.widths)
        x, z = x.view(H, P), z.view(H, P)
        dt, share = F.softplus(d + layer.dt_bias), m.sigmoid()
        f = F.softplus(a) if layer.decay == "softplus" else torch.where(a > 0, 1 + a, 1 / (1 - a))
        alpha = torch.exp(-f.clamp(min=layer.decay_floor) * dt)
        phi = phi + pi * theta.tanh() * dt[:, None]

        def prepared(w, norm, bias, r, phi=phi):
            w = w.view(rank, layer.n_groups, N)[r]
            w = F.rms_norm(w, (N,), norm.weight.flatten(), layer.norm_eps)
            w = w.repeat_interleave(H // layer.n_groups, 0) + bias.view(H, rank, N)[:, r]
            pairs = torch.view_as_complex(w[:, : 2 * R].reshape(H, R, 2)) * torch.exp(1j * phi)
            return torch.cat([torch.view_as_real(pairs).flatten(1), w[:, 2 * R :]], 1)

        h = alpha[:, None, None] * h
        new = [prepared(B, layer.B_norm, layer.B_bias, r) for r in range(rank)]
        for r in range(rank):
            past = X[:, r] * ((1 - share) * dt * alpha)[:, None] * value
            now = X[:, r] * (share * dt)[:, None] * x
            h = h + past[:, :, None] * keys[r][:, None] + now[:, :, None] * new[r][:, None]
        keys, value, y = new, x, 0
        for r in range(rank):
            read = prepared(C, layer.C_norm, layer.C_bias, r)
            o = torch.einsum("hpn,hn->hp", h, read) + layer.D[:, None] * X[:, r] * x
            if layer.norm is not None:
                o = F.rms_norm(o, (P,), None, layer.norm_eps) * layer.norm.weight.view(H, P)
            y = y + O[:, r] * o * F.silu(Z[:, r] * z)
        outputs.append(layer.out_proj(y.flatten()))
    return torch.stack(outputs)


OPTIONS = [{}, {"n_groups": 2, "turned": 1.0}, {"decay": "softplus", "out_norm": True}]
OPTIONS += [{"rank": 2, "n_groups": 2}, {"rank": 3, "out_norm": True, "turned": 1.0}]


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
    several = Mamba3(64, rank=4)
    assert several.B_bias.shape == (2, 4, 128)
    for parameter, start in ((several.mimo_x, 0.25), (several.mimo_z, 1), (several.mimo_o, 0.25)):
        assert parameter.shape == (2, 4, 64)
        assert parameter.eq(start).all()
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
        ({"rank": 0}, "Mamba3: rank must be an integer of at least 1"),
        ({"decay": "exp"}, "no Mamba3 decay named 'exp'"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        Mamba3(8, **options)
