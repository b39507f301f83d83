"""Memformer against loops over slots, and segments that are computed once more."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from linrnn import mixers
from linrnn.errors import LinrnnError
from linrnn.mixers import Memformer
from linrnn.mixers._families.segments import SegmentMixer
from linrnn.nn import rotate

SEGMENT = [name for name in mixers.names() if issubclass(mixers.load(name), SegmentMixer)]
SEGMENT = [name for name in SEGMENT if not mixers.load(name).independent]  # nothing to replay


def make(**options):
    torch.manual_seed(0)
    sizes = {"n_memory": 3, "n_heads": 2, "d_head": 4, "segment": 4, "temperature": 0.5}
    layer = Memformer(6, **{**sizes, **options}, dtype=torch.float64)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def unit(m):
    return m / (m.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def transcription(layer, x):
    """One row (T, D): outputs and slots, each slot for itself, as the paper writes it."""
    n, D, ys = layer.segment, layer.d_model, []
    w_q, w_k, w_v = layer.slot.weight.chunk(3)
    m = unit(layer.bias)
    for part in x.split(n):
        place = torch.arange(len(part))[None]
        q, k, v = (z[None] for z in layer.heads(part))
        q, k, v = (z.transpose(1, 2) for z in (rotate(q, place), rotate(k, place), v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)[0]
        a = layer.o_proj(a.transpose(0, 1).flatten(1))
        asked = layer.far_q(F.rms_norm(part + a, (D,), layer.norm, 1e-6))
        q, k, v = (
            z.unflatten(-1, (layer.n_heads, -1)).transpose(0, 1)
            for z in (asked, *layer.far_kv(m).chunk(2, -1))
        )
        far = F.scaled_dot_product_attention(q, k, v)
        ys.append(a + layer.far_o(far.transpose(0, 1).flatten(1)))
        if len(part) < n:
            break
        new = []
        for slot in m:
            keys = torch.cat([slot[None], part]) @ w_k.T
            scores = keys @ (w_q @ slot) / math.sqrt(D)
            weight = (scores / layer.temperature).softmax(0)
            new.append(weight @ torch.cat([slot[None], part @ w_v.T]))
        m = unit(torch.stack(new) + layer.bias)
    return torch.cat(ys), m


@torch.no_grad()
def test_equals_a_loop_over_segments_and_slots():
    layer, x = make(), torch.randn(2, 18, 6).double()
    y, state = layer(x)
    expected = [transcription(layer, row) for row in x]
    torch.testing.assert_close(y, torch.stack([z for z, _ in expected]), rtol=1e-9, atol=1e-9)
    m = torch.stack([m for _, m in expected])
    torch.testing.assert_close(state["memory"]["m"], m, rtol=1e-9, atol=1e-9)


def test_slots_have_length_one_and_do_not_look_at_one_another():
    layer, x = make(), torch.randn(1, 4, 6).double()
    m = layer(x)[1]["memory"]["m"]
    torch.testing.assert_close(m.norm(dim=-1), torch.ones(1, 3).double(), rtol=1e-5, atol=0)
    for i in range(3):
        (grad,) = torch.autograd.grad(m[0, i].sum(), layer.bias, retain_graph=True)
        assert grad.any(-1).nonzero().flatten().tolist() == [i]


@torch.no_grad()
def test_a_cold_slot_writes_one_row_alone():
    layer, x = make(temperature=1e-4), torch.randn(1, 4, 6).double()
    m = unit(layer.bias)
    w_q, w_k, w_v = layer.slot.weight.chunk(3)
    written = torch.stack([torch.cat([slot[None], x[0] @ w_v.T]) for slot in m])
    best = [int((torch.cat([s[None], x[0]]) @ w_k.T @ (w_q @ s)).argmax()) for s in m]
    new = torch.stack([rows[i] for rows, i in zip(written, best, strict=True)]) + layer.bias
    got = layer(x)[1]["memory"]["m"][0]
    torch.testing.assert_close(got, unit(new), rtol=1e-9, atol=1e-9)


def gradients(layer, x, reset=None):
    layer.zero_grad()
    x = x.clone().requires_grad_()
    y, state = layer(x, reset=reset)
    (y.square().sum() + sum(h.square().sum() for h in state["memory"].values())).backward()
    return {"x": x.grad} | {n: p.grad for n, p in layer.named_parameters()}


@pytest.mark.parametrize("name", SEGMENT)
def test_replayed_segments_have_the_gradients_of_stored_ones(name):
    x, found = torch.randn(2, 27, 6).double(), []
    reset = torch.zeros(2, 27, dtype=torch.bool)
    reset[0, 10] = True
    for replay in (False, True):
        torch.manual_seed(0)
        options = {"segment": 4, "replay": replay}
        layer = mixers.build(name, 6, options, dtype=torch.float64)
        found += [gradients(layer, x), gradients(layer, x, reset)]
    for stored, again in zip(found[:2], found[2:], strict=True):
        for key, value in stored.items():
            torch.testing.assert_close(again[key], value, rtol=1e-10, atol=1e-10, msg=key)


def kept(layer, x):
    """Bytes that a forward pass leaves for the backward pass."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        y, _ = layer(x)
    assert y.requires_grad
    return sum(event.self_cpu_memory_usage for event in prof.key_averages())


def test_replayed_segments_keep_less():
    """Memory holds rows and their maps once each; attention has n numbers for each row."""
    x, sizes = torch.randn(1, 512, 6).double(), {}
    for replay in (False, True):
        sizes[replay] = kept(make(segment=64, n_memory=16, replay=replay), x)
    assert 0 < sizes[True] < 0.6 * sizes[False]


@pytest.mark.unchecked
def test_constructor_words_its_errors():
    with pytest.raises(LinrnnError, match="temperature must be positive and finite, got 0"):
        make(temperature=0.0)
    with pytest.raises(LinrnnError, match="n_memory must be an integer of at least 1, got 0"):
        make(n_memory=0)
