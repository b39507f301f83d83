"""cosFormer against the quadratic form with its cosines, resets, and its limits."""

from math import pi

import pytest
import torch

from linrnn.errors import ArgumentError
from linrnn.mixers import CosFormer


def make(d_model=6, **options):
    torch.manual_seed(0)
    return CosFormer(d_model, dtype=torch.float64, **options)


def quadratic(layer, x, start=0):
    q, k, v = (z.transpose(1, 2) for z in layer.heads(x))
    t = torch.arange(start, start + x.shape[1], dtype=torch.float64)
    cos = torch.cos(pi * (t[:, None] - t) / (2 * layer.max_length))
    weight = (q.relu() @ k.relu().mT * cos).tril()
    o = weight @ v / weight.sum(-1, keepdim=True).clamp(min=layer.eps)
    return layer.out_proj(o.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("max_length", [40, 150, 10_000])
def test_equals_the_quadratic_form(max_length):
    layer = make(n_heads=2, d_key=4, d_value=5, max_length=max_length)
    x = torch.randn(2, 150, 6, dtype=torch.float64, requires_grad=True)
    expected = quadratic(layer, x)
    first, state = layer(x[:, :70])
    rest, state = layer(x[:, 70:], state)
    y = torch.cat([first, rest], 1)
    torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-8)
    wanted = [x, *layer.parameters()]
    grads, others = (torch.autograd.grad(out.square().sum(), wanted) for out in (y, expected))
    for got, other in zip(grads, others, strict=True):
        torch.testing.assert_close(got, other, rtol=1e-6, atol=1e-8 * other.abs().max().item())


def test_a_weight_falls_to_zero_at_the_largest_distance():
    layer = make(1, n_heads=1, max_length=5, bias=False)
    with torch.no_grad():
        layer.heads.proj.weight.fill_(1)
        layer.out_proj.weight.fill_(1)
    x = torch.ones(1, 6, 1, dtype=torch.float64)
    x[0, 0] = 7  # at distance 5 from the last
    cosines = torch.cos(torch.arange(5, dtype=torch.float64) * pi / 10)
    torch.testing.assert_close(layer(x)[0][0, -1, 0], cosines.sum() / cosines.sum())
    assert layer(x)[0][0, -2, 0] > 1.5


def test_angles_are_exact_far_from_the_start():
    layer = CosFormer(6)
    x = torch.randn(1, 30, 6)
    near = layer.init_state(1)
    far = {**near, "position": torch.tensor([4 * 4096 * 10**9])}
    torch.testing.assert_close(layer(x, far)[0], layer(x, near)[0], rtol=0, atol=0)


def test_nothing_active_gives_nothing():
    layer = make()
    with torch.no_grad():
        layer.heads.proj.weight.zero_()
        layer.heads.proj.bias.fill_(-1)
    y, _ = layer(torch.randn(1, 4, 6, dtype=torch.float64))
    torch.testing.assert_close(y, layer.out_proj.bias.expand_as(y))


@pytest.mark.unchecked
def test_bad_arguments():
    with pytest.raises(ArgumentError, match=r"CosFormer: max_length .* got 0"):
        CosFormer(6, max_length=0)
