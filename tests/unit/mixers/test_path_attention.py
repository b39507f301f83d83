"""PaTH attention against golden numbers, a plain loop, fla's function and its limit."""

import pytest
import torch
import torch.nn.functional as F
from attention_loops import holds_however_it_is_cut, stays_in_its_sequence
from fixture_f import BETA, K, Q, V, near
from fla_naive import naive

from linrnn.errors import LinrnnError
from linrnn.mixers import Attention, PathAttention
from linrnn.ops.attention import attend


def attended(q, k, v, w, beta, g=None):
    packed = [k, w * beta.sqrt()[..., None]] + ([] if g is None else [g[..., None]])
    place = torch.arange(q.shape[1]).expand(len(q), -1)
    return attend("path", q, torch.cat(packed, -1), v, place, window=None, whole=False)


def test_gives_the_golden_numbers():
    o = attended(Q, K, V, K, 1.5 * BETA)
    near(o, 1, 2, 2.491018, -0.236527, 0.667894, 0.357946, 0.793476, 0.849720)


def lively(**options):
    torch.manual_seed(0)
    layer = PathAttention(6, n_heads=2, d_head=4, rank=3, dtype=torch.float64, **options)
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_(std=0.5)
    return layer


def transcription(layer, x):
    """One step at a time: it reflects every key before it, then looks."""
    B, T, _ = x.shape
    H, K = layer.n_heads, layer.d_head
    q, k, v = layer.heads(x)
    if layer.qk_norm:
        q, k = (
            norm.weight.view(-1, K) * z * (z.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
            for norm, z in ((layer.q_norm, q), (layer.k_norm, k))
        )
    c = x @ layer.w_proj.down.weight.T @ layer.w_proj.up.weight.T
    taps = layer.conv1d.weight[:, None]
    c = F.silu(F.conv1d(F.pad(c.mT, (2, 0)), taps, groups=H * K).mT).unflatten(2, (H, K))
    w = c / (c.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    beta = 2 * (x @ layer.beta_proj.weight.T + layer.beta_proj.bias).sigmoid()
    g = torch.zeros(B, T, H, dtype=torch.float64)
    if layer.forget:
        g = F.logsigmoid(x @ layer.f_proj.weight.T + layer.f_proj.bias)
        g = g / K**0.5 if layer.scale_gates else g
    o = torch.zeros(B, T, H, K, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            keys, decays = torch.zeros(0, K, dtype=torch.float64), torch.zeros(0).double()
            for t in range(T):
                H_t = torch.eye(K).double() - beta[b, t, h] * torch.outer(w[b, t, h], w[b, t, h])
                keys = torch.cat([keys @ H_t, k[b, None, t, h]])
                decays = torch.cat([decays + g[b, t, h], torch.zeros(1).double()])
                first = 0 if layer.window is None else max(0, t + 1 - layer.window)
                score = (keys @ q[b, t, h] / K**0.5 + decays)[first:]
                o[b, t, h] = score.softmax(0) @ v[b, first : t + 1, h]
    return o.flatten(2) @ layer.o_proj.weight.T


CASES = [
    {},
    {"forget": True, "window": 5},
    {"forget": True, "qk_norm": True, "scale_gates": True},
]


@torch.no_grad()
@pytest.mark.parametrize("options", CASES, ids=str)
def test_forward_equals_a_transcription(options):
    layer = lively(**options)
    x = torch.randn(2, 15, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0], transcription(layer, x), rtol=1e-11, atol=1e-11)


@torch.no_grad()
@pytest.mark.parametrize("options", CASES, ids=str)
def test_chunks_splits_and_steps_agree(options):
    holds_however_it_is_cut(lively(**options))


@torch.no_grad()
def test_what_is_no_number_stays_in_its_sequence():
    stays_in_its_sequence(lively())
    stays_in_its_sequence(lively(forget=True, window=5))


def test_equals_the_function_of_fla():
    q, k, v = torch.randn(3, 2, 150, 2, 8)
    w = F.normalize(torch.randn(2, 150, 2, 8), dim=-1)
    beta = 2 * torch.rand(2, 150, 2)
    # theirs scales what gates add too
    g, scale = F.logsigmoid(torch.randn(2, 150, 2)), 8**-0.5
    y = attended(q, k, v, w, beta, g)
    expected = naive("path_attn/naive.py").naive_path_attn(q, k, v, w, beta, g / scale, scale)
    torch.testing.assert_close(y, expected, rtol=1e-3, atol=1e-5)


def test_gradients_are_those_of_the_definition():
    layer = lively(forget=True)
    x = torch.randn(1, 8, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(1, 8, 6, dtype=torch.float64)
    parameters = [x, *layer.parameters()]
    ours = torch.autograd.grad((layer(x)[0] * weight).sum(), parameters)
    theirs = torch.autograd.grad((transcription(layer, x) * weight).sum(), parameters)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


@torch.no_grad()
def test_without_reflections_it_has_no_positions():
    layer = lively()
    layer.beta_proj.weight.zero_()
    layer.beta_proj.bias.fill_(-1e3)
    plain = Attention(6, n_heads=2, d_head=4, d_rotary=0, dtype=torch.float64)
    parts = (plain.q_proj, plain.k_proj, plain.v_proj)
    for part, rows in zip(parts, layer.heads.rows(), strict=True):
        part.weight.copy_(rows)
    plain.o_proj.weight.copy_(layer.o_proj.weight)
    x = torch.randn(2, 20, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0], plain(x)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "PathAttention: rank must be an integer of at least 1, got 0"),
        ({"norm_eps": 0.0}, "PathAttention: norm_eps must be positive"),
        ({"window": 0}, "PathAttention: window must be an integer of at least 1"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        PathAttention(8, **options)
