"""Preconditioned KDA against the plain loop of fla and golden numbers, and its start."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from fixture_f import BETA, DECAYS, K, Q, V, near, rows
from fla_naive import naive
from test_preconditioned_gated_delta import preconditioned

from linrnn.errors import LinrnnError
from linrnn.mixers import PreconditionedKDA
from linrnn.nn.memories import erase_scan
from linrnn.testing import check_property


def test_the_rule_gives_the_golden_numbers():
    start = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
    log_decay, rate = rows(0.9, 0.8, 0.7, 0.6).log(), rows(1, 0.5, 0.25, 1)
    written, _ = preconditioned(K, log_decay, rate)
    arguments = (Q, written, V, K, BETA, DECAYS.log(), start)
    o, _ = erase_scan(*arguments, scale=2**-0.5, reset=None)
    near(o, 0.330450, 0.660901, 1.910912, -0.997309, 1.777961, -0.336836, 0.696222, 0.818913)


def test_the_rule_equals_the_loop_of_fla():
    torch.manual_seed(0)
    loop = naive("precond_kda/naive.py").naive_recurrent_precond_kda
    q, k, v = F.normalize(torch.randn(3, 2, 40, 3, 8), dim=-1)
    (rates, beta, log_decay), g = torch.rand(3, 2, 40, 3), -torch.rand(2, 40, 3, 8)
    theirs, last, squares = loop(q, k, v, g, -log_decay, rates, beta, 1.0, output_final_state=True)
    written, A = preconditioned(k, -log_decay, rates)
    nothing = torch.zeros(2, 3, 8, 8)
    o, final = erase_scan(q, written, v, k, beta, g, nothing, scale=1.0, reset=None)
    torch.testing.assert_close(o, theirs, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(final, last, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(A, squares, rtol=1e-4, atol=2e-5)


def test_decays_start_as_published():
    layer = PreconditionedKDA(8, n_heads=4, key_heads=2, lower_bound=-5.0)
    assert torch.equal(layer.decay.A_log, torch.zeros(4))
    assert torch.equal(layer.decay.dt_bias, torch.zeros(8))
    rates = layer.preconditioner.decay.A_log.exp()
    assert ((rates >= 1) & (rates <= 16)).all()


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"n_heads": 2, "key_heads": 1, "lower_bound": -5.0, "conv_bias": True},
        {"squash": 1.2, "d_conv": None},
    ],
    ids=["shared keys", "without convolution"],
)
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(PreconditionedKDA, **options))


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(LinrnnError, match="PreconditionedKDA: squash must be above 1 and at most"):
        PreconditionedKDA(8, squash=1.0)
    with pytest.raises(LinrnnError, match="PreconditionedKDA: lower_bound must be below 0"):
        PreconditionedKDA(8, lower_bound=1.0)
