"""Random rectified features: their kernel, the masked product, the gate."""

from math import pi

import pytest
import torch

from linrnn.errors import ArgumentError
from linrnn.mixers import ArcCosine


def make(d_model=6, **options):
    torch.manual_seed(0)
    return ArcCosine(d_model, **{"dtype": torch.float64, "n_features": 8, **options})


def features(layer, x):
    """Features of one vector a head, (..., H, d_key), written out head by head."""
    x = x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() * layer.sigma
    heads = [
        (x[..., h, :] @ w.T).clamp(min=0) / len(w) ** 0.5
        for h, w in enumerate(layer.directions.weight)
    ]
    return torch.stack(heads, -2) + layer.offset


def test_features_estimate_the_arc_cosine_kernel():
    layer = make(n_features=20_000, n_heads=1, offset=0.0)
    with torch.no_grad():
        layer.sigma.uniform_(0.5, 2)
    a, b = torch.randn(2, 1, 6, dtype=torch.float64)
    terms = features(layer, a) * features(layer, b) * 20_000
    a, b = (layer.sigma * z / z.norm() for z in (a, b))
    size = a.norm() * b.norm()
    angle = torch.acos((a * b).sum() / size)
    exact = size / (2 * pi) * (angle.sin() + (pi - angle) * angle.cos())
    error = terms.std().item() / 20_000**0.5
    assert terms.mean().item() == pytest.approx(exact.item(), abs=3 * error)


@pytest.mark.parametrize("gate", [False, True])
def test_equals_the_masked_product(gate):
    layer = make(n_heads=2, d_key=4, d_value=5, gate=gate, offset=0.1)
    x = torch.randn(1, 90, 6, dtype=torch.float64)
    q, k, v = layer.heads(x)
    q, k = (features(layer, z)[0].transpose(0, 1) for z in (q, k))
    weight = (q @ k.mT).tril()
    if gate:
        g = layer.gate_proj(x)[0].sigmoid().T
        total = g.log().cumsum(-1)
        weight = weight * (total[:, :, None] - total[:, None]).tril().exp() * (1 - g[:, None])
    weight = weight / weight.sum(-1, keepdim=True)
    expected = layer.out_proj((weight @ v[0].transpose(0, 1)).transpose(0, 1).flatten(1))
    torch.testing.assert_close(layer(x)[0][0], expected, rtol=1e-8, atol=1e-10)


def test_equals_the_loop_of_another_library():
    naive = pytest.importorskip("fla.ops.linear_attn.naive")
    layer = make(8, n_heads=2, dtype=torch.float32)
    x = torch.randn(2, 50, 8, requires_grad=True)
    q, k, v = layer.heads(x)
    o, _ = naive.naive_recurrent_linear_attn(
        features(layer, q), features(layer, k), v, normalize=True
    )
    y, expected = layer(x)[0], layer.out_proj(o.flatten(2))
    torch.testing.assert_close(y, expected, rtol=1e-3, atol=1e-4)
    grads, others = (torch.autograd.grad(out.square().sum(), x) for out in (y, expected))
    torch.testing.assert_close(grads, others, rtol=1e-2, atol=1e-3)


def test_a_query_without_active_features_reads_a_mean():
    layer = make(n_heads=1, n_features=2)
    with torch.no_grad():
        layer.directions.weight.zero_()
    x = torch.randn(1, 5, 6, dtype=torch.float64)
    v = layer.heads(x)[2].flatten(2)
    means = v.cumsum(1) / torch.arange(1, 6)[:, None]
    torch.testing.assert_close(layer(x)[0], layer.out_proj(means))


@pytest.mark.unchecked
def test_bad_arguments():
    with pytest.raises(ArgumentError, match="ArcCosine: offset must be at least 0, got -1"):
        ArcCosine(6, offset=-1.0)
    with pytest.raises(ArgumentError, match=r"ArcCosine: n_features .* got 0"):
        ArcCosine(6, n_features=0)
