"""Momentum DeltaNet against the plain loop of fla and golden numbers, its start and errors."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from fixture_f import BETA, K, Q, V, near, rows
from fla_naive import naive

from linrnn.errors import LinrnnError
from linrnn.mixers import GatedDeltaNet, MomentumDeltaNet
from linrnn.ops.matrix.momentum_delta import momentum_scan, momentum_step
from linrnn.testing import check_property

NOTHING = torch.zeros(1, 1, 2, 2, dtype=torch.float64)


def problem(time, wild=1.0):
    """Arguments of some length, with decays from almost 0 to almost 1."""
    torch.manual_seed(0)
    q, k, v, p = torch.randn(4, 2, time, 3, 4, dtype=torch.float64)
    k, p = F.normalize(k, dim=-1), F.normalize(p, dim=-1)
    alpha, mu = (-torch.randn(2, 2, time, 3, dtype=torch.float64).mul(wild).exp()).exp()
    beta, (S, M) = torch.rand(2, time, 3).double(), torch.randn(2, 2, 3, 4, 4).double()
    return [q, k, v, p, alpha, mu, beta, S, M]


def in_steps(problem, reset):
    """The same, one step after the other."""
    *sequences, S, M = problem
    outputs = []
    for t in range(reset.shape[1]):
        S, M = (z * ~reset[:, t, None, None, None] for z in (S, M))
        o, S, M = momentum_step(*(z[:, t : t + 1] for z in sequences), S, M)
        outputs.append(o)
    return torch.cat(outputs, 1), S, M


def test_the_rule_gives_the_golden_numbers():
    eta = rows(1, 0.5, 1.5, 1)[..., None]
    alpha, mu = rows(0.9, 0.8, 0.95, 0.7), rows(0.5, 0.6, 0.4, 0.3)
    arguments = (2**-0.5 * Q, eta * K, V, 0.75 * K, alpha, mu, BETA, NOTHING, NOTHING)
    o, _, _ = momentum_scan(*arguments, None, None)
    near(o, 0.353553, 0.707107, 0.784889, -0.410122, 1.405331, 1.055268, 1.515598, 0.574375)


@pytest.mark.parametrize("wild", [1.0, 5.0])
@pytest.mark.parametrize("time", [1, 31, 32, 70])
def test_chunks_equal_single_steps_at_any_decay(time, wild):
    arguments = problem(time, wild)
    reset = torch.rand(2, time) < 0.1
    for one, other in zip(
        momentum_scan(*arguments, reset, None), in_steps(arguments, reset), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_the_rule_equals_the_loop_of_fla():
    loop = naive("momentum_delta_rule/naive.py").recurrent_momentum_delta_rule_ref
    q, k, v, p, alpha, mu, beta, S, M = (z.float() for z in problem(70))
    eta = 2 * torch.rand(2, 70, 3)
    theirs, last = loop(
        *(q, k, v, alpha.log(), mu.log(), p, beta, eta, 1.0), S, -M, output_final_state=True
    )
    o, *final = momentum_scan(q, eta[..., None] * k, v, p, alpha, mu, beta, S, M, None, None)
    torch.testing.assert_close(o, theirs, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(torch.stack([final[0], -final[1]]), last, rtol=1e-4, atol=2e-5)


def test_what_is_not_finite_reaches_neither_back_nor_past_a_reset():
    arguments = problem(20)
    reset = torch.zeros(2, 20, dtype=torch.bool)
    reset[:, 12] = True
    sound = momentum_scan(*arguments, reset, None)
    arguments[2][:, 5] = float("inf")
    o, S, M = momentum_scan(*arguments, reset, None)
    assert not o[:, 5:12].isfinite().any()
    torch.testing.assert_close(
        (o[:, :5], o[:, 12:], S, M), (sound[0][:, :5], sound[0][:, 12:], *sound[1:])
    )


def test_without_momentum_it_is_gated_delta_net():
    torch.manual_seed(0)
    layer = MomentumDeltaNet(6, correction=False, log_mu_min=None)
    plain = GatedDeltaNet(6, d_key=6, d_value=12)
    with torch.no_grad():
        layer.inertia.A_log.fill_(30)  # M is gone after a step
        layer.eta_proj.weight.zero_()  # eta is 1
        layer.phi.fill_(30)  # beta as it is, alpha almost 0
    shared = {n: p for n, p in layer.state_dict().items() if n in plain.state_dict()}
    plain.load_state_dict({**shared, "decay.A_log": torch.tensor([30.0])})
    x = torch.randn(2, 30, 6)
    torch.testing.assert_close(layer(x)[0], plain(x)[0])


def test_rates_start_as_published():
    layer = MomentumDeltaNet(8, n_heads=4)
    assert torch.equal(layer.inertia.dt_bias, layer.decay.dt_bias)
    assert ((layer.phi.exp() >= 0.01) & (layer.phi.exp() <= 4)).all()
    assert ((layer.D.exp() >= 0.0099) & (layer.D.exp() <= 1)).all()


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"n_heads": 2, "key_heads": 1, "read": "whole", "conv_bias": True},
        {"gate": "none", "d_conv": None, "correction": False, "log_mu_min": None},
    ],
    ids=["shared keys", "neither"],
)
def test_variants_keep_the_laws(law, options):
    check_property(law, partial(MomentumDeltaNet, **options))


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(LinrnnError, match="MomentumDeltaNet: log_mu_min must be at most 0 and fin"):
        MomentumDeltaNet(8, log_mu_min=1.0)
