"""Performer: softmax attention in the limit, published features of every prefix, its maximum."""

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import Performer

ESTIMATES = ["positive", "hyperbolic", "trigonometric"]


def make(d_model=6, **options):
    torch.manual_seed(0)
    return Performer(d_model, **{"dtype": torch.float64, **options})


def heads(layer, x):
    """Queries, keys (scaled) and values (B, H, T, ...)."""
    q, k, v = (z.transpose(1, 2) for z in layer.heads(x))
    return q / layer.d_key**0.25, k / layer.d_key**0.25, v


def out(layer, o):
    return layer.out_proj(o.transpose(1, 2).flatten(2))


def log_features(layer, u):
    """``(sign, logarithm)`` of features without scale, (..., features)."""
    z, half = u @ layer.directions.weight[0].T, u.square().sum(-1, keepdim=True) / 2
    if layer.features == "positive":
        return 1.0, z - half
    if layer.features == "hyperbolic":
        return 1.0, torch.cat([z, -z], -1) - half
    return torch.cat([z.sin(), z.cos()], -1), half


def prefixes(layer, x):
    """The equation, written out for the sequence that ends at each step."""
    q, k, v = heads(layer, x)
    outputs = []
    for t in range(1, x.shape[1] + 1):
        sign, log = log_features(layer, q[:, :, t - 1 : t])
        sign_k, log_k = log_features(layer, k[:, :, :t])
        phi_q = (log - log.amax(-1, keepdim=True)).exp()
        phi_k = (log_k - log_k.amax((-1, -2), keepdim=True)).exp()
        if layer.features == "trigonometric":
            weight = (sign * phi_q) @ (sign_k * phi_k).mT
            total = (weight.sum(-1, keepdim=True).abs() / layer.n_features).clamp(min=layer.eps)
            outputs.append(weight @ v[:, :, :t] / layer.n_features / total)
        else:
            weight = (phi_q + layer.eps) @ (phi_k + layer.eps).mT
            outputs.append(weight @ v[:, :, :t] / weight.sum(-1, keepdim=True))
    return out(layer, torch.cat(outputs, 2))


@pytest.mark.parametrize("features", ESTIMATES)
def test_every_step_is_what_ends_there(features):
    layer = make(n_heads=2, d_key=4, d_value=5, features=features, eps=0.01)
    x = 2 * torch.randn(2, 30, 6, dtype=torch.float64)
    x.requires_grad_()
    first, state = layer(x[:, :17])
    rest, state = layer(x[:, 17:], state)
    y, expected = torch.cat([first, rest], 1), prefixes(layer, x)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-10)
    wanted = [x, *layer.parameters()]
    grads, others = (torch.autograd.grad(z.square().sum(), wanted) for z in (y, expected))
    for got, other in zip(grads, others, strict=True):
        torch.testing.assert_close(got, other, rtol=1e-7, atol=1e-9 * other.abs().max().item())


@pytest.mark.parametrize("sampling", ["orthogonal", "independent"])
@pytest.mark.parametrize("features", ESTIMATES)
def test_many_features_are_softmax_attention(features, sampling):
    def error(count):
        """Root mean square over four draws."""
        layer, total = make(n_features=count, features=features, sampling=sampling, eps=1e-12), 0.0
        for _ in range(4):
            layer.redraw()
            total += (out(layer, exact) - layer(x)[0]).square().mean().item() / 4
        return total**0.5

    layer = make()
    x = 0.5 * torch.randn(8, 12, 6, dtype=torch.float64)  # of large ones the tails are heavy
    q, k, v = (z.transpose(1, 2) for z in layer.heads(x))
    exact = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert error(60) < 0.03
    assert error(4000) < 0.3 * error(60)  # 0.12 is expected


def test_relu_features():
    layer = make(n_heads=2, d_key=4, features="relu")
    q, k, v = heads(layer, x := torch.randn(1, 20, 6, dtype=torch.float64))
    w = layer.directions.weight[0]
    q, k = ((z @ w.T).relu() / len(w) ** 0.5 + 1e-3 for z in (q, k))
    weight = (q @ k.mT).tril()
    expected = out(layer, weight / weight.sum(-1, keepdim=True) @ v)
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-9, atol=1e-10)


def test_the_last_step_is_that_of_another_library():
    other = pytest.importorskip("performer_pytorch.performer_pytorch")
    layer = make(n_heads=2, n_features=11, eps=1e-13)
    x = torch.randn(2, 15, 6, dtype=torch.float64)
    q, k, v = (z.transpose(1, 2) for z in layer.heads(x))
    w = layer.directions.weight[0]
    q, k = (
        other.softmax_kernel(z, projection_matrix=w, is_query=query, eps=1e-13)
        for z, query in ((q, True), (k, False))
    )
    expected = out(layer, other.linear_attention(q, k, v))
    torch.testing.assert_close(layer(x)[0][:, -1], expected[:, -1], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("features", ESTIMATES)
def test_large_keys_do_not_overflow(features):
    layer = make(features=features, dtype=torch.float32)
    x = torch.randn(1, 40, 6)
    x[0, 20:22] *= 100
    y, state = layer(x)
    assert y.isfinite().all()
    assert state["top"].max() > 0
    assert layer(x[:, :20])[1]["top"].max() <= state["top"].max()


def test_sampling():
    for kind, orthogonal, same in (
        ("orthogonal", True, False),
        ("regularised", True, True),
        ("independent", False, False),
    ):
        w = make(d_key=5, n_features=5, sampling=kind).directions.weight[0]
        gram = w @ w.T
        assert torch.allclose(gram, gram.diagonal().diag()) == orthogonal
        assert torch.allclose(gram.diagonal(), torch.full_like(gram[0], 5)) == same


def test_start():
    layer = make(64, n_heads=1)
    assert layer.n_features == 266  # 64 log 64
    assert layer.directions.weight.shape == (1, 266, 64)
    assert layer.state_spec()["top"].start == pytest.approx(-1e30)
    assert layer.init_state(1)["top"].tolist() == [[0]]  # which stands for it


@pytest.mark.unchecked
def test_bad_arguments():
    with pytest.raises(UnknownNameError, match="Performer features named 'cosine'"):
        Performer(6, features="cosine")
    with pytest.raises(UnknownNameError, match="Performer sampling named 'grid'"):
        Performer(6, sampling="grid")
    with pytest.raises(ArgumentError, match="eps must be positive and finite, got 0"):
        Performer(6, eps=0.0)
