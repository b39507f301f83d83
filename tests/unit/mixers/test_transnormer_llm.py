"""TransNormerLLM against its quadratic form in NumPy and the blocks of MiniMax; its decays."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import LinrnnError
from linrnn.mixers import TransNormerLLM
from linrnn.nn import head_norm
from linrnn.testing import check_property


def quadratic(layer, x, rates):
    """Every pair of steps for itself, its position as a sum of cosines."""
    H, d, (time, _) = layer.n_heads, layer.d_head, x.shape
    q, k, v, u = (x @ w.T for w in np.split(layer.heads.proj.weight.detach().numpy(), 4))
    q, k = (z / (1 + np.exp(-z)) for z in (q, k))
    q, k, v = (z.reshape(time, H, d) for z in (q, k, v))
    theta = np.zeros((H, d)) if layer.theta is None else layer.theta.detach().numpy()
    o = np.zeros((time, H, d))
    for t in range(time):
        for s in range(t + 1):
            score = (q[t] * k[s] * np.cos((t - s) * theta)).sum(-1) * np.exp(-rates * (t - s))
            o[t] += score[:, None] * v[s]
    o = o.reshape(time, H * d)
    y = u * o / np.sqrt((o**2).mean(-1, keepdims=True) + layer.norm_eps)
    return y @ layer.out_proj.weight.detach().numpy().T


PLACES = [
    ({}, np.array([0, 8 / 3, 16 / 3])),
    ({"layer": 1, "n_layers": 2, "lrpe": "always"}, np.array([0, 4 / 3, 8 / 3])),
    ({"layer": 3, "n_layers": 4, "decay": "released"}, 1e-5 * np.array([2**-4, 2**-8, 2**-2])),
]


@pytest.mark.parametrize(("options", "rates"), PLACES)
def test_equals_the_quadratic_form_split_and_whole(options, rates):
    layer = TransNormerLLM(6, n_heads=3, d_head=4, dtype=torch.float64, **options)
    if layer.theta is not None:
        torch.nn.init.normal_(layer.theta)
    x = torch.randn(1, 30, 6, dtype=torch.float64)
    expected = quadratic(layer, x[0].numpy(), rates)
    np.testing.assert_allclose(layer(x)[0][0].detach().numpy(), expected, rtol=1e-8, atol=1e-11)
    first, state = layer(x[:, :11])
    y = torch.cat([first, layer(x[:, 11:], state)[0]], 1)
    np.testing.assert_allclose(y[0].detach().numpy(), expected, rtol=1e-8, atol=1e-11)


def test_equals_the_blocks_of_transformers_gradients_too():
    """MiniMax has the released decays; what it does before and after differs and is ours here."""
    modeling = pytest.importorskip("transformers.models.minimax.modeling_minimax")
    layers = {"layer": 1, "n_layers": 3}
    ours = TransNormerLLM(8, n_heads=2, decay="released", lrpe="never", **layers)
    config = modeling.MiniMaxConfig(
        hidden_size=8, num_attention_heads=2, head_dim=4, num_hidden_layers=3, block_size=8
    )
    theirs = modeling.MiniMaxLightningAttention(config, 1)
    theirs.qkv_proj = theirs.act_fn = theirs.norm = theirs.out_proj = torch.nn.Identity()
    theirs.output_gate = torch.nn.Linear(24, 8)
    torch.nn.init.constant_(theirs.output_gate.bias, 1e9)  # a gate of 1
    x = torch.randn(2, 29, 8, requires_grad=True)
    q, k, v, u = ours.heads(x)
    o, memory = theirs(torch.cat([F.silu(q), F.silu(k), v], -1).flatten(2), None, None)
    expected = ours.out_proj(u.flatten(2) * head_norm(o, "rms", 1e-6))
    y, state = ours(x)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state["memory"], memory, rtol=1e-4, atol=1e-5)
    sources, weight = (x, *ours.parameters()), torch.randn_like(y)
    got, want = (torch.autograd.grad((z * weight).sum(), sources) for z in (y, expected))
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


def test_starts_as_published():
    layer = TransNormerLLM(256, init_std=0.02)
    assert (layer.n_heads, layer.d_head) == (2, 128)
    for weight in (layer.heads.proj.weight, layer.out_proj.weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.02)
    theta = layer.theta.flatten()
    assert theta[0].item() == 1
    assert theta[128].item() == pytest.approx(10_000 ** (-2 * 128 / 256))
    assert TransNormerLLM(256).heads.proj.weight.std().item() == pytest.approx(1 / 16, rel=0.02)


def test_only_the_first_layer_has_positions():
    assert TransNormerLLM(8, layer=1, n_layers=2).theta is None
    assert TransNormerLLM(8, layer=1, n_layers=2, lrpe="always").theta is not None
    assert "position" not in TransNormerLLM(8, lrpe="never").init_state(1)


def test_a_weight_of_the_norm_is_that_of_the_last_map():
    torch.manual_seed(0)
    layer = TransNormerLLM(8, n_heads=2, norm_weight=True, dtype=torch.float64)
    plain = TransNormerLLM(8, n_heads=2, dtype=torch.float64)
    with torch.no_grad():
        weight = layer.norm_scale.uniform_(0.5, 2)
        plain.load_state_dict(layer.state_dict(), strict=False)
        plain.out_proj.weight.mul_(weight)
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0], plain(x)[0])
    layer.reset_parameters()
    assert (layer.norm_scale == 1).all()


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"decay": "minimax", "lrpe": "never", "v_activation": "silu", "gate": "sigmoid"},
        {"norm_weight": True},
    ],
    ids=["minimax", "norm weight"],
)
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(TransNormerLLM, **options))


BAD = [
    ({"gate": "tanh"}, "no TransNormerLLM gate named 'tanh'"),
    ({"decay": "alibi"}, "no TransNormerLLM decay named 'alibi'"),
    ({"lrpe": "last"}, "no TransNormerLLM lrpe named 'last'"),
    ({"layer": 2}, "TransNormerLLM: layer must be an integer from 0 to n_layers-1=0, got 2"),
    ({"init_std": 0.0}, "TransNormerLLM: init_std must be positive and finite, got 0.0"),
    ({"d_head": 0}, "TransNormerLLM: d_head must be an integer of at least 1, got 0"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        TransNormerLLM(8, **options)
