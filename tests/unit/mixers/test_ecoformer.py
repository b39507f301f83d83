"""EcoFormer against explicit weights of its codes, its slopes, and hash functions fitted anew."""

import pytest
import torch

from linrnn.errors import ArgumentError, ShapeError
from linrnn.mixers import EcoFormer


def make(d_model=6, **options):
    torch.manual_seed(0)
    return EcoFormer(d_model, **{"dtype": torch.float64, "bits": 5, **options})


def arguments(layer, x):
    """Vectors whose signs are taken, (B, H, T, bits), and values (B, H, T, d_value)."""
    u, v = (z.transpose(1, 2) for z in layer.heads(x))
    n = u / (u.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    h = layer.hash
    distance = (n[..., None, :] - h.points[:, None]).square().sum(-1)
    kernel = torch.exp(-distance / (2 * h.width[:, None, None]))
    return (kernel - h.mean[:, None]) @ h.weight.mT, v


def attended(layer, code, v):
    weight = (code @ code.mT + layer.bits + 1).tril()
    o = weight @ v / weight.sum(-1, keepdim=True)
    return layer.out_proj(o.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("fitted", [False, True])
def test_equals_explicit_weights(fitted):
    layer = make(n_heads=2, d_key=4, d_value=5)
    x = torch.randn(2, 90, 6, dtype=torch.float64)
    if fitted:
        layer.fit(x, steps=5)
    z, v = arguments(layer, x)
    expected = attended(layer, z.sign(), v)
    first, state = layer(x[:, :40])
    y = torch.cat([first, layer(x[:, 40:], state)[0]], 1)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-10)


def test_the_slope_of_a_sign_is_one_below_one_and_zero_above():
    layer = make(n_heads=2)
    x = torch.randn(2, 9, 6, dtype=torch.float64, requires_grad=True)
    z, v = arguments(layer, x)
    assert 0.1 < (z.abs() < 1).double().mean() < 1
    code = z.sign().detach().requires_grad_()
    expected = attended(layer, code, v)
    (slope,) = torch.autograd.grad(expected.square().sum(), code, retain_graph=True)
    through = torch.where(z.abs() < 1, slope, 0)
    wanted = [x, layer.heads.proj.weight, layer.heads.proj.bias]
    by_codes = torch.autograd.grad(z, wanted, through, retain_graph=True)
    by_values = torch.autograd.grad(expected.square().sum(), wanted)
    grads = torch.autograd.grad(layer(x)[0].square().sum(), wanted)
    for got, a, b in zip(grads, by_codes, by_values, strict=True):
        torch.testing.assert_close(got, a + b, rtol=1e-8, atol=1e-10)


def test_fitting_begins_the_memory_anew_and_travels_with_the_weights():
    layer, x = make(), torch.randn(2, 30, 6, dtype=torch.float64)
    before, state = layer(x)
    layer.fit(x, steps=5)
    fresh, _ = layer(x)
    assert not torch.allclose(before, fresh)
    again, last = layer(x, state)
    assert torch.equal(again, fresh)
    assert last["draw"].tolist() == [1, 1]
    other = EcoFormer(6, bits=5, dtype=torch.float64)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x)[0], fresh)


def test_equal_inputs_have_the_largest_weight():
    layer = make(1, n_heads=1, bits=16)
    with torch.no_grad():
        layer.heads.proj.weight[1], layer.out_proj.weight[0] = 1, 1
        for linear in (layer.heads.proj, layer.out_proj):
            linear.bias.zero_()
    x = torch.tensor([2.0, -1.0, 2.0], dtype=torch.float64).view(1, 3, 1)
    (z, _), most = arguments(layer, x), 33  # of the same code
    other = (z[0, 0, 0].sign() @ z[0, 0, 1].sign()).item() + 17
    expected = (2 * most - other + 2 * most) / (2 * most + other)
    assert layer(x)[0][0, -1, 0].item() == pytest.approx(expected)


@pytest.mark.unchecked
def test_bad_arguments():
    with pytest.raises(ShapeError, match=r"EcoFormer.fit: x .* got \(2, 30, 5\)"):
        make().fit(torch.randn(2, 30, 5))
    with pytest.raises(ArgumentError, match="x must hold at least 25 vectors, got 6"):
        make().fit(torch.randn(2, 3, 6, dtype=torch.float64))
    with pytest.raises(ArgumentError, match=r"bits .* got 0"):
        make(bits=0)
