"""Gated DeltaNet against transformers' Qwen3-Next layer, golden numbers, its start and errors."""

import inspect
import sys
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import kstest

from linrnn.errors import ArgumentError
from linrnn.mixers import DeltaNet, GatedDeltaNet
from linrnn.ops import delta_scan
from linrnn.testing import check_property


def published(layer, monkeypatch):
    """The layer of transformers with the same weights, and a weight of its norm."""
    monkeypatch.setitem(sys.modules, "fla", None)  # whose kernels it would take
    module = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    for name in ("torch_chunk_gated_delta_rule", "causal_conv1d_fn"):  # no kernel of a GPU
        monkeypatch.setattr(module, name, inspect.unwrap(getattr(module, name)))
    D, H, G, K, V = layer.d_model, layer.n_heads, layer.key_heads, layer.d_key, layer.d_value
    config = module.Qwen3NextConfig(
        hidden_size=D,
        num_hidden_layers=1,
        linear_num_value_heads=H,
        linear_num_key_heads=G,
        linear_key_head_dim=K,
        linear_value_head_dim=V,
        linear_conv_kernel_dim=layer.d_conv,
        rms_norm_eps=layer.norm_eps,
        layer_types=["linear_attention"],
    )
    theirs, each = module.Qwen3NextGatedDeltaNet(config, 0), H // G
    rows = layer.qkv.heads.proj.weight.split([G * K, G * K, H * V])
    parts = [w.unflatten(0, (G, -1)) for w in (*rows, layer.out.gate_proj.weight)]
    rates = [w.weight.unflatten(0, (G, each)) for w in (layer.beta_proj, layer.decay.proj)]
    with torch.no_grad():
        theirs.in_proj_qkvz.weight.copy_(torch.cat(parts, 1).flatten(0, 1))
        theirs.in_proj_ba.weight.copy_(torch.cat(rates, 1).flatten(0, 1))
        theirs.conv1d.weight.copy_(layer.qkv.conv1d.weight[:, None])
        theirs.A_log.copy_(layer.decay.A_log)
        theirs.dt_bias.copy_(layer.decay.dt_bias)
        theirs.norm.weight.uniform_(0.5, 2)
        theirs.out_proj.weight.copy_(layer.out.out_proj.weight / theirs.norm.weight.repeat(H))
    return theirs


@pytest.mark.parametrize("key_heads", [1, 2])
def test_equals_the_layer_of_transformers_with_gradients(key_heads, monkeypatch):
    torch.manual_seed(0)
    layer = GatedDeltaNet(8, n_heads=2, key_heads=key_heads, norm_eps=1e-6)
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(2 if p.ndim > 1 else 1)
    x = torch.randn(2, 70, 8, requires_grad=True)
    theirs = published(layer, monkeypatch)(x)
    y, _ = layer(x)
    torch.testing.assert_close(y, theirs, rtol=1e-4, atol=1e-5)
    grads = [torch.autograd.grad(z.square().sum(), x)[0] for z in (y, theirs)]
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-4)


def test_golden_numbers():
    one, half = torch.ones(1, 3, 1, 1), torch.full((1, 3, 1), 0.5)
    assert delta_scan(one, one, one, half, half.log())[0].flatten().tolist() == [
        0.5,
        0.625,
        0.65625,
    ]


def test_without_forgetting_it_is_delta_net():
    layer, plain = GatedDeltaNet(6), DeltaNet(6, d_key=5, d_value=10, gate=True)
    with torch.no_grad():
        layer.decay.A_log.fill_(-100)
    plain.load_state_dict(layer.state_dict(), strict=False)
    x = torch.randn(2, 30, 6)
    torch.testing.assert_close(layer(x)[0], plain(x)[0])


def test_rates_start_as_published():
    torch.manual_seed(0)
    layer = GatedDeltaNet(8, n_heads=2048, d_key=1)
    assert (
        kstest((layer.decay.A_log.detach().double().exp() - 0.01) / 15.99, "uniform").pvalue > 0.01
    )
    dt = F.softplus(layer.decay.dt_bias.detach().double())
    assert kstest(dt.log() / torch.tensor(100.0).log() + 1.5, "uniform").pvalue > 0.01


def test_steps_start_at_one_as_in_qwen3_next():
    assert torch.equal(GatedDeltaNet(8, n_heads=2, dt_start="one").decay.dt_bias, torch.ones(2))


def test_a_weight_of_the_norm_is_that_of_the_last_map():
    torch.manual_seed(0)
    layer = GatedDeltaNet(8, n_heads=2, norm_weight=True, dtype=torch.float64)
    plain = GatedDeltaNet(8, n_heads=2, dtype=torch.float64)
    with torch.no_grad():
        weight = layer.out.norm_weight.uniform_(0.5, 2)
        plain.load_state_dict(layer.state_dict(), strict=False)
        plain.out.out_proj.weight.mul_(weight.repeat(2))
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0], plain(x)[0])
    layer.reset_parameters()
    assert (layer.out.norm_weight == 1).all()


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"gate": "sigmoid", "conv_bias": True, "norm_weight": True},
        {"gate": "none", "d_conv": None, "dt_start": "one"},
    ],
    ids=["sigmoid", "neither"],
)
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(GatedDeltaNet, **options))


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(ArgumentError, match=r"key_heads must divide the n_heads of 4, got 3"):
        GatedDeltaNet(8, n_heads=4, key_heads=3)
    with pytest.raises(ArgumentError, match=r"GatedDeltaNet: beta_max .* got 3"):
        GatedDeltaNet(8, beta_max=3)
