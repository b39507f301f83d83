from functools import partial
from math import erf

import numpy as np
import pytest
import torch

from linrnn.errors import ArgumentError
from linrnn.mixers import Mega
from linrnn.testing import check_close, check_property

TIME = 23


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def turned(b, t, base):
    """A vector turned by its position, two channels at a time."""
    angle = t * base ** (-np.arange(0, len(b), 2) / len(b))
    z = (b[0::2] + 1j * b[1::2]) * np.exp(1j * angle)
    return np.stack([z.real, z.imag], -1).reshape(-1)


def oracle(layer, x):
    """The equation in float64, one step and one pair of steps after the other; x (T, D)."""
    p = {n: v.detach().numpy() for n, v in layer.named_parameters()}
    T, D = x.shape
    a, d = sigmoid(p["alpha"]), sigmoid(p["delta"])
    h, m = np.zeros_like(a), np.zeros_like(x)
    for t in range(T):
        h = a * (p["beta"] * x[t][:, None]) + (1 - a * d) * h
        m[t] = silu((p["eta"] * h).sum(1) / layer.d_ema**0.5 + p["omega"] * x[t])
    made = m @ p["average_proj.weight"].T + p["average_proj.bias"]
    u, z, r, c = np.split(made, np.cumsum([D, layer.d_key, layer.d_inner]), 1)
    q, k = (p["kappa"][i] * silu(z) + p["mu"][i] for i in range(2))
    v = silu(x @ p["value_proj.weight"].T + p["value_proj.bias"])
    y = np.zeros_like(x)
    for t in range(T):
        first = 0 if layer.chunk is None else t - t % layer.chunk
        seen = range(first, t + 1)
        if layer.table is None:
            b = [[turned(p["b"][i], n, layer.base) for n in (t, *seen)] for i in range(2)]
            bias = np.array([b[0][0] @ b_s for b_s in b[1][1:]])
        else:
            bias = np.array([p["distances"][min(t - s, layer.table - 1)] for s in seen])
        scores = k[first : t + 1] @ q[t]
        if layer.attention == "softmax":
            weights = np.exp(scores / layer.d_key**0.5 + bias)
            weights /= weights.sum()
        else:
            centred = scores / len(seen) + bias - 0.5**0.5
            weights = np.array([(1 + erf(w * (2 * np.pi) ** 0.5)) / 2 for w in centred])
        read = weights @ v[first : t + 1]
        new = silu(c[t] + p["hidden_proj.weight"] @ (silu(r[t]) * read))
        y[t] = sigmoid(u[t]) * new + (1 - sigmoid(u[t])) * x[t]
    return y


@pytest.mark.parametrize("attention", ["softmax", "laplace"])
@pytest.mark.parametrize("chunk", [None, 1, 5])
@pytest.mark.parametrize("table", [None, 4])
def test_mega_is_its_equation_whole_and_split(attention, chunk, table):
    torch.manual_seed(0)
    sizes = {"d_ema": 4, "d_key": 6, "d_inner": 5, "base": 50.0}
    layer = Mega(3, **sizes, chunk=chunk, attention=attention, table=table).double()
    with torch.no_grad():
        bias = layer.b if table is None else layer.distances
        for part in (bias, layer.mu, layer.average_proj.bias, layer.value_proj.bias):
            part.normal_()
    x = torch.randn(1, TIME, 3, dtype=torch.float64)
    expected = torch.from_numpy(oracle(layer, x[0].numpy()))[None]
    for sizes in ((TIME,), (7, 1, 15), (1,) * TIME):
        state, ys = None, []
        for part in x.split(sizes, 1):
            y, state = layer(part, state)
            ys.append(y)
        check_close(f"in {sizes}", torch.cat(ys, 1), expected, roundings=2**10)


def test_state_is_bounded_by_the_chunk():
    layer = Mega(4, chunk=8, d_key=2)
    _, state = layer(torch.randn(2, 100, 4))
    assert state["k"].shape == (2, 7, 2)
    assert not layer.declared
    assert layer.cost == "parallel"
    assert "constant_memory" in Mega(4).declared


def test_initial_statistics():
    torch.manual_seed(0)
    layer = Mega(128, init="published")
    for p, std in ((layer.alpha, 0.2), (layer.eta, 1.0), (layer.value_proj.weight, 0.02)):
        assert abs(float(p.detach().std()) - std) < 0.05 * std
    signs = torch.tensor([1.0, -1.0]).repeat(8)
    assert (layer.beta.detach() - signs).abs().max() < 0.12
    assert not layer.mu.any()
    scaled = Mega(128)
    assert (scaled.kappa == 1).all()
    assert abs(float(scaled.hidden_proj.weight.detach().std()) * 256**0.5 - 1) < 0.05
    average = layer.averages()
    assert ((average.a > 0) & (average.a < 1)).all()


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"norm": "layer", "attention": "relu_squared", "chunk": 5},
        {"norm": "rms"},
        {"table": 5},
    ],
    ids=["layer", "rms", "table"],
)
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(Mega, **options))


def test_with_a_norm_of_its_own_the_input_passes_as_it_came():
    """Gates that are shut leave the input, whatever the norm does."""
    layer = Mega(4, norm="layer", dtype=torch.float64)
    with torch.no_grad():
        layer.average_proj.bias[:4] = -1e4
    x = 5 + torch.randn(2, 7, 4, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0], x)


@pytest.mark.unchecked
def test_mega_words_its_errors():
    with pytest.raises(ArgumentError, match="Mega: d_key must be even, got 5"):
        Mega(4, d_key=5)
    with pytest.raises(ArgumentError, match="Mega: table must be an integer of at least 1, got 0"):
        Mega(4, table=0)
    with pytest.raises(ArgumentError, match="Mega: chunk must be an integer of at least 1, got 0"):
        Mega(4, chunk=0)
