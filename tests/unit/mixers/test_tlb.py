"""The temporal latent bottleneck by PyTorch's layers, chunk after chunk."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from linrnn.errors import LinrnnError
from linrnn.mixers import TLB


def make(**options):
    torch.manual_seed(0)
    sizes = {"n_states": 3, "n_heads": 2, "d_head": 3, "segment": 4, "dtype": torch.float64}
    layer = TLB(6, **{**sizes, **options})
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def torchs(block, heads):
    """The cross block of the paper out of `nn.MultiheadAttention`, with the same weights."""
    D = block.norms.shape[1]
    attention = nn.MultiheadAttention(D, heads, bias=False, batch_first=True).double()
    attention.in_proj_weight.data = torch.cat([block.q.weight, block.kv.weight])
    attention.out_proj.weight.data = block.o.weight

    def norm(z, i):
        return F.layer_norm(z, (D,), block.norms[i], eps=1e-6)

    def run(q, z, mask=None):
        seen = norm(z, 1)
        a = q + attention(norm(q, 0), seen, seen, attn_mask=mask, need_weights=False)[0]
        return a + block.down(F.gelu(block.up(norm(a, 2))))

    return run


@torch.no_grad()
@pytest.mark.parametrize("time", [3, 8, 14])
def test_equals_chunks_of_layers_of_torch(time):
    layer, x = make(), torch.randn(2, time, 6).double()
    own, read, written = (torchs(b, 2) for b in (layer.own, layer.read, layer.written))
    angle = torch.arange(3.0).double()[:, None] / 10_000 ** (torch.arange(0, 6, 2).double() / 6)
    P = torch.cat([angle.cos(), angle.sin()], -1)
    X, ys = P.expand(2, -1, -1), []
    for part in x.split(4, 1):
        n = part.shape[1]
        u = part + layer.place[:n]
        later = torch.ones(n, n).triu(1).bool()
        o = read(own(u, u, later), X)
        ys.append(o - u)
        if n == 4:
            X = written(X + P, o)
    y, state = layer(x)
    torch.testing.assert_close(y, torch.cat(ys, 1), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(state["memory"]["X"], X, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_chunks_are_read_apart_where_the_state_says_nothing():
    layer, x = make(), torch.randn(2, 12, 6).double()
    layer.read.kv.weight[6:] = 0
    apart = torch.cat([layer(part)[0] for part in x.split(4, 1)], 1)
    torch.testing.assert_close(layer(x)[0], apart)


@pytest.mark.unchecked
def test_constructor_words_its_errors():
    with pytest.raises(LinrnnError, match="TLB: n_states must be an integer of at least 1, got 0"):
        TLB(4, n_states=0)
