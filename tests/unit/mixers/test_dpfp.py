"""DPFP against another library's features, its two normalisations, and numbers by hand."""

import pytest
import torch

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import DPFP
from linrnn.nn import dpfp


def make(d_model=6, **options):
    torch.manual_seed(0)
    return DPFP(d_model, dtype=torch.float64, **options)


def features(x, nu):
    """By index: phi_{i + 2d(j-1)} = r_i r_{i-j}."""
    r = [max(z, 0.0) for z in x] + [max(-z, 0.0) for z in x]
    return [r[i] * r[(i - j) % len(r)] for j in range(1, nu + 1) for i in range(len(r))]


def test_features():
    assert dpfp(torch.tensor([1.0, -2.0]), 1).tolist() == [2, 0, 0, 0]
    x = torch.randn(5, dtype=torch.float64)
    assert dpfp(x, 4).tolist() == features(x.tolist(), 4)


def test_features_are_those_of_another_library():
    other = pytest.importorskip("fla.modules.feature_map").DPFPFeatureMap(4, nu=3)
    x = torch.randn(2, 7, 3, 4)
    assert torch.equal(dpfp(x, 3), other(x))


@pytest.mark.parametrize("normalize", ["sum", "attention"])
def test_equals_the_masked_product(normalize):
    layer = make(n_heads=2, d_key=4, d_value=5, nu=3, normalize=normalize, eps=1e-3)
    x = torch.randn(1, 90, 6, dtype=torch.float64)
    q, k, v = (z[0].transpose(0, 1) for z in layer.heads(x))
    q, k = (z.new_tensor([[features(r, 3) for r in h] for h in z.tolist()]) for z in (q, k))
    if normalize == "sum":
        q, k = (z / (z.sum(-1, keepdim=True) + 1e-3) for z in (q, k))
        weight = (q @ k.mT).tril() / 4**0.5
    else:
        weight = (q @ k.mT).tril()
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-3)
    expected = layer.out_proj((weight @ v).transpose(0, 1).flatten(1))
    torch.testing.assert_close(layer(x)[0][0], expected, rtol=1e-10, atol=1e-12)


def test_normalised_features_do_not_depend_on_the_size_of_keys():
    layer = make(n_heads=1, eps=0.0, nu=1)
    x = torch.randn(1, 20, 6, dtype=torch.float64)
    y, _ = layer(x)
    with torch.no_grad():
        layer.heads.proj.weight[:32] *= 1e3  # of queries and keys
    torch.testing.assert_close(layer(x)[0], y)


@pytest.mark.unchecked
def test_bad_arguments():
    with pytest.raises(ArgumentError, match=r"DPFP: nu must be at most 3, got 4"):
        DPFP(4, d_key=2, nu=4)
    with pytest.raises(ArgumentError, match=r"nu .* got 0"):
        DPFP(4, nu=0)
    with pytest.raises(UnknownNameError, match="DPFP normalize named 'l2'"):
        DPFP(4, normalize="l2")
