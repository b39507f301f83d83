"""Projections to heads and back, low-rank and block-diagonal maps, feature maps."""

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.nn import (
    BlockDiagonal,
    GatedOut,
    HeadNorm,
    Heads,
    LowRank,
    feature_map,
    head_norm,
    l2_normalise,
    sum_normalise,
)


def test_heads_are_the_rows_of_one_matrix():
    heads, x = Heads(6, 2, (3, 4), bias=True), torch.randn(2, 5, 6)
    a, b = heads(x)
    rows = F.linear(x, heads.proj.weight, heads.proj.bias)
    torch.testing.assert_close(torch.cat([a.flatten(-2), b.flatten(-2)], -1), rows)
    assert (a.shape, b.shape) == ((2, 5, 2, 3), (2, 5, 2, 4))


@pytest.mark.parametrize("norm", ["rms", "layer", "none"])
@pytest.mark.parametrize("gate", ["silu", "sigmoid"])
def test_gated_out_is_its_equation(norm, gate):
    out, o, x = GatedOut(6, 2, 4, norm=norm, gate=gate), torch.randn(3, 2, 4), torch.randn(3, 6)
    mean = o.mean(-1, keepdim=True) if norm == "layer" else 0
    scale = ((o - mean).square().mean(-1, keepdim=True) + 1e-6).sqrt() if norm != "none" else 1
    z = out.gate_proj(x)
    z = z * z.sigmoid() if gate == "silu" else z.sigmoid()
    torch.testing.assert_close(out(o, x), out.out_proj(z * ((o - mean) / scale).flatten(-2)))
    assert head_norm(o, norm, 1e-6).shape == o.shape


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e15])
def test_norm_of_heads_is_that_of_pytorch_and_its_gradient_right_at_any_size(size):
    """At 1e15 PyTorch's own gradient in float32 is off by a quarter."""
    torch.manual_seed(0)
    o, cotangent = size * torch.randn(5, 4, 48), torch.randn(5, 4, 48)
    assert torch.equal(head_norm(o, "rms", 1e-5), F.rms_norm(o, (48,), eps=1e-5))
    single, double = o.requires_grad_(), o.detach().double().requires_grad_()
    (got,) = torch.autograd.grad(head_norm(single, "rms", 1e-5), single, cotangent)
    expected = torch.autograd.grad(F.rms_norm(double, (48,), eps=1e-5), double, cotangent.double())
    difference = (got - expected[0]).abs().max()
    assert difference < 1e-6 * expected[0].abs().max()


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_norm_of_heads_has_the_same_derivatives_in_every_mode(norm):
    """Forward mode in forward mode is where PyTorch's own layer norm goes wrong."""
    o = torch.randn(2, dtype=torch.float64)

    def normed(o):
        return head_norm(o, norm, 0.1)

    modes = (torch.func.jacfwd, torch.func.jacrev)
    want = torch.func.jacrev(torch.func.jacrev(normed))(o)
    for outer, inner in itertools.product(modes, modes):
        torch.testing.assert_close(outer(inner(normed))(o), want)


