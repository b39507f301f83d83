"""Transformer-XL against transformers' relative attention, segment by segment, and its memory."""

from functools import partial

import pytest
import torch

from linrnn.errors import ArgumentError
from linrnn.mixers import TransformerXL
from linrnn.nn.relative import distance_scores
from linrnn.testing import check_property
from linrnn.testing._mixer_laws import NUMERIC_LAWS

SMALL = {"segment": 4, "memory": 3, "n_heads": 2}


def make(d_model=6, **options):
    torch.manual_seed(0)
    layer = TransformerXL(d_model, dtype=torch.float64, **{**SMALL, **options})
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


def test_a_step_sees_its_segment_and_the_memory_and_nothing_before():
    layer, x = make(), torch.randn(1, 11, 6, dtype=torch.float64, requires_grad=True)
    y, _ = layer(x)
    for t in range(11):
        (grad,) = torch.autograd.grad(y[0, t].sum(), x, retain_graph=True)
        first = max(0, t - t % 4 - 3)
        assert grad[0].any(-1).nonzero().flatten().tolist() == list(range(first, t + 1))


def test_a_memory_of_everything_is_one_causal_pass():
    short, whole = make(segment=3, memory=20), make(segment=20, memory=1)
    x = torch.randn(2, 17, 6, dtype=torch.float64)
    torch.testing.assert_close(short(x)[0], whole(x)[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("law", NUMERIC_LAWS)
def test_laws_hold_where_segments_are_short(law):
    check_property(law, partial(TransformerXL, **SMALL))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_of_a_query_are_its_products_with_the_keys_of_distances(dtype):
    place, p = make().to(dtype).place, torch.randn(2, 1, 2, 3, dtype=dtype)
    weight = place.weight(p)
    with torch.inference_mode():  # whose numbers no gradient could keep
        distance_scores(p, weight, 600)
    far = distance_scores(p, weight, 600)[..., -7:]
    expected = p.transpose(1, 2) @ place.distances(7, p).flip(1).mT / 3**0.5
    torch.testing.assert_close(far, expected)
    found = torch.autograd.grad(far.sum(), weight), torch.autograd.grad(expected.sum(), weight)
    torch.testing.assert_close(*found)


@pytest.mark.unchecked
def test_bad_arguments():
    with pytest.raises(ArgumentError, match="d_model must be even, got 5"):
        TransformerXL(5)
    with pytest.raises(ArgumentError, match="memory must be an integer of at least 1, got 0"):
        TransformerXL(6, memory=0)
