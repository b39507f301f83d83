"""Bounded-memory control against the plain loop of fla, golden numbers and a softmax over time."""

import pytest
import torch
import torch.nn.functional as F
from fixture_f import K, Q, S, V, near
from fla_naive import naive

from linrnn.errors import LinrnnError
from linrnn.mixers import ABC
from linrnn.nn.memories import read_slots
from linrnn.ops.linear.weighted_mean import EMPTY, softmax_of_past


def test_slots_give_the_golden_numbers():
    zeros = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
    g, write, _ = softmax_of_past(S, torch.full((1, 1, 2), EMPTY, dtype=torch.float64))
    state = {"keys": zeros, "values": zeros}
    o, last = read_slots(Q, K, V, write, g, state, scale=2**-0.5, reset=None)
    near(o, 1.0, 2.0, 2.089607, 0.365590, 0.871978, 0.554775, 0.894369, 0.687358)
    means = S[0, :, 0].softmax(0).T @ V[0, :, 0]  # every slot is a softmax mean of all values
    torch.testing.assert_close(last["values"][0, 0], means)


def test_equals_the_loop_of_fla_inside_of_its_layer():
    loop = naive("abc/naive.py").naive_recurrent_abc
    layer = ABC(8, n_heads=2, rotary=False)
    x = torch.randn(2, 30, 8)
    by_head = (z.transpose(1, 2) for z in layer.heads(x))
    o, _ = loop(*by_head)
    o = o.transpose(1, 2)  # (B, T, H, V)
    normed = F.rms_norm(o, o.shape[-1:], eps=layer.norm_eps).flatten(2)
    expected = layer.out.out_proj(normed * F.silu(layer.out.gate_proj(x)))
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-4, atol=1e-5)


def test_large_logits_are_cut_off_and_early_steps_forgotten():
    layer = ABC(8, n_heads=2, dtype=torch.float64)
    with torch.no_grad():
        layer.heads.rows()[3].mul_(1e4)
    y, state = layer(torch.randn(2, 50, 8, dtype=torch.float64))
    assert y.isfinite().all()
    assert state["log_norm"].abs().max() < layer.clip + 4  # and log 50 steps


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_key": 3}, "ABC: d_key must be even with rotary, which turns pairs, got 3"),
        ({"clip": 0.0}, "ABC: clip must be positive and finite, got 0.0"),
        ({"slots": 0}, "ABC: slots must be an integer of at least 1, got 0"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        ABC(8, **options)
