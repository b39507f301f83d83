"""Comba against the plain loop of fla, golden numbers and Gated DeltaNet, and its errors."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from fixture_f import BETA, DECAY, K, Q, V, near
from fla_naive import naive

from linrnn.errors import LinrnnError
from linrnn.mixers import Comba, GatedDeltaNet
from linrnn.nn.memories import erase_scan
from linrnn.testing import check_property


def test_the_rule_gives_the_golden_numbers():
    start = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
    arguments = (Q, K, V, 0.75 * K, BETA, DECAY.log(), start)
    o, _ = erase_scan(*arguments, scale=2**-0.5, reset=None)
    near(o, 0.353553, 0.707107, 1.633417, -0.692965, 1.829639, -0.406586, 0.779710, 0.828110)


def test_the_rule_equals_the_loop_of_fla():
    torch.manual_seed(0)
    loop = naive("comba/naive.py").naive_recurrent_comba
    q, k, v, p = torch.randn(4, 2, 40, 3, 8)
    k, p, g, beta = F.normalize(k, dim=-1), F.normalize(p, dim=-1), *torch.rand(2, 2, 40, 3)
    start = torch.randn(2, 3, 8, 8)
    theirs, last = loop(q, k, v, p, beta, -4 * g, 1.0, start, True)
    o, final = erase_scan(q, k, v, p, beta, -4 * g, start, scale=1.0, reset=None)
    torch.testing.assert_close(o, theirs, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(final, last, rtol=1e-4, atol=2e-5)


def test_without_feedback_it_is_gated_delta_net():
    layer = Comba(6, inner_decay=False, correction=None)
    plain = GatedDeltaNet(6, gate="sigmoid")
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(2, 30, 6)
    torch.testing.assert_close(layer(x)[0], plain(x)[0])


def test_the_inner_decay_is_of_no_length_but_where_it_is_scaled():
    layer, scaled = (
        Comba(6, erase=erase, correction=None).double() for erase in ("unit", "scaled")
    )
    scaled.load_state_dict(layer.state_dict())
    x = torch.randn(2, 30, 6, dtype=torch.float64)
    before = layer(x)[0], scaled(x)[0]
    for one in (layer, scaled):
        one.c.data.fill_(3)
    torch.testing.assert_close(layer(x)[0], before[0], rtol=1e-3, atol=1e-5)  # but for the epsilon
    assert (scaled(x)[0] - before[1]).abs().max() > 1e-3


def test_feedback_starts_as_published():
    layer = Comba(8, n_heads=2, correction=0.02)
    assert torch.equal(layer.c, torch.ones(2))
    assert torch.equal(layer.D, torch.full((2,), 0.02))


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"n_heads": 2, "key_heads": 1, "erase": "scaled", "conv_bias": True},
        {"inner_decay": False, "correction": None, "gate": "none", "d_conv": None},
    ],
    ids=["scaled", "without"],
)
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(Comba, **options))


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"erase": "scaled", "inner_decay": False}, "Comba: inner_decay must be True with erase"),
        ({"correction": -1.0}, "Comba: correction must be at least 0 and finite, got -1.0"),
        ({"n_heads": 4, "key_heads": 3}, "key_heads must divide the n_heads of 4, got 3"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        Comba(8, **options)
