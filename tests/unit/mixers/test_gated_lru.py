"""GatedLRU as linear attention by the paper's construction, against a loop, its start."""

import pytest
import torch
from plain_loop import check_equal
from scipy.stats import kstest

from linrnn.errors import ArgumentError, LinrnnError
from linrnn.mixers import GatedLRU


def transcription(layer, x):
    """One step after another."""
    lam = torch.exp(-torch.exp(layer.nu_log)) if layer.decay == "exp" else layer.lam
    u = x @ layer.in_proj.weight.T
    u = u + layer.in_proj.bias if layer.bias else u
    m, u = u.split(layer.d_state, -1)
    h, y = layer.h0 if layer.learn_initial else torch.zeros_like(lam), []
    for t in range(len(x)):
        h = lam * h + m[t] * u[t]
        y.append(h)
    v = torch.stack(y) @ layer.out_gates.weight.T
    v = v + layer.out_gates.bias if layer.bias else v
    a, b = v.split(layer.d_out, -1)
    return (a * b) @ layer.out_proj.weight.T


@pytest.mark.parametrize(
    "options",
    [{}, {"decay": "free", "d_state": 5, "d_out": 2}, {"bias": False, "learn_initial": True}],
    ids=str,
)
def test_equals_a_transcription_split_and_whole_gradients_too(options):
    check_equal(GatedLRU(3, dtype=torch.float64, **options), transcription)


def as_linear_attention(q, k, v):
    """The layer with the paper's construction: d^2 channels that count, d that forget at once."""
    d = len(q)
    layer = GatedLRU(d, d_state=d * d + d, d_out=d * d, decay="free", dtype=torch.float64)
    W_in, W_out = layer.in_proj.weight, layer.out_gates.weight
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        layer.lam[: d * d] = 1
        m, x = W_in.split(d * d + d)
        m[: d * d], x[: d * d] = v.repeat_interleave(d, 0), k.repeat(d, 1)
        m[d * d :] = q
        layer.in_proj.bias[-d:] = 1  # times the constant 1
        W_out[: d * d, : d * d] = torch.eye(d * d)
        W_out[d * d :, d * d :] = torch.eye(d).repeat(d, 1)
        layer.out_proj.weight.copy_(torch.eye(d).repeat_interleave(d, 1))
    return layer


def test_is_linear_attention_by_the_papers_construction():
    torch.manual_seed(0)
    q, k, v, x = (torch.randn(n, 4, dtype=torch.float64) for n in (4, 4, 4, 25))
    scores = ((x @ q.T) @ (x @ k.T).T).tril()
    y, _ = as_linear_attention(q, k, v)(x[None])
    torch.testing.assert_close(y[0], scores @ (x @ v.T), rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("decay", ["exp", "free"])
def test_decays_start_on_the_ring_and_states_with_variance_one(decay):
    torch.manual_seed(0)
    layer = GatedLRU(128, d_state=500, decay=decay, r_min=0.5, r_max=0.9)
    lam = layer.eigenvalues().real.detach().double()
    assert kstest((lam**2 - 0.25) / (0.81 - 0.25), "uniform").pvalue > 0.01
    _, h = layer(torch.randn(64, 30, 128))
    assert h.var().item() == pytest.approx(1, abs=0.06)
    assert not layer.in_proj.bias.any()
    assert layer.out_proj.weight.std().item() == pytest.approx(500**-0.5, rel=0.02)


BAD = [
    ({"d_out": 0}, "GatedLRU: d_out must be an integer of at least 1, got 0"),
    ({"decay": "ring"}, "no GatedLRU decay named 'ring'"),
    ({"r_min": 1.0}, "GatedLRU: r_min and r_max must satisfy 0 <= r_min < r_max <= 1"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        GatedLRU(4, **options)


def test_a_time_is_a_power_of_the_decay():
    layer = GatedLRU(3, d_state=5, dtype=torch.float64)
    x, dt = torch.randn(2, 9, 3).double(), 4 * torch.rand(2, 9).double()
    h = torch.randn(2, 5, dtype=torch.float64)
    _, last = layer(x, h, dt=dt)
    m, v = layer.in_proj(x).chunk(2, -1)
    for t in range(9):
        h = torch.exp(-layer.nu_log.exp() * dt[:, t, None]) * h + (m * v)[:, t]
    torch.testing.assert_close(last, h, rtol=1e-11, atol=1e-12)


@pytest.mark.unchecked
def test_a_free_decay_has_no_times():
    layer, x, dt = GatedLRU(3, decay="free"), torch.ones(1, 2, 3), torch.ones(1, 2)
    with pytest.raises(ArgumentError, match="dt must"):
        layer(x, dt=dt)
    with pytest.raises(ArgumentError, match="dt must"):
        layer.step(x[:, 0], layer.init_state(1), dt=dt[:, 0])