def test_gated_out_without_a_gate_and_with_one_through_a_bottleneck():
    o, x = torch.randn(3, 2, 4), torch.randn(3, 6)
    plain = GatedOut(6, 2, 4, norm="none", gate="none")
    torch.testing.assert_close(plain(o, x), plain.out_proj(o.flatten(-2)))
    assert plain.gate_proj is None
    narrow = GatedOut(6, 2, 4, norm="none", gate="sigmoid", gate_rank=3)
    gate = x @ narrow.gate_proj.down.weight.T @ narrow.gate_proj.up.weight.T
    torch.testing.assert_close(narrow(o, x), narrow.out_proj(gate.sigmoid() * o.flatten(-2)))
    before = [p.clone() for p in narrow.parameters()]
    narrow.reset_parameters()
    pairs = zip(before, narrow.parameters(), strict=True)
    assert len(before) == 3
    assert not any(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("act", ["none", "tanh", "sigmoid"])
def test_low_rank_is_a_product_through_the_bottleneck(act):
    layer, x = LowRank(6, 2, 4, act=act), torch.randn(3, 6)
    z = x @ layer.down.weight.T
    want = {"none": z, "tanh": z.tanh(), "sigmoid": z.sigmoid()}[
        act
    ] @ layer.up.weight.T + layer.up.bias
    torch.testing.assert_close(layer(x), want)


def test_block_diagonal_is_a_matrix_of_blocks():
    layer, x = BlockDiagonal(6, 2), torch.randn(2, 3, 6)
    torch.nn.init.normal_(layer.bias)
    matrix = torch.block_diag(*layer.weight)
    torch.testing.assert_close(layer(x), x @ matrix + layer.bias.flatten())


def test_block_diagonal_without_a_bias():
    layer, x = BlockDiagonal(6, 2, bias=False), torch.randn(2, 3, 6)
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    torch.testing.assert_close(layer(x), x @ torch.block_diag(*layer.weight))


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_head_norm_has_a_weight_for_every_channel(norm):
    layer, o = HeadNorm(2, 4, norm=norm, eps=0.1), torch.randn(3, 2, 4)
    assert layer.weight.eq(1).all()
    torch.nn.init.normal_(layer.weight)
    torch.testing.assert_close(layer(o), head_norm(o, norm, 0.1).flatten(-2) * layer.weight)


@pytest.mark.unchecked
@pytest.mark.parametrize("layer", [partial(GatedOut, 6), HeadNorm])
def test_a_layer_norm_of_one_channel_is_refused(layer):
    with pytest.raises(ArgumentError, match=r"norm='layer' must have at least 2 .* got d_value=1"):
        layer(2, 1, norm="layer")


def test_normalised_keys_have_length_one_and_a_slope_at_zero():
    x = torch.randn(5, 4)
    torch.testing.assert_close(l2_normalise(x).norm(dim=-1), torch.ones(5), atol=1e-5, rtol=0)
    zero = torch.zeros(4, requires_grad=True)
    l2_normalise(zero).sum().backward()
    assert zero.grad.isfinite().all()


def test_sums_of_one_and_zeros_that_stay_zeros():
    x = torch.rand(5, 4)
    torch.testing.assert_close(sum_normalise(x), x / x.sum(-1, keepdim=True), rtol=1e-5, atol=0)
    assert not sum_normalise(torch.zeros(3)).any()


def test_feature_maps():
    x = torch.randn(5, 4)
    for kind in ("elu", "relu", "exp", "softmax"):
        assert (feature_map(kind, x) >= 0).all()
    torch.testing.assert_close(feature_map("softmax", x).sum(-1), torch.ones(5))
    assert feature_map("identity", x) is x


def test_elu_features_stay_positive_far_below_zero():
    below, above = torch.tensor([-80.0, -20.0, 0.0]), torch.tensor([3.0, 1e4])
    x = torch.cat([below, above]).requires_grad_()
    y = feature_map("elu", x)
    exact = {"rtol": 1e-6, "atol": 0}
    torch.testing.assert_close(y, torch.cat([below.exp(), above + 1]), **exact)
    (slope,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(slope, torch.cat([below.exp(), torch.ones(2)]), **exact)


@pytest.mark.unchecked
def test_an_unknown_feature_map():
    with pytest.raises(UnknownNameError, match="feature_map kind named 'cosine'"):
        feature_map("cosine", torch.zeros(2))


def test_gradients_of_their_own_are_those_of_the_definition():
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    scale = torch.randn(4, 1, dtype=torch.float64, requires_grad=True)

    def scaled(x, scale):
        return l2_normalise(x, scale=scale)

    torch.testing.assert_close(scaled(x, scale), l2_normalise(x.detach()) * scale)
    for function, given in (
        (l2_normalise, (x,)),
        (scaled, (x, scale)),
        (partial(feature_map, "elu"), (x,)),
    ):
        assert torch.autograd.gradcheck(function, given)
        assert torch.autograd.gradgradcheck(function, given)
    ends = torch.tensor([-800.0, -20.0, 0.0, 3.0], dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(feature_map("elu", ends).sum(), ends)
    expected = torch.tensor([0.0, -20.0, 0.0, 0.0], dtype=torch.float64).exp()
    expected[0] = 0
    torch.testing.assert_close(grad, expected, rtol=1e-15, atol=0)
