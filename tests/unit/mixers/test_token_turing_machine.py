"""The token Turing machine, step after step as the paper writes it."""

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import LinrnnError
from linrnn.mixers import TokenTuringMachine


def make(**options):
    torch.manual_seed(0)
    sizes = {"n_memory": 5, "n_read": 3, "d_inner": 7, "segment": 4, "dtype": torch.float64}
    layer = TokenTuringMachine(6, **{**sizes, **options})
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def norm(z):
    return F.layer_norm(z, (6,), eps=1e-6)


def summary(part, rows):
    """S of rows (n, D), with their places added already."""
    if hasattr(part, "query"):
        key, value = part.kv(norm(rows)).chunk(2, -1)
        return F.scaled_dot_product_attention(part.query[None], key[None], value[None])[0]
    weight = part.down(F.gelu(part.up(norm(rows)))).softmax(0)
    return torch.stack([(w[:, None] * rows).sum(0) for w in weight.T])


def process(layer, z):
    q, k, v = (part[None] for part in layer.qkv(norm(z)).chunk(3, -1))
    z = z + layer.o_proj(F.scaled_dot_product_attention(q, k, v)[0])
    return z + layer.down(F.gelu(layer.up(norm(z))))


def transcription(layer, x):
    """One row (T, D): outputs and the memory."""
    M, m, ys = torch.zeros(5, 6).double(), layer.n_memory, []
    for part in x.split(layer.segment):
        for t in range(1, len(part) + 1):
            rows = torch.cat([M, part[:t]])
            o = process(layer, summary(layer.reads, rows + layer.reads.place[: m + t]))
            ys.append(layer.y_proj(o.mean(0)))
        if len(part) < layer.segment:
            break
        if layer.update == "summary":
            M = summary(layer.writes, torch.cat([M, part, o]) + layer.writes.place)
            continue
        score = layer.writes.down(F.gelu(layer.writes.up(norm(M + layer.writes.place))))
        kept, more = torch.ones_like(M), torch.zeros_like(M)
        for token, w in zip(o, score.softmax(0).T, strict=True):
            kept = kept * (1 - torch.outer(w, layer.erase(token).sigmoid()))
            more = more + torch.outer(w, layer.add(token))
        M = M * kept + more
    return torch.stack(ys), M


@torch.no_grad()
@pytest.mark.parametrize("summary", ["mlp", "query"])
@pytest.mark.parametrize("update", ["summary", "erase_add"])
def test_equals_a_loop_over_steps(summary, update):
    layer, x = make(summary=summary, update=update), torch.randn(2, 14, 6).double()
    y, state = layer(x)
    expected = [transcription(layer, row) for row in x]
    torch.testing.assert_close(y, torch.stack([z for z, _ in expected]), rtol=1e-9, atol=1e-9)
    M = torch.stack([M for _, M in expected])
    torch.testing.assert_close(state["memory"]["M"], M, rtol=1e-9, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("summary", ["mlp", "query"])
def test_without_places_the_order_of_a_segment_does_not_matter(summary):
    layer, x = make(summary=summary), torch.randn(1, 8, 6).double()
    mixed = x[:, [2, 0, 3, 1, 4, 5, 6, 7]]
    assert not torch.allclose(layer(x)[0][:, 3:], layer(mixed)[0][:, 3:])
    for part in (layer.reads, layer.writes):
        part.place.zero_()
    torch.testing.assert_close(layer(x)[0][:, 3:], layer(mixed)[0][:, 3:])


@torch.no_grad()
def test_rows_of_a_memory_that_is_erased_differ():
    M = TokenTuringMachine(6, update="erase_add", segment=2)(torch.randn(1, 8, 6))[1]["memory"]["M"]
    assert len(M[0].unique(dim=0)) == 32


@pytest.mark.unchecked
def test_constructor_words_its_errors():
    with pytest.raises(LinrnnError, match="n_read must be an integer of at least 1, got 0"):
        make(n_read=0)
    with pytest.raises(LinrnnError, match="no TokenTuringMachine update named 'forget'"):
        make(update="forget")
