"""Forgetting attention against golden numbers, a plain loop, fla's function and its limit."""

import pytest
import torch
import torch.nn.functional as F
from attention_loops import holds_however_it_is_cut, stays_in_its_sequence
from fixture_f import DECAY, K, Q, V, near
from fla_naive import naive

from linrnn.errors import LinrnnError
from linrnn.mixers import Attention, ForgettingAttention
from linrnn.ops.attention import attend
from linrnn.ops.attention.forgetting import forgotten

GOLDEN = (1, 2, 2.557650, -0.336475, 0.643730, 0.300011, 0.981918, 0.884193)
PRO = {"shift": True, "qk_norm": True, "gate": "sigmoid", "out_norm": True}


def test_gives_the_golden_numbers():
    packed, place = torch.cat([K, DECAY.log()[..., None]], -1), torch.arange(4)[None]
    near(attend("forgetting", Q, packed, V, place, window=None, whole=False), *GOLDEN)


def lively(**options):
    torch.manual_seed(0)
    layer = ForgettingAttention(6, d_head=4, dtype=torch.float64, **options)
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_(std=0.5)
    return layer


def transcription(layer, x):
    """One query at a time; sums of the gates are added up from the query back."""
    B, T, _ = x.shape
    H, K, group = layer.n_heads, layer.d_head, layer.n_heads // layer.n_kv_heads
    q, k, v = layer.heads(x)
    if layer.shift:
        share = (x @ layer.shift_proj.weight.T).sigmoid()[..., None].chunk(2, 2)
        before = [F.pad(z[:, :-1], (0, 0, 0, 0, 1, 0)) for z in (k, v)]
        k, v = (a * b + (1 - a) * z for a, b, z in zip(share, before, (k, v), strict=True))
    if layer.qk_norm:
        q, k = (
            norm.weight.view(-1, K) * z * (z.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
            for norm, z in ((layer.q_norm, q), (layer.k_norm, k))
        )
    gates = (x @ layer.f_proj.weight.T + layer.f_proj.bias).sigmoid()
    o = torch.zeros(B, T, H, K, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            for t in range(T):
                first = 0 if layer.window is None else max(0, t + 1 - layer.window)
                left, weights = 1.0, []
                for s in range(t, first - 1, -1):
                    weights.append(left * torch.exp(q[b, t, h] @ k[b, s, h // group] / K**0.5))
                    left = left * gates[b, s, h]
                weights = torch.stack(weights[::-1])
                o[b, t, h] = weights / weights.sum() @ v[b, first : t + 1, h // group]
    if layer.out_norm:
        o = o * (o.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    o = o.flatten(2)
    if layer.gate == "sigmoid":
        o = o * (x @ layer.out.gate_proj.weight.T).sigmoid()
    return o @ layer.out.out_proj.weight.T


CASES = [
    {"n_heads": 2},
    {"n_heads": 4, "n_kv_heads": 2, "window": 5},
    {"n_heads": 4, "n_kv_heads": 2, **PRO},
]


@torch.no_grad()
@pytest.mark.parametrize("options", CASES, ids=str)
def test_forward_equals_a_transcription(options):
    layer = lively(**options)
    x = torch.randn(2, 15, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0], transcription(layer, x), rtol=1e-12, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("options", CASES, ids=str)
def test_chunks_splits_and_steps_agree(options):
    holds_however_it_is_cut(lively(**options))


@torch.no_grad()
def test_what_is_no_number_stays_in_its_sequence():
    stays_in_its_sequence(lively(n_heads=2))
    stays_in_its_sequence(lively(n_heads=4, n_kv_heads=2, window=5))


@pytest.mark.parametrize("groups", [1, 2])
def test_equals_the_function_of_fla(groups):
    q = torch.randn(2, 50, 2 * groups, 8)
    k, v = torch.randn(2, 2, 50, 2, 8)
    g = F.logsigmoid(torch.randn(2, 50, 2 * groups))
    packed = torch.cat([k, g.unflatten(2, (2, -1))], -1)
    place = torch.arange(50).expand(2, -1)
    y = attend("forgetting", q, packed, v, place, window=None, whole=False)
    expected = naive("forgetting_attn/naive.py").naive_forgetting_attn(q, k, v, g)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_without_forgetting_it_is_softmax_attention():
    layer = lively(n_heads=2, d_rotary=4)
    layer.f_proj.weight.zero_()
    layer.f_proj.bias.fill_(1e3)
    plain = Attention(6, n_heads=2, d_head=4, dtype=torch.float64)
    parts = (plain.q_proj, plain.k_proj, plain.v_proj)
    for part, rows in zip(parts, layer.heads.rows(), strict=True):
        part.weight.copy_(rows)
    plain.o_proj.weight.copy_(layer.out.out_proj.weight)
    x = torch.randn(2, 20, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0], plain(x)[0], rtol=1e-12, atol=1e-12)


def test_decays_of_near_steps_are_exact_after_many_steps():
    g = -torch.rand(1, 40_000, 1) * 5
    decays = forgotten(g, 100)[0, 0, -1]
    exact = -g[0, :, 0].double().flip(0).cumsum(0).flip(0)
    exact = -F.pad(exact[1:], (0, 1))
    # in units of float32's roundings: sums of 100,000 have roundings of 0.004 otherwise
    torch.testing.assert_close(decays[-200:].double(), exact[-200:], rtol=1e-6, atol=1e-5)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_heads": 4, "n_kv_heads": 3}, "ForgettingAttention: n_kv_heads must divide n_heads=4"),
        ({"d_rotary": 3}, "ForgettingAttention: d_rotary must be even"),
        ({"norm_eps": 0.0}, "ForgettingAttention: norm_eps must be positive"),
        ({"gate": "silu"}, "no ForgettingAttention gate named .silu."),
        ({"window": 0}, "ForgettingAttention: window must be an integer of at least 1"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        ForgettingAttention(8, **options)


@pytest.mark.unchecked
def test_a_state_has_as_many_gates_as_keys():
    layer = ForgettingAttention(8)
    _, state = layer(torch.randn(1, 3, 8))
    with pytest.raises(LinrnnError, match=r"state\['k'\] and state\['g'\] must hold the same"):
        layer(torch.randn(1, 3, 8), {**state, "g": state["g"][:, 1:]})
