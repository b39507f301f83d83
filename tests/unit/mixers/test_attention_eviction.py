"""Attention with a cache of fixed size: sinks, H2O and TOVA against loops written out."""

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import LinrnnError
from linrnn.mixers import Attention
from linrnn.ops import attention
from linrnn.ops.attention import eviction
from linrnn.testing import check_property
from linrnn.testing._mixer_laws import NUMERIC_LAWS
from linrnn.testing._options import option_sets

POLICIES = ["sinks", "h2o", "tova"]
REST = ("causal", "higher_derivatives")
QUICK = [law for law in NUMERIC_LAWS if law not in REST]
SHAPE = {"n_heads": 4, "n_kv_heads": 2, "d_head": 4}


def make(evict, window=6, **options):
    torch.manual_seed(0)
    layer = Attention(6, dtype=torch.float64, evict=evict, window=window, **{**SHAPE, **options})
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return layer


def transcription(layer, x):
    """One sequence (T, d_model), step by step, with a list of the places kept for each head."""
    H, G = layer.n_kv_heads, layer.n_heads // layer.n_kv_heads
    place = torch.arange(len(x))[None]
    q, k, v = (p(x)[None] for p in (layer.q_proj, layer.k_proj, layer.v_proj))
    q, k, v = (z.unflatten(-1, (-1, layer.d_head)) for z in (q, k, v))
    q, k = (layer._turned(z, place)[0] for z in (q, k))
    kept, sums, ys = [[] for _ in range(H)], [{} for _ in range(H)], []
    for t in range(len(x)):
        heads, weights = [], []
        for h in range(H):
            kept[h].append(t)
            mine = q[t, h * G : (h + 1) * G]
            share = (mine @ k[kept[h], h].T / layer.d_head**0.5).softmax(-1)
            heads.append(share @ v[0, kept[h], h])
            weights.append(share)
            for s, w in zip(kept[h], share.sum(0).tolist(), strict=True):
                sums[h][s] = sums[h].get(s, 0.0) + w
        ys.append(torch.cat(heads).flatten())
        if len(kept[0]) == layer.window:
            drop(layer, kept, sums, torch.cat(weights))
    return layer.o_proj(torch.stack(ys)), kept


def drop(layer, kept, sums, weights):
    for h, places in enumerate(kept):
        if layer.evict == "sinks":
            worst = min(layer.sinks, layer.window - 1)
        elif layer.evict == "tova":
            worst = int(weights.mean(0).argmin())
        else:
            older = places[: layer.window - layer.window // 2]
            worst = min(range(len(older)), key=lambda i, h=h, p=places: sums[h][p[i]])
        del places[worst]


@torch.no_grad()
@pytest.mark.parametrize("evict", POLICIES)
def test_equals_a_loop_with_lists_of_places(evict):
    layer = make(evict, sinks=2)
    x = torch.randn(2, 25, 6, dtype=torch.float64)
    expected = [transcription(layer, row) for row in x]
    got, _ = layer(x)
    torch.testing.assert_close(got, torch.stack([y for y, _ in expected]), rtol=1e-10, atol=1e-10)
    # the loop did choose: not what a window would have kept
    assert any(kept != [list(range(20, 25))] * 2 for _, kept in expected)


@pytest.mark.parametrize("evict", POLICIES)
def test_a_cache_longer_than_the_sequence_is_full_attention(evict):
    layer, full = make(evict, window=30), make("window", window=None)
    x = torch.randn(2, 20, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0], full(x)[0], rtol=1e-10, atol=1e-10)


def test_nothing_is_given_up_without_a_window():
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    y, state = make("tova", window=None)(x)
    torch.testing.assert_close(y, make("window", window=None)(x)[0])
    assert state["k"].shape[1] == 9


@pytest.mark.parametrize("evict", POLICIES)
@pytest.mark.parametrize("law", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in REST)])
def test_laws_hold(law, evict):
    check_property(law, partial(Attention, window=5, evict=evict, sinks=2, n_heads=2, d_head=2))


