"""Linear attention against its masked product, an independent loop, and numbers by hand."""

from functools import partial

import pytest
import torch

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import LinearAttention
from linrnn.nn import feature_map
from linrnn.testing import check_property


def make(d_model=6, **options):
    torch.manual_seed(0)
    return LinearAttention(d_model, dtype=torch.float64, **options)


def masked(layer, x):
    """``tril(phi(Q) phi(K)^T) V`` of every head, and the sums of its rows."""
    q, k, v = (z.transpose(1, 2) for z in layer.heads(x))
    q, k = (feature_map(layer.feature_map, z) for z in (q, k))
    weight = (q @ k.mT).tril()
    return (weight @ v).transpose(1, 2), weight.sum(-1).transpose(1, 2)[..., None]


@pytest.mark.parametrize("division", ["add", "clamp", "norm", "none"])
def test_equals_the_masked_product(division):
    layer = make(n_heads=2, d_key=4, d_value=5, division=division, feature_map="relu")
    x = torch.randn(2, 150, 6, dtype=torch.float64)
    o, total = masked(layer, x)
    divisor = {
        "add": total + 1e-6,
        "clamp": total.clamp(min=1e-6),
        "norm": (o.square().mean(-1, keepdim=True) + 1e-6).sqrt(),
        "none": 1.0,
    }[division]
    expected = layer.out_proj((o / divisor).flatten(2))
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-10, atol=1e-12)


def test_equals_the_loop_of_another_library():
    naive = pytest.importorskip("fla.ops.linear_attn.naive")
    layer = LinearAttention(8, n_heads=2)
    x = torch.randn(2, 70, 8, requires_grad=True)
    q, k, v = layer.heads(x)
    o, (S, z) = naive.naive_recurrent_linear_attn(
        feature_map("elu", q), feature_map("elu", k), v, normalize=True, output_final_state=True
    )
    expected = layer.out_proj(o.flatten(2))
    first, state = layer(x[:, :30])
    rest, state = layer(x[:, 30:], state)
    y = torch.cat([first, rest], 1)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state["memory"][..., :-1], S, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state["memory"][..., -1], z[:, 0], rtol=1e-4, atol=1e-4)
    weight = torch.randn_like(y)
    wanted = [x, *layer.parameters()]
    grads, others = (torch.autograd.grad((out * weight).sum(), wanted) for out in (y, expected))
    for got, other in zip(grads, others, strict=True):
        torch.testing.assert_close(got, other, rtol=1e-3, atol=1e-4)


def test_by_hand():
    layer = make(1, n_heads=1, bias=False, eps=0.0)
    with torch.no_grad():
        layer.heads.proj.weight.copy_(torch.tensor([[0.0], [0.0], [1.0]]))  # phi(q) = phi(k) = 1
        layer.out_proj.weight.fill_(1)
    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64).view(1, 3, 1)
    torch.testing.assert_close(layer(x)[0].flatten(), x.new_tensor([1.0, 1.5, 2.0]))


def test_begins_as_torch_does():
    layer = LinearAttention(256)
    assert (layer.n_heads, layer.d_key, layer.d_value) == (4, 64, 64)
    for linear in (layer.heads.proj, layer.out_proj):
        for parameter in linear.parameters():
            assert parameter.abs().max().item() == pytest.approx(1 / 16, rel=0.02)


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"feature_map": "hedgehog"},
        {"feature_map": "t2r", "division": "norm"},
        {"feature_map": "product", "division": "none"},
    ],
    ids=["hedgehog", "t2r", "product"],
)
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(LinearAttention, **options))


@pytest.mark.unchecked
def test_bad_arguments():
    with pytest.raises(ArgumentError, match=r"signed features of feature_map='product', got 'add'"):
        LinearAttention(6, feature_map="product")
    with pytest.raises(UnknownNameError, match="LinearAttention feature_map named 'cosine'"):
        LinearAttention(6, feature_map="cosine")
    with pytest.raises(UnknownNameError, match="LinearAttention division named 'abs'"):
        LinearAttention(6, division="abs")
    with pytest.raises(ArgumentError, match=r"division must be 'norm' or 'none' .* got 'add'"):
        LinearAttention(6, feature_map="identity")
    with pytest.raises(ArgumentError, match=r"eps must be at least 0 and finite, got -1"):
        LinearAttention(6, eps=-1.0)
    with pytest.raises(ArgumentError, match=r"LinearAttention: d_value .* got 0"):
        LinearAttention(6, d_value=0)
