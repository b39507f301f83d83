"""Infini-attention against a loop over segments; what every layer of segments does."""

import pytest
import torch

from linrnn.errors import LinrnnError
from linrnn.mixers import InfiniTransformer
from linrnn.nn import rotate


def make(**options):
    torch.manual_seed(0)
    layer = InfiniTransformer(
        6, **{"n_heads": 2, "d_head": 4, "segment": 4, "dtype": torch.float64, **options}
    )
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


def phi(x):
    return torch.nn.functional.elu(x) + 1


def transcription(layer, x):
    """One row (T, d_model), segment after segment, head after head, query after query."""
    n, K = layer.segment, layer.d_head
    q, k, v = layer.heads(x[None])
    place = torch.arange(len(x))[None]
    turned_q, turned_k = rotate(q, place), rotate(k, place)
    y = torch.zeros(len(x), layer.n_heads, K, dtype=torch.float64)
    for h in range(layer.n_heads):
        S, z, gate = torch.zeros(K, K).double(), torch.zeros(K).double(), layer.beta[h].sigmoid()
        for begin in range(0, len(x), n):
            steps = range(begin, min(begin + n, len(x)))
            for t in steps:
                score = turned_k[0, begin : t + 1, h] @ turned_q[0, t, h] / K**0.5
                local = score.softmax(0) @ v[0, begin : t + 1, h]
                f = phi(q[0, t, h])
                far = S.T @ f / (z @ f) if begin else torch.zeros(K).double()
                y[t, h] = gate * far + (1 - gate) * local
            add, keys = torch.zeros_like(S), [phi(k[0, t, h]) for t in steps]
            for f, t in zip(keys, steps, strict=True):
                known = S.T @ f / (z @ f) if layer.update == "delta" and begin else 0
                add = add + torch.outer(f, v[0, t, h] - known)
            S, z = S + add, z + sum(keys)
    return layer.o_proj(y.flatten(1))


@torch.no_grad()
@pytest.mark.parametrize("update", ["linear", "delta"])
def test_equals_a_loop_over_segments(update):
    layer, x = make(update=update), torch.randn(2, 14, 6, dtype=torch.float64)
    expected = torch.stack([transcription(layer, row) for row in x])
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_the_memory_of_segments_of_one_step_is_linear_attention_to_the_past():
    layer, x = make(segment=1), torch.randn(1, 9, 6, dtype=torch.float64)
    layer.beta.fill_(60.0)  # the memory alone
    q, k, v = (z[0] for z in layer.heads(x))
    weight = torch.einsum("thk,shk->hts", phi(q), phi(k)).tril(-1)
    past = torch.einsum("hts,shk->thk", weight, v) / weight.sum(-1).T.clamp(min=1e-10)[..., None]
    torch.testing.assert_close(layer(x)[0][0], layer.o_proj(past.flatten(1)))


def test_one_segment_is_causal_softmax_attention():
    layer, x = make(segment=20), torch.randn(2, 9, 6, dtype=torch.float64)
    with torch.no_grad():
        layer.beta.fill_(-60.0)
    q, k, v = layer.heads(x)
    place = torch.arange(9)[None]
    q, k, v = (z.transpose(1, 2) for z in (rotate(q, place), rotate(k, place), v))
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(layer(x)[0], layer.o_proj(o.transpose(1, 2).flatten(2)))


def test_rows_at_different_places_of_their_segments_are_read_together():
    layer = make()
    before = [torch.randn(1, t, 6, dtype=torch.float64) for t in (3, 5, 0, 8)]
    states = [layer(x)[1] for x in before]
    flat = [torch.utils._pytree.tree_flatten(s) for s in states]
    together = torch.utils._pytree.tree_unflatten(
        [torch.cat(parts) for parts in zip(*(leaves for leaves, _ in flat), strict=True)],
        flat[0][1],
    )
    x = torch.randn(4, 11, 6, dtype=torch.float64)
    y, last = layer(x, together)
    for i, state in enumerate(states):
        alone, after = layer(x[i : i + 1], state)
        torch.testing.assert_close(y[i : i + 1], alone)
        torch.testing.assert_close(last["memory"]["S"][i : i + 1], after["memory"]["S"])
    y_t, _ = layer.step(x[:, 0], together)
    torch.testing.assert_close(y_t, y[:, 0])


@pytest.mark.parametrize(("cut", "first"), [(0, 12), (1, 8), (2, 12), (3, 0), (None, 0)])
def test_gradients_pass_through_so_many_memories(cut, first):
    """Segment 3 begins at step 12; gradients end before segments that cut + 1 divides."""
    layer = make(memory_gradient=cut)
    x = torch.randn(1, 16, 6, dtype=torch.float64, requires_grad=True)
    (whole,) = torch.autograd.grad(layer(x)[0][:, 15].sum(), x)
    assert whole[0].any(-1).nonzero()[0].item() == first
    start, state = layer(x[:, :6])
    y = layer(x[:, 6:], state)[0]  # the cut is where it was, however the text is split
    (split,) = torch.autograd.grad(y[:, 9].sum(), x)
    torch.testing.assert_close(split, whole)
    torch.testing.assert_close(torch.cat([start, y], 1), layer(x)[0])


def test_nan_reaches_its_segment_and_all_later_ones_and_nothing_before():
    layer, x = make(), torch.randn(2, 16, 6, dtype=torch.float64)
    x[0, 6] = float("nan")
    bad = layer(x)[0].isnan().any(-1)
    assert bad[0].tolist() == [False] * 6 + [True] * 10
    assert not bad[1].any()


@torch.no_grad()
def test_only_rows_whose_segment_ends_write(monkeypatch):
    layer, rows = make(), []
    write = InfiniTransformer.write

    def counted(mode, entries, memory, weights, number):
        rows.append(len(entries[0]))
        return write(mode, entries, memory, weights, number)

    monkeypatch.setattr(InfiniTransformer, "write", staticmethod(counted))
    state = layer.init_state(3)
    state["position"] = torch.tensor([0, 1, 1])
    for _ in range(4):
        _, state = layer.step(torch.randn(3, 6, dtype=torch.float64), state)
    assert rows == [2, 1]


BAD = [
    ({"segment": 0}, "InfiniTransformer: segment must be an integer of at least 1, got 0"),
    ({"memory_gradient": -1}, "memory_gradient must be None or an integer of at least 0, got -1"),
    ({"d_head": 3}, "InfiniTransformer: d_rotary must be even"),
    ({"update": "none"}, "no InfiniTransformer update named 'none'. Known: delta, linear"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        InfiniTransformer(4, **options)