def test_sinks_are_seen_through_resets_in_any_number_of_pieces(monkeypatch):
    layer = make("sinks", sinks=2)
    x = torch.randn(2, 60, 6, dtype=torch.float64)
    reset = torch.zeros(2, 60, dtype=torch.bool)
    reset[0, [0, 20, 21, 40]] = reset[1, 33] = True
    state = layer(torch.randn(2, 11, 6, dtype=torch.float64))[1]
    state = {name: h.detach() for name, h in state.items()}

    def read():
        y, last = layer(x, state, reset=reset)
        return y, last, torch.autograd.grad(y.square().sum(), [*layer.parameters()])

    expected = read()
    for size in (4, 8, 17):
        monkeypatch.setattr(attention, "QUERIES", size)
        torch.testing.assert_close(read(), expected, rtol=1e-9, atol=1e-11)
    alone = layer(x[:1, 21:40])[0]
    torch.testing.assert_close(expected[0][:1, 21:40], alone)


@pytest.mark.parametrize("evict", ["h2o", "tova"])
def test_blocks_of_steps_give_the_same_gradient(evict, monkeypatch):
    layer, x = make(evict), torch.randn(2, 30, 6, dtype=torch.float64)
    found = []
    for steps in (64, 7):
        monkeypatch.setattr(eviction, "STEPS", steps)
        found.append(torch.autograd.grad(layer(x)[0].square().sum(), [*layer.parameters()]))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)


def test_a_step_sees_the_sinks_and_the_last_ones():
    layer = make("sinks", sinks=2)
    x = torch.randn(1, 20, 6, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(layer(x)[0][0, 15].sum(), x)
    assert grad[0].any(-1).nonzero().flatten().tolist() == [0, 1, 12, 13, 14, 15]


def test_nan_in_a_sink_stays_and_one_in_between_passes():
    layer = make("sinks", sinks=2)
    x = torch.randn(2, 20, 6, dtype=torch.float64)
    x[0, 1] = x[1, 5] = float("nan")
    bad = layer(x)[0].isnan().any(-1)
    assert bad[0].tolist() == [False] + [True] * 19
    assert bad[1].nonzero().flatten().tolist() == [5, 6, 7, 8]


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "evict", [pytest.param(p, marks=() if p == "h2o" else pytest.mark.slow) for p in POLICIES]
)
def test_one_graph_serves_every_length(evict):
    check_property("dynamic_shapes", partial(Attention, window=5, evict=evict, sinks=2))


def test_keys_that_are_shared_equal_keys_repeated():
    layer, x = make("window"), torch.randn(2, 9, 6, dtype=torch.float64)
    each = make("window", n_kv_heads=4)
    with torch.no_grad():
        each.load_state_dict(
            layer.state_dict()
            | {
                name: layer.state_dict()[name].view(2, 4, 6).repeat_interleave(2, 0).flatten(0, 1)
                for name in ("k_proj.weight", "v_proj.weight")
            }
            | {"q_proj.weight": layer.q_proj.weight}
        )
    torch.testing.assert_close(layer(x)[0], each(x)[0])
    assert F.mse_loss(layer(x)[0], make("window")(x)[0]) == 0


BAD = [
    ({"sinks": 0}, "Attention: sinks must be an integer of at least 1, got 0"),
    ({"factor": 0.5}, "Attention: factor must be finite and at least 1, got 0.5"),
    ({"trained_length": 0}, "trained_length must be an integer of at least 1, got 0"),
    ({"scaling": "yarn", "base": 1.0}, "base must be above 1 for scaling='yarn', got 1.0"),
    ({"evict": "lru"}, "no Attention evict named 'lru'. Known: h2o, sinks, tova, window"),
    ({"scaling": "more"}, "no Attention scaling named 'more'. Known: linear, llama3"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        Attention(4, **options)


def test_every_two_values_of_its_many_options_meet_in_few_sets():
    """There are more sets than are looked through, and still each pair is tried."""
    sets = list(option_sets(Attention))
    assert sets[0] == {}
    assert len(sets) < 40
    for evict, scaling in itertools.product(("sinks", "h2o", "tova"), ("linear", "yarn", "llama3")):
        assert any(s.get("evict") == evict and s.get("scaling") == scaling for s in sets)
    assert all(
        any({a, b} <= {*s} for s in sets) for a, b in (("window", "evict"), ("sinks", "bias"))
    )
