"""KDA against transformers' Kimi Linear layer and the plain loop of fla, its start and errors."""

import inspect
import sys
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from fla_naive import naive
from scipy.stats import kstest

from linrnn.errors import ArgumentError
from linrnn.mixers import KDA
from linrnn.ops import delta_scan
from linrnn.testing import check_property


def published(layer, monkeypatch):
    """The layer of transformers with the same weights, and a weight of its norm."""
    monkeypatch.setitem(sys.modules, "fla", None)  # whose kernels it would take
    module = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    for name in ("chunk_kimi_delta_attention", "causal_conv1d_fn"):  # no kernel of a GPU
        monkeypatch.setattr(module, name, inspect.unwrap(getattr(module, name)))
    H, K = layer.n_heads, layer.d_key
    config = module.KimiLinearConfig(
        hidden_size=layer.d_model,
        num_hidden_layers=1,
        linear_num_heads=H,
        linear_head_dim=K,
        linear_conv_kernel_dim=layer.d_conv,
        rms_norm_eps=layer.norm_eps,
        layer_types=["linear_attention"],
    )
    theirs = module.KimiLinearDeltaAttention(config, 0)
    q, k, v = layer.qkv.heads.proj.weight.chunk(3)
    scale = torch.rand(K) + 0.5
    theirs.load_state_dict(
        {
            "q_proj.weight": q,
            "k_proj.weight": k,
            "v_proj.weight": v,
            "conv1d.weight": layer.qkv.conv1d.weight[:, None],
            "forget_gate.f_a_proj.weight": layer.decay.proj.down.weight,
            "forget_gate.f_b_proj.weight": layer.decay.proj.up.weight,
            "forget_gate.dt_bias": layer.decay.dt_bias,
            "forget_gate.A_log": layer.decay.A_log.view(1, 1, H, 1),
            "b_proj.weight": layer.beta_proj.weight,
            "g_a_proj.weight": layer.out.gate_proj.down.weight,
            "g_b_proj.weight": layer.out.gate_proj.up.weight,
            "o_norm.weight": scale,
            "o_proj.weight": layer.out.out_proj.weight / scale.repeat(H),
        }
    )
    return theirs


def test_equals_the_layer_of_transformers_with_gradients(monkeypatch):
    torch.manual_seed(0)
    layer = KDA(8, n_heads=2)
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(2 if p.ndim > 1 else 1)
    x = torch.randn(2, 70, 8, requires_grad=True)
    theirs = published(layer, monkeypatch)(x)
    y, _ = layer(x)
    torch.testing.assert_close(y, theirs, rtol=1e-4, atol=1e-5)
    grads = [torch.autograd.grad(z.square().sum(), x)[0] for z in (y, theirs)]
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-4)


def test_the_rule_equals_the_loop_of_fla_where_decays_are_strong():
    loop = naive("kda/naive.py")
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 40, 3, 8)
    k, g = F.normalize(k, dim=-1), -torch.randn(2, 40, 3, 8).mul(2).exp()
    beta, start = 2 * torch.rand(2, 40, 3), torch.randn(2, 3, 8, 8)
    theirs, last = loop.naive_recurrent_kda(q, k, v, g, beta, 1.0, start, True)
    o, final = delta_scan(q, k, v, beta, g, start)
    torch.testing.assert_close(o, theirs, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(final, last, rtol=1e-4, atol=2e-5)


def test_rates_start_as_published():
    torch.manual_seed(0)
    layer = KDA(8, n_heads=2048, d_key=1)
    assert kstest((layer.decay.A_log.detach().double().exp() - 1) / 15, "uniform").pvalue > 0.01
    dt = F.softplus(layer.decay.dt_bias.detach().double())
    assert kstest(dt.log() / torch.tensor(100.0).log() + 1.5, "uniform").pvalue > 0.01


def test_with_a_bound_decays_start_and_stay_above_it():
    layer = KDA(8, n_heads=2, lower_bound=-5.0)
    assert torch.equal(layer.decay.A_log, torch.zeros(2))
    g = layer._log_decay(1e4 * torch.randn(2, 30, 8))
    assert ((g >= -5) & (g <= 0)).all()


def test_a_weight_of_the_norm_is_that_of_the_last_map():
    torch.manual_seed(0)
    layer = KDA(8, n_heads=2, norm_weight=True, dtype=torch.float64)
    plain = KDA(8, n_heads=2, dtype=torch.float64)
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
        {"lower_bound": -5.0, "decay_map": "full", "gate_map": "full", "conv_bias": True},
        {"n_heads": 2, "key_heads": 1, "gate_bias": True, "d_conv": None, "norm_weight": True},
    ],
    ids=["bounded", "shared keys"],
)
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(KDA, **options))


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(ArgumentError, match="KDA: lower_bound must be below 0 and finite, or None"):
        KDA(8, lower_bound=5.0)
    with pytest.raises(ArgumentError, match="key_heads must divide the n_heads of 4, got 3"):
        KDA(8, n_heads=4, key_heads=3)
    with pytest.raises(ArgumentError, match="conv_bias must be False without a convolution"):
        KDA(8, d_conv=None, conv_bias=True)
    with pytest.raises(ArgumentError, match=r"KDA: beta_max .* got -1"):
        KDA(8, beta_max=-1)
    with pytest.raises(ArgumentError, match="d_value"):
        KDA(8, d_value=0)
