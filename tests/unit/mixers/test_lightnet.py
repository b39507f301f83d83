"""LightNet against golden numbers and softmax means of all values."""

import pytest
import torch
import torch.nn.functional as F
from fixture_f import K, Q, V, near

from linrnn.errors import LinrnnError
from linrnn.mixers import LightNet
from linrnn.ops import outer_scan
from linrnn.ops.linear.weighted_mean import EMPTY, softmax_of_past


def test_recurrence_gives_the_golden_numbers():
    g, write, _ = softmax_of_past(K, torch.full((1, 1, 2), EMPTY, dtype=torch.float64))
    o, _ = outer_scan(Q, write, V, g, scale=2**-0.5)
    near(o, 0.707107, 1.414214, 1.682878, -0.049443, 1.055818, 0.885478, 0.462033, 0.291544)


def test_every_row_of_the_memory_is_a_softmax_mean():
    layer = LightNet(6, n_heads=2, dtype=torch.float64)
    x = 3 * torch.randn(2, 20, 6, dtype=torch.float64)
    _, k, v = layer.heads(x)
    y, state = layer(x)
    means = torch.einsum("bthk,bthv->bhkv", k.softmax(1), v)
    torch.testing.assert_close(state["memory"], means)
    torch.testing.assert_close(state["log_norm"], k.logsumexp(1))
    q = layer.heads(x)[0][:, -1]
    o = torch.einsum("bhk,bhkv->bhv", F.silu(q), means).flatten(1) * layer.d_key**-0.5
    normed = F.rms_norm(o, o.shape[-1:], eps=layer.norm_eps)
    gate = F.silu(layer.out.gate_proj(x[:, -1]))
    torch.testing.assert_close(y[:, -1], layer.out.out_proj(normed * gate))


def test_sizes_are_the_published_ones():
    layer = LightNet(256)
    assert (layer.n_heads, layer.d_key, layer.d_value, layer.gate_rank) == (2, 128, 128, 128)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gate_rank": 0}, "LightNet: gate_rank must be an integer of at least 1, got 0"),
        ({"norm_eps": 0.0}, "LightNet: norm_eps must be positive and finite, got 0.0"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        LightNet(8, **options)
