"""Recurrent positional embedding against torch.nn.RNN and PyTorch's attention."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from linrnn.errors import LinrnnError
from linrnn.mixers import RecurrentPosition
from linrnn.testing import check_property
from linrnn.testing._mixer_laws import NUMERIC_LAWS


def make(**options):
    torch.manual_seed(0)
    sizes = {"d_recurrent": 3, "n_heads": 2, "d_head": 5, "dtype": torch.float64}
    layer = RecurrentPosition(8, **{**sizes, **options})
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def embedded(layer, x):
    """p + PE and r, the one channel after channel, the other by PyTorch."""
    theirs = nn.RNN(3, 3, batch_first=True, dtype=torch.float64)
    zero = torch.zeros(3, dtype=torch.float64)
    weights = (layer.weight_ih, layer.weight_hh, layer.bias, zero)
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    pair = dict(zip(names, weights, strict=True))
    r = torch.func.functional_call(theirs, pair, (x[..., 5:],))[0]
    waves = torch.zeros(x.shape[1], 5, dtype=torch.float64)
    for t in range(x.shape[1]):
        for i in range(5):
            angle = t / 10_000 ** (2 * (i // 2) / 5)
            waves[t, i] = math.cos(angle) if i % 2 else math.sin(angle)
    return x[..., :5] + waves, r


def transcription(layer, x):
    p, r = embedded(layer, x)
    e = torch.cat([p, r], -1)
    if layer.heads == "joint":
        parts = layer.maps(e)
    else:
        pairs = zip(layer.maps(p), layer.recurrent_maps(r), strict=True)
        parts = [torch.cat(pair, 2) for pair in pairs]
    q, k, v = (part.transpose(1, 2) for part in parts)
    age = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
    seen = (age >= 0) & (age < (layer.window or x.shape[1]))
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    return e - x + layer.o_proj(o.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    "options", [{}, {"heads": "split", "n_recurrent_heads": 3}, {"heads": "split", "window": 4}]
)
def test_equals_the_rnn_and_the_attention_of_pytorch(options):
    layer = make(**options)
    x = torch.randn(2, 11, 8, dtype=torch.float64, requires_grad=True)
    y, expected = layer(x)[0], transcription(layer, x)
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    got, wanted = (
        torch.autograd.grad(z.square().sum(), [x, *layer.parameters()], retain_graph=True)
        for z in (y, expected)
    )
    torch.testing.assert_close(got, wanted)


def test_order_is_known_by_the_state_and_the_waves_alone():
    """Without both the last step reads its past as a set."""
    layer, x = make(), torch.randn(1, 9, 8, dtype=torch.float64)
    order = torch.tensor([3, 1, 0, 2, 7, 6, 5, 4, 8])
    y, other = (layer(z)[0][:, -1] for z in (x, x[:, order]))
    assert not torch.allclose(y, other)
    with torch.no_grad():
        layer.weight_hh.zero_()
        layer.maps.proj.weight[:, :5] = 0  # what has waves is not read
    y, other = (layer(z)[0][:, -1] for z in (x, x[:, order]))
    torch.testing.assert_close(y, other)


@pytest.mark.parametrize("law", NUMERIC_LAWS)
def test_laws_hold_with_heads_apart_and_a_window(law):
    check_property(law, partial(RecurrentPosition, heads="split", window=4))


@pytest.mark.unchecked
def test_constructor_words_its_errors():
    with pytest.raises(LinrnnError, match="d_recurrent must be less than d_model=4, got 4"):
        RecurrentPosition(4, d_recurrent=4)
    with pytest.raises(LinrnnError, match="no RecurrentPosition heads named 'both'"):
        RecurrentPosition(4, heads="both")
