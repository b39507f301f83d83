"""GLA against its quadratic form in NumPy and a public loop; its decays and start."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from public_loops import naive

from linrnn.errors import LinrnnError
from linrnn.mixers import GLA
from linrnn.testing import check_property


def quadratic(layer, x):
    """Every pair of steps for itself: ``sum_c q_ic k_jc prod_{j < s <= i} alpha_sc``."""
    H, K, V, (time, _) = layer.n_heads, layer.d_key, layer.d_value, x.shape
    weights = {n: p.detach().numpy() for n, p in layer.named_parameters()}
    q, k, v = np.split(x @ weights["heads.proj.weight"].T, [H * K, 2 * H * K], -1)
    z = x @ weights["decay.down.weight"].T @ weights["decay.up.weight"].T + weights["decay.up.bias"]
    alpha = (1 / (1 + np.exp(-z))) ** (1 / layer.tau)
    q, k, alpha = (z.reshape(time, H, K) for z in (q, k, alpha))
    o = np.zeros((time, H, V))
    for i in range(time):
        for j in range(i + 1):
            kept = alpha[j + 1 : i + 1].prod(0)
            o[i] += (q[i] * k[j] * kept).sum(-1)[:, None] / K**0.5 * v.reshape(time, H, V)[j]
    o = o - (o.mean(-1, keepdims=True) if layer.norm == "layer" else 0)
    o = o / np.sqrt((o**2).mean(-1, keepdims=True) + layer.norm_eps)
    gate = x @ weights["out.gate_proj.weight"].T + weights["out.gate_proj.bias"]
    y = gate / (1 + np.exp(-gate)) * o.reshape(time, H * V)
    return y @ weights["out.out_proj.weight"].T


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_equals_the_quadratic_form_split_and_whole(norm):
    layer = GLA(6, n_heads=2, d_key=3, d_value=4, tau=2.0, norm=norm, dtype=torch.float64)
    x = torch.randn(1, 40, 6, dtype=torch.float64)
    y, _ = layer(x)
    np.testing.assert_allclose(y[0].detach().numpy(), quadratic(layer, x[0].numpy()), rtol=1e-8)
    first, state = layer(x[:, :17])
    second, _ = layer(x[:, 17:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), y, rtol=1e-9, atol=1e-12)


def test_equals_a_public_loop_gradients_too():
    """fla-core's, which computes in float32."""
    layer = GLA(8, n_heads=2, norm="rms", tau=2.0)
    x = torch.randn(2, 33, 8, requires_grad=True)
    q, k, v = layer.heads(x)
    g = F.logsigmoid(layer.decay(x)).unflatten(-1, (2, -1)) / 2
    o, memory = naive("gla/naive.py", "naive_recurrent_gla")(q, k, v, g, output_final_state=True)
    y, state = layer(x)
    expected = layer.out(o, x)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(state["memory"], memory, rtol=1e-4, atol=1e-6)
    sources = (x, *layer.parameters())
    weight = torch.randn_like(y)
    got, want = (torch.autograd.grad((z * weight).sum(), sources) for z in (y, expected))
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)


def test_starts_as_published():
    layer = GLA(256)
    assert (layer.n_heads, layer.d_key, layer.d_value) == (4, 32, 64)
    q, k, v = layer.heads.rows()
    for weight in (q, k, layer.decay.down.weight, layer.decay.up.weight):
        bound = 2**-2.5 * (6 / sum(weight.shape)) ** 0.5
        assert weight.abs().max().item() == pytest.approx(bound, rel=0.02)
    assert v.abs().max().item() == pytest.approx(1 / 16, rel=0.01)
    alpha = torch.sigmoid(layer.decay(torch.randn(100, 256))) ** (1 / 16)
    assert alpha.median().item() == pytest.approx(0.958, abs=0.003)


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"n_heads": 2, "n_kv_heads": 1, "d_conv": 3, "feature_map": "elu", "gate": "none"},
        {"d_conv": 3, "conv_bias": True, "gate": "sigmoid", "gate_bias": False},
    ],
    ids=["shared keys", "convolution"],
)
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(GLA, **options))


def test_heads_that_share_keys_and_values_share_a_memory():
    layer = GLA(8, n_heads=4, n_kv_heads=2)
    assert layer.init_state(3)["memory"].shape == (3, 2, 1, 2)


BAD = [
    ({"n_heads": 4, "n_kv_heads": 3}, "GLA: n_kv_heads must divide n_heads=4, got 3"),
    ({"conv_bias": True}, "GLA: conv_bias must be False without a convolution, got True"),
    ({"n_heads": 0}, "GLA: n_heads must be an integer of at least 1, got 0"),
    ({"tau": -1.0}, "GLA: tau must be positive and finite, got -1.0"),
    ({"norm_eps": 0}, "GLA: norm_eps must be positive and finite, got 0"),
    ({"gate_rank": 0}, "rank must be an integer of at least 1, got 0"),
    ({"norm": "batch"}, "no GatedOut norm named 'batch'"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        GLA(8, **options)
