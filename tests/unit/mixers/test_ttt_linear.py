"""TTT-Linear against a loop in which autograd finds the inner gradients, and its start."""

import pytest
import torch
from inner_loop import transcription
from plain_loop import check_equal

from linrnn.errors import LinrnnError
from linrnn.mixers import TTTLinear

F64 = torch.float64
OPTIONS = [{}, {"gate": True, "base_rate": 0.5}, {"mini_batch": 1}, {"n_heads": 1, "d_head": 6}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equals_a_transcription_split_and_whole_gradients_too(options):
    sizes = {"n_heads": 2, "d_head": 4, "mini_batch": 4, "dtype": F64} | options
    check_equal(TTTLinear(6, **sizes), transcription)


def test_queries_and_keys_may_be_convolutions_of_one_map():
    layer = TTTLinear(8, d_conv=3, dtype=F64)
    assert layer.in_proj.out_features == 16
    x = torch.randn(2, 9, 8, dtype=F64)
    state = layer.init_state(2)
    (q, k, _), past = layer._projected(x, state, None)
    z = layer.in_proj(x)[..., :8]
    for got, conv in ((q, layer.conv_q), (k, layer.conv_k)):
        expected, last = conv(z, torch.zeros(2, 2, 8, dtype=F64))
        torch.testing.assert_close(got.flatten(2), expected)
        torch.testing.assert_close(past["conv"], last)


def test_rows_of_a_mini_batch_have_rates_that_are_never_negative():
    layer = TTTLinear(8, mini_batch=2, dtype=F64)
    with torch.no_grad():
        layer.row_rate.fill_(-2.0)
    _, state = layer(torch.randn(1, 6, 8, dtype=F64))
    for change in state["change"].values():
        assert change.eq(0).all()


def test_sizes_and_starts_are_the_published_ones():
    layer = TTTLinear(768, device="meta")
    assert (layer.n_heads, layer.d_head, layer.mini_batch) == (12, 64, 16)
    assert layer.base_rate == 1.0
    layer = TTTLinear(256)
    assert layer.memory.W1.std().item() == pytest.approx(0.02, rel=0.05)
    assert layer.memory.b1.eq(0).all()
    assert layer.in_proj.weight.std().item() == pytest.approx(1 / 16, rel=0.05)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mini_batch": 0}, "TTTLinear: mini_batch must be an integer of at least 1, got 0"),
        ({"n_heads": 4}, "TTTLinear: d_head must be at least 4, got 2. A norm of two"),
        ({"d_head": 5}, "TTTLinear: d_rotary must be even"),
        ({"base_rate": -1.0}, "TTTLinear: base_rate must be positive and finite, got -1.0"),
        ({"d_conv": 0}, "TTTLinear: d_conv must be an integer of at least 1, got 0"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        TTTLinear(8, **options)
