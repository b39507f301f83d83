"""Recurrent memory against PyTorch's attention with the mask written out."""

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import LinrnnError
from linrnn.mixers import RMT
from linrnn.nn import rotate


def make(**options):
    torch.manual_seed(0)
    sizes = {"n_memory": 3, "n_heads": 2, "d_head": 4, "segment": 4, "dtype": torch.float64}
    layer = RMT(6, **{**sizes, **options})
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def mask(m, n):
    """Rows and columns: read block, tokens, write block; True where a row sees a column."""
    seen = torch.zeros(2 * m + n, 2 * m + n, dtype=torch.bool)
    seen[:m, :m] = True
    seen[m : m + n, :m] = True
    seen[m : m + n, m : m + n] = torch.ones(n, n).tril().bool()
    seen[m + n :] = True
    return seen


def transcription(layer, x):
    """Segments of whole matrices [M; X; M], every row of them mapped."""
    m, memory, ys = layer.n_memory, layer.first.expand(len(x), -1, -1), []
    for part in x.split(layer.segment, 1):
        n = part.shape[1]
        normed = F.rms_norm(memory, (layer.d_model,), layer.norm, 1e-6)
        q, k, v = layer.heads(torch.cat([normed, part, normed], 1))
        place = torch.tensor([*[0] * m, *range(1, n + 1), *[layer.segment + 1] * m])[None]
        q, k, v = (z.transpose(1, 2) for z in (rotate(q, place), rotate(k, place), v))
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask(m, n))
        o = layer.o_proj(o.transpose(1, 2).flatten(2))
        ys.append(o[:, m : m + n])
        memory = memory + o[:, m + n :]
        normed = F.rms_norm(memory, (layer.d_model,), layer.inner_norm, 1e-6)
        memory = memory + layer.down(F.gelu(layer.up(normed)))
    return torch.cat(ys, 1), memory


@pytest.mark.parametrize("time", [3, 8, 14])
def test_equals_whole_segments_with_the_mask(time):
    layer, x = make(), torch.randn(2, time, 6, dtype=torch.float64)
    y, state = layer(x)
    expected, memory = transcription(layer, x)
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    if time % layer.segment == 0:
        torch.testing.assert_close(state["memory"]["rows"], memory, rtol=1e-10, atol=1e-10)
    sources = [layer.first, layer.o_proj.weight, layer.heads.proj.weight]
    got, wanted = (torch.autograd.grad(z.square().sum(), sources) for z in (y, expected))
    torch.testing.assert_close(got, wanted)


def test_what_was_read_long_ago_is_still_known():
    layer = make()
    x = torch.randn(1, 16, 6, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(layer(x)[0][:, 15].sum(), x)
    assert grad[0].any(-1).all()


def test_rows_of_the_first_memory_differ():
    torch.manual_seed(0)
    first = RMT(64, n_memory=32).first
    assert first.std(0).mean().item() == pytest.approx(1, abs=0.1)
    assert len(first.unique(dim=0)) == 32


@pytest.mark.unchecked
def test_constructor_words_its_errors():
    with pytest.raises(LinrnnError, match="RMT: n_memory must be an integer of at least 1, got 0"):
        RMT(4, n_memory=0)
    with pytest.raises(LinrnnError, match="RMT: d_rotary must be even"):
        RMT(4, d_head=3)
