"""Attention against the definition, PyTorch's kernel and a transformer's own layer."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import ArgumentError
from linrnn.mixers import Attention
from linrnn.nn.rotary import rotate
from linrnn.testing import BrokenPropertyError, check_property


def transcription(layer, x):
    """Scores, softmax and sums one query at a time, rotations as complex numbers, in float64."""
    B, T, _ = x.shape
    H, K = layer.n_heads, layer.d_head
    R = layer.d_rotary
    speed = layer.base ** -(torch.arange(R // 2, dtype=torch.float64) / max(R // 2, 1))
    turn = torch.exp(1j * torch.arange(T)[:, None] * speed)  # (T, R/2)
    y = torch.zeros(B, T, H * K, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            rows, shared = (slice(i * K, (i + 1) * K) for i in (h, h * layer.n_kv_heads // H))
            q = x[b] @ layer.q_proj.weight[rows].T
            k, v = (x[b] @ p.weight[shared].T for p in (layer.k_proj, layer.v_proj))
            turned = (torch.complex(z[:, 0:R:2], z[:, 1:R:2]) * turn for z in (q, k))
            q, k = (
                torch.cat([torch.view_as_real(c).flatten(1), z[:, R:]], 1)
                for c, z in zip(turned, (q, k), strict=True)
            )
            for t in range(T):
                first = 0 if layer.window is None else max(0, t + 1 - layer.window)
                score = (q[t] * k[first : t + 1]).sum(-1) / K**0.5
                y[b, t, rows] = torch.softmax(score, 0) @ v[first : t + 1]
    y = y @ layer.o_proj.weight.T
    return y if layer.o_proj.bias is None else y + layer.o_proj.bias


SHARED = {"n_heads": 4, "n_kv_heads": 2, "d_rotary": 2, "out_bias": True, "window": 5}


@torch.no_grad()
@pytest.mark.parametrize("options", [{"n_heads": 2}, SHARED, {**SHARED, "d_rotary": 0}], ids=str)
def test_forward_equals_a_transcription(options):
    torch.manual_seed(0)
    layer = Attention(6, d_head=4, base=100.0, dtype=torch.float64, **options)
    if layer.out_bias:
        layer.o_proj.bias.normal_()
    x = torch.randn(2, 15, 6, dtype=torch.float64)
    y, state = layer(x)
    torch.testing.assert_close(y, transcription(layer, x), rtol=1e-12, atol=1e-12)
    ys, state = [], layer.init_state(2)
    for x_t in x.unbind(1):
        y_t, state = layer.step(x_t, state)
        ys.append(y_t)
    torch.testing.assert_close(torch.stack(ys, 1), y, rtol=1e-12, atol=1e-12)


def test_forward_and_gradients_equal_torch():
    torch.manual_seed(0)
    layer = Attention(8, n_heads=2, bias=True, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.5)
    x = torch.randn(2, 9, 8, dtype=torch.float64, requires_grad=True)
    q, k, v = (
        p(x).unflatten(-1, (2, 8)).transpose(1, 2)
        for p in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    q, k = (rotate(z.transpose(1, 2), torch.arange(9)[None]).transpose(1, 2) for z in (q, k))
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    expected = layer.o_proj(o.transpose(1, 2).flatten(2))
    y = layer(x)[0]
    torch.testing.assert_close(y, expected)
    sources = [x, *layer.parameters()]
    got, wanted = (torch.autograd.grad(z.square().sum(), sources) for z in (y, expected))
    torch.testing.assert_close(got, wanted)


@torch.no_grad()
def test_equals_llama_with_permuted_weights():
    """Llama pairs channels i and i + d_head/2; ours are neighbours."""
    transformers = pytest.importorskip("transformers")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=12, num_attention_heads=3, num_key_value_heads=3, head_dim=8
    )
    config._attn_implementation = "eager"
    theirs = llama.LlamaAttention(config, 0).eval()
    ours = Attention(12, n_heads=3, d_head=8)
    weights = theirs.state_dict()
    for name in ("q_proj.weight", "k_proj.weight"):
        heads = weights[name].view(3, 2, 4, 12)  # head, half, pair
        weights[name] = heads.transpose(1, 2).reshape(24, 12)
    ours.load_state_dict(weights)
    x = torch.randn(2, 20, 12)
    table = llama.LlamaRotaryEmbedding(config)(x, torch.arange(20)[None])
    mask = torch.full((20, 20), float("-inf")).triu(1)[None, None]
    expected, _ = theirs(x, table, mask)
    torch.testing.assert_close(ours(x)[0], expected, rtol=1e-4, atol=1e-5)


def test_only_differences_of_positions_matter():
    torch.manual_seed(0)
    layer = Attention(6, dtype=torch.float64)
    x = torch.randn(2, 12, 6, dtype=torch.float64)
    late = layer.init_state(2) | {"position": torch.tensor([0, 70_000])}
    torch.testing.assert_close(layer(x, late)[0], layer(x)[0], rtol=1e-9, atol=1e-9)


def test_heads_and_their_width_follow_the_model_width():
    assert (Attention(6).n_heads, Attention(6).d_head) == (1, 8)
    assert (Attention(5).n_heads, Attention(5).d_head) == (1, 8)
    assert (Attention(256).n_heads, Attention(256).d_head) == (4, 64)
    assert (Attention(200).n_heads, Attention(200).d_head) == (3, 72)


def test_initial_weights_are_glorot_uniform():
    torch.manual_seed(0)
    layer = Attention(64, d_head=128, bias=True)
    for linear in (layer.q_proj, layer.k_proj, layer.v_proj, layer.o_proj):
        bound = (6 / (64 + 128)) ** 0.5
        assert linear.weight.abs().max() <= bound
        assert linear.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.03)
        assert not linear.bias.any()


@pytest.mark.parametrize("law", ["constant_memory", "reset_and_packing", "forms_agree"])
@pytest.mark.parametrize("options", [{}, {"n_heads": 2, "n_kv_heads": 1, "d_rotary": 4}], ids=str)
def test_windowed_attention_keeps_the_laws(law, options):
    check_property(law, partial(Attention, window=4, **options))


def test_shared_keys_make_a_smaller_state():
    state = Attention(8, n_heads=4, d_head=2, n_kv_heads=1, window=3).init_state(2)
    assert state["k"].shape == state["v"].shape == (2, 2, 1, 2)


def test_initial_weights_of_griffin():
    torch.manual_seed(0)
    layer = Attention(100, n_heads=2, d_head=200, init="lecun", out_bias=True)
    assert layer.q_proj.weight.std().item() == pytest.approx(0.1, rel=0.03)
    assert layer.o_proj.weight.std().item() == pytest.approx(0.05, rel=0.03)
    assert not layer.o_proj.bias.any()
    assert layer.q_proj.bias is None


class RemembersTooMuch(Attention):
    """Its state after a reset still shows what came before."""

    def forward(self, x, state=None, *, reset=None):
        y, last = super().forward(x, state, reset=reset)
        return y, last | {"position": torch.full_like(last["position"], last["k"].shape[1])}


def test_growing_state_that_ignores_a_reset_is_caught():
    with pytest.raises(BrokenPropertyError, match="what follows the last one"):
        check_property("reset_and_packing", RemembersTooMuch)


BAD = [
    ({"n_heads": 0}, "Attention: n_heads must be an integer of at least 1, got 0"),
    ({"d_head": 0}, "Attention: d_head must be an integer of at least 1, got 0"),
    ({"d_head": 3}, "Attention: d_rotary must be even, and is d_head by default, got 3"),
    ({"d_head": 4, "d_rotary": 6}, "d_rotary must be an integer from 0 to d_head=4, got 6"),
    ({"n_heads": 4, "n_kv_heads": 3}, "Attention: n_kv_heads must divide n_heads=4, got 3"),
    ({"n_kv_heads": 0}, "Attention: n_kv_heads must be an integer of at least 1, got 0"),
    ({"window": 0}, "Attention: window must be an integer of at least 1, got 0"),
    ({"base": 0.0}, "Attention: base must be positive and finite, got 0.0"),
    ({"base": float("inf")}, "got inf"),
]


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"qk_norm": "head", "gate": "sigmoid", "d_rotary": 2},
        {"n_heads": 2, "n_kv_heads": 1, "qk_norm": "all", "soft_cap": 2.0},
        {"soft_cap": 2.0, "window": 5},
    ],
    ids=["qwen3-next", "capped", "capped window"],
)
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(Attention, **options))


def test_a_high_cap_changes_nothing_and_a_low_one_averages():
    layer, x = Attention(8, dtype=torch.float64), torch.randn(1, 9, 8, dtype=torch.float64)
    capped, flat = (Attention(8, soft_cap=cap, dtype=torch.float64) for cap in (1e6, 1e-9))
    for other in (capped, flat):
        other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(capped(x)[0], layer(x)[0])
    means = layer.v_proj(x).cumsum(1) / torch.arange(1, 10)[:, None]
    torch.testing.assert_close(flat(x)[0], layer.o_proj(means))


@pytest.mark.unchecked
def test_caps_are_of_the_plain_window():
    with pytest.raises(ArgumentError, match=r"soft_cap must be None with evict='tova', got 2\.0"):
        Attention(8, soft_cap=2.0, window=4, evict="tova")


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(ArgumentError, match=message):
        Attention(4, **options)
