"""Stick-breaking attention against golden numbers, a plain loop and fla's function."""

import pytest
import torch
import torch.nn.functional as F
from attention_loops import holds_however_it_is_cut, stays_in_its_sequence
from fixture_f import K, Q, V, near
from fla_naive import naive

from linrnn.errors import LinrnnError
from linrnn.mixers import StickBreaking
from linrnn.ops.attention import attend


def test_gives_the_golden_numbers():
    place = torch.arange(4)[None]
    o = attend("stick_breaking", Q, K, V, place, window=None, whole=False)
    near(o, 0, 0, 0.5, 1, 2.368687, -0.366172, 0.513368, 0.499245)


def lively(**options):
    torch.manual_seed(0)
    layer = StickBreaking(6, d_head=4, dtype=torch.float64, **options)
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_(std=0.5)
    return layer


def transcription(layer, x):
    """One query at a time, which breaks a stick from the nearest entry on."""
    B, T, _ = x.shape
    H, K, group = layer.n_heads, layer.d_head, layer.n_heads // layer.n_kv_heads
    q, k, v = layer.heads(x)
    o = torch.zeros(B, T, H, K, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            for t in range(T):
                first = 0 if layer.window is None else max(0, t + 1 - layer.window)
                left = 1.0
                for s in range(t if layer.current else t - 1, first - 1, -1):
                    part = torch.sigmoid(q[b, t, h] @ k[b, s, h // group] / K**0.5)
                    o[b, t, h] += left * part * v[b, s, h // group]
                    left = left * (1 - part)
                if layer.b is not None:
                    o[b, t, h] += left * layer.b[h]
    if layer.norm == "layer":
        o = F.layer_norm(o, (K,))
    y = o.flatten(2) @ layer.o_proj.weight.T
    return y if layer.o_proj.bias is None else y + layer.o_proj.bias


CASES = [
    {"n_heads": 2},
    {"n_heads": 4, "n_kv_heads": 2, "window": 5, "rest": "bias"},
    {"n_heads": 2, "current": True, "rest": "bias", "norm": "layer", "out_bias": True},
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
    stays_in_its_sequence(lively(n_heads=2))
    stays_in_its_sequence(lively(n_heads=4, n_kv_heads=2, window=5))


@pytest.mark.parametrize("current", [False, True])
def test_equals_the_function_of_fla(current):
    q = torch.randn(2, 50, 4, 8, dtype=torch.float64)
    k, v = torch.randn(2, 2, 50, 2, 8, dtype=torch.float64)
    kind, place = "stick_breaking" + "_current" * current, torch.arange(50).expand(2, -1)
    y = attend(kind, q, k, v, place, window=None, whole=False)
    function = naive("stickbreaking_attn/naive.py").naive_stickbreaking_attn
    expected, _ = function(q, k, v, attend_current=current)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)


def test_large_scores_take_the_whole_stick():
    q = torch.full((1, 3, 1, 1), 100.0)
    v = torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1)
    place = torch.arange(3)[None]
    o = attend("stick_breaking", q, q, v, place, window=None, whole=False)
    assert o.flatten().tolist() == [0, 1, 2]


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rest": "value"}, "no StickBreaking rest named .value."),
        ({"norm": "rms"}, "no StickBreaking norm named .rms."),
        ({"window": 0}, "StickBreaking: window must be an integer of at least 1"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        StickBreaking(8, **options)
