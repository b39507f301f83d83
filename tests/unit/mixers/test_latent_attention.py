"""Latent attention against a plain loop; public models are in ``tests/published``."""

import pytest
import torch
from attention_loops import holds_however_it_is_cut, stays_in_its_sequence

from linrnn.errors import LinrnnError
from linrnn.mixers import LatentAttention


def lively(**options):
    torch.manual_seed(0)
    sizes = {"n_heads": 3, "d_head": 4, "d_value": 5, "d_rotary": 2, "rank": 6}
    layer = LatentAttention(6, **{**sizes, **options}, dtype=torch.float64)
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_(std=0.5)
    return layer


def transcription(layer, x):
    """Keys and values of every head are made, and one query at a time looks at them."""
    B, T, _ = x.shape
    H, K, R = layer.n_heads, layer.d_head, layer.d_rotary

    def normed(norm, z):
        return norm.weight * z * (z.square().mean(-1, keepdim=True) + 1e-6).rsqrt()

    def turned(z, t):
        pairs = torch.complex(z[..., 0::2].contiguous(), z[..., 1::2].contiguous())
        speed = layer.base ** -(torch.arange(R // 2, dtype=torch.float64) * 2 / R)
        pairs = pairs * torch.exp(1j * t * speed) if layer.rotary else pairs
        return torch.view_as_real(pairs).flatten(-2)

    inner = x if layer.q_down is None else normed(layer.q_norm, layer.q_down(x))
    q = layer.q_proj(inner).unflatten(-1, (H, -1))
    down = layer.kv_down(x)
    k, v = (
        layer.kv_up(normed(layer.kv_norm, down[..., : layer.rank]))
        .unflatten(-1, (H, -1))
        .split([K, layer.d_value], -1)
    )
    o = torch.zeros(B, T, H, layer.d_value, dtype=torch.float64)
    for b in range(B):
        for t in range(T):
            first = 0 if layer.window is None else max(0, t + 1 - layer.window)
            for h in range(H):
                mine, scores = turned(q[b, t, h, K:], t), []
                for s in range(first, t + 1):
                    shared = turned(down[b, s, layer.rank :], s)
                    scores.append(q[b, t, h, :K] @ k[b, s, h] + mine @ shared)
                weights = (torch.stack(scores) / (K + R) ** 0.5).softmax(0)
                o[b, t, h] = weights @ v[b, first : t + 1, h]
    if layer.g_proj is not None:
        o = o * layer.g_proj(x).sigmoid()[..., None]
    return layer.o_proj(o.flatten(2))


CASES = [
    {},
    {"q_rank": 4, "window": 5, "bias": True},
    {"rotary": False, "base": 100.0},
    {"base": 100.0, "d_rotary": 4},
    {"gate": "head", "window": 5},
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
    stays_in_its_sequence(lively(window=5))


def test_state_is_a_vector_for_all_heads():
    layer = LatentAttention(1024)
    sizes = layer.n_heads, layer.d_head, layer.d_value, layer.d_rotary, layer.rank
    assert sizes == (16, 64, 64, 32, 256)
    _, state = LatentAttention(64, n_heads=8, d_head=8)(torch.randn(2, 7, 64))
    numbers = sum(state[name].shape[-1] for name in ("k", "v"))
    assert numbers == 32 + 4  # a cache of keys and values would have 8 (8 + 8)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_rotary": 3}, "LatentAttention: d_rotary must be even, got 3"),
        ({"rank": 0}, "LatentAttention: rank must be an integer of at least 1, got 0"),
        ({"q_rank": 0}, "LatentAttention: q_rank must be an integer of at least 1, got 0"),
        ({"gate": "silu"}, "no LatentAttention gate named 'silu'"),
        ({"scaling": "yarn", "factor": 0.5}, "LatentAttention: factor must be finite"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        LatentAttention(8, **options)
