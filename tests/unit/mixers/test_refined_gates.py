"""Refine gates and starts of layers whose forget gate sees the state, against plain loops."""

import pytest
import torch
from transcribed import livelier

from linrnn.errors import LinrnnError
from linrnn.mixers import ELSTM, SRU, FastGRNN, IndRNN

D, N, T = 3, 4, 8


def x_of():
    torch.manual_seed(0)
    return torch.randn(1, T, D, dtype=torch.float64)


def refined(f, s):
    return 2 * s * f + (1 - 2 * s) * f**2


@pytest.mark.parametrize("peepholes", [True, False])
@pytest.mark.parametrize("d_state", [D, N])
def test_sru(peepholes, d_state):
    layer = SRU(D, d_state=d_state, peepholes=peepholes, gates="ur", dtype=torch.float64)
    layer, x = livelier(layer), x_of()
    v = layer.v if peepholes else torch.zeros(3, d_state).double()
    c, outputs = torch.zeros(d_state).double(), []
    for x_t in x[0]:
        z, f, r, *wide_x, s = (layer.in_proj.weight @ x_t).split(d_state)
        f, r, s = (
            (g + b + w * c).sigmoid() for g, b, w in zip((f, r, s), layer.bias, v, strict=True)
        )
        f = refined(f, s)
        c = f * c + (1 - f) * z
        outputs.append(r * c + (1 - r) * (wide_x[0] if wide_x else layer.alpha * x_t))
    torch.testing.assert_close(layer(x)[0][0], layer.out_proj(torch.stack(outputs)))


@pytest.mark.parametrize("output_gate", [True, False])
def test_elstm(output_gate):
    layer = ELSTM(D, d_state=N, output_gate=output_gate, gates="refine", dtype=torch.float64)
    layer, x = livelier(layer), x_of()
    c, outputs = torch.zeros(N).double(), []
    for x_t in x[0]:
        z, f, *o, s = layer.in_proj(x_t).split(N)
        z = torch.tanh(z + layer.w[0] * c)
        f, s = ((g + w * c).sigmoid() for g, w in zip((f, s), layer.w[1:], strict=True))
        c = refined(f, s) * c + (1 - refined(f, s)) * z
        outputs.append((o[0] + layer.W_o @ c).sigmoid() * c if output_gate else c)
    torch.testing.assert_close(layer(x)[0][0], layer.out_proj(torch.stack(outputs)))


@pytest.mark.parametrize("u_rank", [None, 2])
@pytest.mark.parametrize("nonlinearity", ["tanh", "piecewise"])
def test_fast_grnn(u_rank, nonlinearity):
    options = {"u_rank": u_rank, "nonlinearity": nonlinearity}
    layer = FastGRNN(D, d_state=N, gates="ur", **options, dtype=torch.float64)
    layer, x = livelier(layer), x_of()
    U = layer.U if u_rank is None else layer.U @ layer.U_1
    zeta, nu = layer.logits.sigmoid()
    h, outputs = torch.zeros(N).double(), []

    def sigma(a):
        return a.sigmoid() if nonlinearity == "tanh" else (0.5 * a + 0.5).clamp(0, 1)

    def phi(a):
        return a.tanh() if nonlinearity == "tanh" else a.clamp(-1, 1)

    for x_t in x[0]:
        a = layer.W @ x_t + U @ h
        z = refined(sigma(a + layer.b_z), sigma(a + layer.b_s))
        h = z * h + (zeta * (1 - z) + nu) * phi(a + layer.b_h)
        outputs.append(h)
    torch.testing.assert_close(layer(x)[0][0], layer.out_proj(torch.stack(outputs)))


def test_starts():
    sru = SRU(D, d_state=500, gates="ur")
    forget = sru.bias[0].sigmoid()
    assert 0 < forget.min() < 0.1 < 0.9 < forget.max() < 1
    torch.testing.assert_close(sru.bias[2], -sru.bias[0])
    elstm = ELSTM(D, d_state=500, gates="ur")
    _, f, _, s = elstm.in_proj.bias.split(500)
    torch.testing.assert_close(s, -f)
    fast = FastGRNN(D, d_state=500, gates="chrono", t_max=50)
    memory = 1 / (1 - fast.b_z.sigmoid())
    assert 2 <= memory.min() < 6 < 45 < memory.max() <= 50.01
    ramp = FastGRNN(D, d_state=500, gates="uniform", nonlinearity="piecewise")
    value = 0.5 * ramp.b_z + 0.5
    assert 0 < value.min() < 0.1 < 0.9 < value.max() < 1
    u = IndRNN(D, d_state=500, start="chrono", t_max=50).u
    assert 2 <= 1 / (1 - u.min()) < 6 < 45 < 1 / (1 - u.max()) <= 50.1


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: FastGRNN(D, gated=False, gates="ur"), "gates must be 'plain' for gated=False"),
        (lambda: FastGRNN(D, gates="chrono"), "FastGRNN: t_max must be at least 2"),
        (lambda: IndRNN(D, start="chrono"), "IndRNN: t_max must be at least 2"),
        (lambda: IndRNN(D, start="uniform"), "start"),
    ],
)
def test_words_its_errors(attempt, message):
    with pytest.raises(LinrnnError, match=message):
        attempt()
