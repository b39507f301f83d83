"""RSA against matrices written out, and a linear recurrence taken apart by its eigenvalues."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import LinrnnError
from linrnn.mixers import RSA
from linrnn.testing import check_property
from linrnn.testing._mixer_laws import NUMERIC_LAWS

ALL = {"encoding": "rcsRCS", "n_heads": 7, "dilation": 3}


def make(d_model=6, **options):
    torch.manual_seed(0)
    layer = RSA(d_model, **{"d_head": 2, "dtype": torch.float64, **ALL, **options})
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


def matrix(letter, eta, theta, dilation, time):
    """P (T, T), entry after entry."""
    P = torch.zeros(time, time, dtype=torch.float64)
    for t in range(time):
        for s in range(t):
            n = t - s
            if letter.isupper():
                if n % dilation:
                    continue
                n //= dilation
            if letter in "rR":
                P[t, s] = torch.tanh(eta) ** n
            else:
                wave = torch.cos if letter in "cC" else torch.sin
                P[t, s] = torch.sigmoid(eta) ** n * wave(n * theta)
    return P


def transcription(layer, x):
    """One row (T, d_model), head after head."""
    time, letters = len(x), sorted("rcsRCSr", key="rcsRCS".index)
    q, k, v = (part.transpose(0, 1) for part in layer.heads(x))
    seen = torch.ones(time, time, dtype=torch.bool).tril()
    if layer.window:
        seen = seen.triu(1 - layer.window)
    angles, heads = iter(layer.theta), []
    for h, letter in enumerate(letters):
        theta = None if letter in "rR" else next(angles)
        gate = layer.mu[h].sigmoid()
        P = matrix(letter, layer.eta[h], theta, layer.dilation, time)
        o = F.scaled_dot_product_attention(q[h], k[h], v[h], attn_mask=seen)
        heads.append((1 - gate) * o + gate * (P @ v[h]))
    return layer.o_proj(torch.cat(heads, -1))


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("time", [1, 2, 11])
def test_equals_the_matrices(time, window):
    layer, x = make(window=window), torch.randn(2, time, 6, dtype=torch.float64)
    y, expected = layer(x)[0], torch.stack([transcription(layer, row) for row in x])
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    sources = [layer.mu, layer.heads.proj.weight, *([layer.eta, layer.theta] if time > 3 else [])]
    got, wanted = (torch.autograd.grad(z.square().sum(), sources) for z in (y, expected))
    torch.testing.assert_close(got, wanted)


@torch.no_grad()
def test_a_linear_recurrence_is_one_head_for_an_eigenvalue_and_two_for_a_pair():
    torch.manual_seed(0)
    A = torch.randn(3, 3, dtype=torch.float64)
    A *= 0.9 / torch.linalg.eigvals(A).abs().max()
    B, u = torch.randn(3, 3, dtype=torch.float64), torch.randn(20, 3, dtype=torch.float64)
    values, vectors = torch.linalg.eig(A)
    residues = [torch.outer(v, w) for v, w in zip(vectors.T, vectors.inverse(), strict=True)]
    single = next(i for i in range(3) if abs(values[i].imag) < 1e-12)
    upper = next(i for i in range(3) if values[i].imag > 1e-12)
    layer = make(3, encoding="rcs", n_heads=3, d_head=3)
    layer.mu.fill_(60.0)  # no softmax
    layer.eta[0] = values[single].real.atanh()
    layer.eta[1:] = values[upper].abs().logit()
    layer.theta.fill_(values[upper].angle())
    maps = [residues[single].real, 2 * residues[upper].real, -2 * residues[upper].imag]
    layer.heads.rows()[2].copy_(torch.cat([m @ B for m in maps]))
    layer.o_proj.weight.copy_(torch.eye(3).repeat(1, 3))
    state, expected = torch.zeros(3, dtype=torch.float64), []
    for step in u:
        state = A @ state + B @ step
        expected.append(state)
    got = layer(u[None])[0][0] + u @ B.T
    torch.testing.assert_close(got, torch.stack(expected), rtol=0, atol=1e-13)


@torch.no_grad()
def test_a_closed_gate_is_softmax_attention():
    layer, x = make(), torch.randn(2, 9, 6, dtype=torch.float64)
    layer.mu.fill_(-60.0)
    q, k, v = (part.transpose(1, 2) for part in layer.heads(x))
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    torch.testing.assert_close(layer(x)[0], layer.o_proj(o.flatten(2)))


@pytest.mark.parametrize("law", NUMERIC_LAWS)
def test_laws_hold_with_every_kind_of_head(law):
    check_property(law, partial(RSA, **ALL, window=4))


def test_initial_numbers():
    torch.manual_seed(0)
    layer = RSA(60, n_heads=600, encoding="rcR")
    assert layer.mu.unique().tolist() == [-3.0]
    sizes = torch.cat(
        [layer.eta[:200].tanh(), layer.eta[200:400].sigmoid(), layer.eta[400:].tanh()]
    )
    assert 0.29 < sizes.min() < 0.32
    assert 0.97 < sizes.max() < 0.991
    assert layer.theta.shape == (200,)
    assert layer.theta.mean().item() == pytest.approx(torch.pi / 2, abs=0.2)


@pytest.mark.unchecked
def test_constructor_words_its_errors():
    for bad in ("", "rx"):
        with pytest.raises(LinrnnError, match=f"encoding must be of the letters r.*got '{bad}'"):
            RSA(4, encoding=bad)
    with pytest.raises(LinrnnError, match="RSA: dilation must be an integer of at least 1, got 0"):
        RSA(4, dilation=0)
