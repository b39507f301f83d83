"""DeltaNet against the plain rule of fla in both kinds, golden numbers, and its errors."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from fla_naive import naive

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import DeltaNet
from linrnn.testing import check_property

KINDS = [
    {},
    {"gate": True, "beta_max": 2.0, "d_value": 5},
    {"kind": "sum"},
    {"kind": "sum", "feature_map": "dpfp", "nu": 2, "d_value": 5},
]


def vectors(layer, x):
    """q, k, v (B, H, T, channels) and beta (B, H, T) of the equations, spelled out."""
    H, K, V = layer.n_heads, layer.d_key, layer.d_value
    if layer.kind == "l2":
        z = F.pad(F.linear(x, layer.qkv.heads.proj.weight).mT, (layer.d_conv - 1, 0))
        taps = layer.qkv.conv1d.weight[:, None]
        z = F.silu(F.conv1d(z, taps, groups=len(taps))).mT
        beta = F.linear(x, layer.beta_proj.weight)
    else:
        z, beta = F.linear(x, layer.heads.proj.weight).split([H * (2 * K + V), H], -1)
    parts = z.split([H * K, H * K, H * V], -1)
    q, k, v = (part.unflatten(-1, (H, -1)).transpose(1, 2) for part in parts)
    return q, k, v, layer.beta_max * beta.sigmoid().mT


def dpfp_of_two(x):
    """As printed, for nu = 2: channel i times the ones one and two before it, in a circle."""
    r = torch.cat([x, -x], -1).clamp(min=0)
    return torch.stack([r[..., i] * r[..., i - n] for n in (1, 2) for i in range(r.shape[-1])], -1)


def published(layer, x):
    """The layer with the rule of fla."""
    loop = naive("delta_rule/naive.py")
    H, K, V = layer.n_heads, layer.d_key, layer.d_value
    q, k, v, beta = vectors(layer, x)
    if layer.kind == "l2":
        q, k = (y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
    elif layer.feature_map == "elu":
        q, k = (y / (y.sum(-1, keepdim=True) + 1e-6) for y in (F.elu(q) + 1, F.elu(k) + 1))
    else:
        q, k = (dpfp_of_two(y) for y in (q, k))
        q, k = (y / (y.sum(-1, keepdim=True) + 1e-6) for y in (q, k))
    o, memory = loop.delta_rule_recurrence(q, k, v, beta)
    o = o.transpose(1, 2) * (q.shape[-1] / K) ** 0.5  # they divide by the root of the features
    if layer.kind == "l2":
        o = o / (o.square().mean(-1, keepdim=True) + layer.norm_eps).sqrt()
    o = o.reshape(*x.shape[:2], H * V)
    if layer.gate:
        o = o * F.silu(layer.out.gate_proj(x))
    return layer.out.out_proj(o), memory


@pytest.mark.parametrize("options", KINDS)
def test_equals_the_rule_of_fla_with_gradients(options):
    torch.manual_seed(0)
    layer = DeltaNet(6, n_heads=2, **options)
    x = torch.randn(2, 70, 6, requires_grad=True)
    theirs, memory = published(layer, x)
    y, state = layer(x)
    torch.testing.assert_close(y, theirs, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(state["memory"], memory, rtol=1e-4, atol=2e-5)
    wanted = [x, *layer.parameters()]
    ours, theirs = (torch.autograd.grad(z.square().sum(), wanted) for z in (y, theirs))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_golden_numbers():
    layer = DeltaNet(1, kind="sum", dtype=torch.float64)
    with torch.no_grad():
        layer.heads.proj.weight.copy_(torch.tensor([[0.3], [0.7], [1.0], [0.0]]))  # q, k, v, beta
        layer.out.out_proj.weight.fill_(1)
    y, _ = layer(torch.ones(1, 3, 1, dtype=torch.float64))
    assert y.flatten().tolist() == pytest.approx([0.5, 0.75, 0.875], rel=1e-5)


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"qk_activation": "elu", "qk_norm": "sum"},
        {"qk_activation": "identity", "d_conv": None, "beta": "largest"},
    ],
    ids=["elu", "identity"],
)
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(DeltaNet, **options))


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(UnknownNameError, match="kind"):
        DeltaNet(4, kind="max")
    with pytest.raises(ArgumentError, match=r"beta_max must be above 0 and at most 2, got 2.5"):
        DeltaNet(4, beta_max=2.5)
    with pytest.raises(ArgumentError, match=r"beta_max .* got 0"):
        DeltaNet(4, kind="sum", beta_max=0)
    with pytest.raises(ArgumentError, match=r"dpfp: nu must be from 1 to 2 d - 1 = 7, got 8"):
        DeltaNet(4, kind="sum", feature_map="dpfp", nu=8)
    with pytest.raises(ArgumentError, match="d_conv"):
        DeltaNet(4, d_conv=0)
