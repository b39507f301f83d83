"""Preconditioned Gated DeltaNet against the plain loop of fla and golden numbers, and its start."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from fixture_f import BETA, DECAY, K, Q, V, near, rows
from fla_naive import naive

from linrnn.errors import LinrnnError
from linrnn.mixers import PreconditionedGatedDelta
from linrnn.mixers._families.preconditioner import Preconditioner
from linrnn.nn.memories import erase_scan
from linrnn.testing import check_property


def preconditioned(k, log_decay, rate, squash=1.5):
    """Keys scaled with these decays and rates, of which the latter are between 0 and 1."""
    H, d_key = k.shape[2:]
    sizes = {"squash": squash, "centre": -0.2, "eps": 1e-6}
    part = Preconditioner("test", 1, H, d_key, **sizes, dtype=k.dtype)
    part.reset_parameters()
    part.decay.forward, part.rate.forward = lambda _: log_decay, lambda _: rate.logit(1e-16)
    nothing = k.new_zeros(len(k), H, d_key)
    return part(k.new_zeros(*k.shape[:2], 1), k, nothing, None)


def test_the_rule_gives_the_golden_numbers():
    start = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
    log_decay, rate = rows(0.9, 0.8, 0.7, 0.6).log(), rows(1, 0.5, 0.25, 1)
    written, _ = preconditioned(K, log_decay, rate)
    arguments = (F.normalize(Q, dim=-1), written, V, K, BETA, DECAY.log(), start)
    o, _ = erase_scan(*arguments, scale=2**-0.5, reset=None)
    near(o, 0.330450, 0.660901, 1.968824, -0.881486, 1.242579, -0.312469, 0.461147, 0.575772)


def test_the_rule_equals_the_loop_of_fla():
    torch.manual_seed(0)
    path = "precond_gated_delta_rule/naive.py"
    loop = naive(path).naive_recurrent_precond_gated_delta_rule
    q, k, v = F.normalize(torch.randn(3, 2, 40, 3, 8), dim=-1)
    rates, beta, g, log_decay = torch.rand(4, 2, 40, 3)
    theirs, last, squares = loop(
        q, k, v, -log_decay, -g, rates, beta, 1.0, output_final_state=True, x=2.0
    )
    written, A = preconditioned(k, -log_decay, rates, 2.0)
    nothing = torch.zeros(2, 3, 8, 8)
    o, final = erase_scan(q, written, v, k, beta, -g, nothing, scale=1.0, reset=None)
    torch.testing.assert_close(o, theirs, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(final, last, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(A, squares, rtol=1e-4, atol=2e-5)


def test_keys_are_scaled_within_bounds():
    k = F.normalize(torch.randn(2, 40, 3, 8), dim=-1)
    rates, log_decay = torch.rand(2, 2, 40, 3)
    factors = preconditioned(k, -log_decay, rates)[0] / k
    assert (factors < 1.5).all()
    assert (factors > 1 / 1.5).all()


def test_the_centre_starts_as_published():
    layer = PreconditionedGatedDelta(8, n_heads=4, key_heads=2)
    assert torch.equal(layer.preconditioner.m, torch.full((2,), -0.2))


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"n_heads": 2, "key_heads": 1, "squash": 2.0, "conv_bias": True},
        {"gate": "none", "d_conv": None, "centre": 0.5},
    ],
    ids=["shared keys", "neither"],
)
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(PreconditionedGatedDelta, **options))


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"squash": 2.5}, "squash must be above 1 and at most 2, got 2.5"),
        ({"centre": float("inf")}, "centre must be finite, got inf"),
        ({"squash_eps": 0.0}, "squash_eps must be positive and finite, got 0.0"),
    ],
)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=f"PreconditionedGatedDelta: {message}"):
        PreconditionedGatedDelta(8, **options)
