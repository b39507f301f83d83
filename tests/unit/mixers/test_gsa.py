"""Gated slot attention against the plain loop of fla, golden numbers and attention's own mean."""

import pytest
import torch
import torch.nn.functional as F
from fixture_f import K, Q, S, V, near
from fla_naive import naive

from linrnn.errors import LinrnnError
from linrnn.mixers import GSA
from linrnn.nn.memories import read_slots


def test_slots_give_the_golden_numbers():
    state = {"keys": torch.zeros(1, 1, 2, 2), "values": torch.zeros(1, 1, 2, 2)}
    state = {name: part.double() for name, part in state.items()}
    o, _ = read_slots(Q, K, V, 1 - S, S.log(), state, scale=1.0, reset=None)
    near(o, 0.672333, 1.344666, 2.152723, -0.061172, -0.817010, 0.759365, 0.122541, 0.905414)


@pytest.mark.parametrize("slots", [None, 5])
def test_equals_the_loop_of_fla_inside_of_its_layer(slots):
    loop = naive("gsa/naive.py").naive_recurrent_gsa
    layer = GSA(8, n_heads=2, d_value=3, slots=slots)
    x = torch.randn(2, 30, 8)
    q, k, v, f = layer.heads(x)
    g = F.logsigmoid(f) / layer.tau
    o, last = loop(F.silu(q), F.silu(k), F.silu(v), 1 - g.exp(), g, 1.0, None, True)
    o = F.silu(o).flatten(2)
    expected = F.rms_norm(o, o.shape[-1:], eps=layer.norm_eps) @ layer.out.out_proj.weight.T
    y, state = layer(x)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state["keys"], last[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state["values"], last[1], rtol=1e-4, atol=1e-5)


def test_sizes_are_the_published_ones():
    layer = GSA(256)
    assert (layer.n_heads, layer.d_key, layer.d_value, layer.slots) == (4, 64, 64, 64)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": 0}, "GSA: slots must be an integer of at least 1, got 0"),
        ({"tau": -1.0}, "GSA: tau must be positive and finite, got -1.0"),
        ({"n_heads": 0}, "GSA: n_heads must be an integer of at least 1, got 0"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        GSA(8, **options)
