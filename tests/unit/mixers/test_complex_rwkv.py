"""Complex RWKV against its equation in complex128, and against RWKV-4 where it is that."""

from math import pi

import pytest
import torch
from scipy.stats import kstest
from torch import nn

from linrnn.errors import ArgumentError
from linrnn.mixers import RWKV4, ComplexRWKV
from linrnn.testing import check_property
from linrnn.testing._mixer_laws import NUMERIC_LAWS


def lively(d_model, **options):
    """Weights at which every part matters: with the initial ones the output is zero."""
    layer = ComplexRWKV(d_model, **options)
    for linear in (layer.key, layer.value, layer.receptance, layer.output):
        nn.init.normal_(linear.weight, std=d_model**-0.5)
    nn.init.normal_(layer.c_im)
    return layer


def real_values(d_model, **options):
    return lively(d_model, **options, complex_values=False, token_shift=False)


CASES = [(make, law) for make in (lively, real_values) for law in NUMERIC_LAWS]


@pytest.mark.parametrize(("make", "law"), CASES)
def test_keeps_the_laws_where_its_output_is_not_zero(make, law):
    check_property(law, make)


def literal(layer, x):
    """The equation step by step, with both sums in complex128; no token shift."""
    k, r = layer.key(x), layer.receptance(x)
    v = layer.value(x)
    v = torch.view_as_complex(v.unflatten(-1, (-1, 2))) if layer.complex_values else v
    w, theta, u = layer.time_decay.exp(), layer.theta_log.exp(), layer.time_first
    lam = torch.polar((-w).exp(), theta)
    c = torch.complex(layer.c_re, layer.c_im)
    top, bottom, ys = torch.zeros_like(k[:, 0]) * 1j, torch.zeros_like(k[:, 0]), []
    for t in range(x.shape[1]):
        now = (u + k[:, t]).exp()
        ys.append((c * (top + now * v[:, t])).real / (bottom + now))
        top = lam * top + k[:, t].exp() * v[:, t]
        bottom = lam.abs() * bottom + k[:, t].exp()
    return layer.output(r.sigmoid() * torch.stack(ys, 1)), top / bottom, bottom.log()


@pytest.mark.parametrize("complex_values", [True, False])
def test_forward_equals_the_literal_sums(complex_values):
    torch.manual_seed(0)
    layer = lively(
        5, d_state=7, complex_values=complex_values, token_shift=False, dtype=torch.float64
    )
    x = torch.randn(2, 30, 5, dtype=torch.float64)
    y, last = layer(x)
    expected, mean, log_norm = literal(layer, x)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(last["mean"], mean)
    torch.testing.assert_close(last["log_norm"], log_norm)


@pytest.mark.parametrize("complex_values", [True, False])
@pytest.mark.parametrize("token_shift", [True, False])
def test_without_phase_it_is_rwkv4(complex_values, token_shift):
    torch.manual_seed(0)
    layer = lively(5, complex_values=complex_values, token_shift=token_shift, dtype=torch.float64)
    peer = RWKV4(5, token_shift=token_shift, dtype=torch.float64)
    with torch.no_grad():
        layer.theta_log.fill_(-torch.inf)
        layer.c_im.zero_()
        shared = {n: p for n, p in layer.state_dict().items() if n in peer.state_dict()}
        if complex_values:
            layer.value.weight[1::2] = 0
            shared["value.weight"] = layer.value.weight[::2].clone()
        peer.load_state_dict(shared)
    x = torch.randn(2, 50, 5, dtype=torch.float64)
    y, last = layer(x)
    expected, expected_last = peer(x)
    torch.testing.assert_close(y, expected, rtol=1e-13, atol=1e-13)
    assert torch.equal(last["log_norm"], expected_last["log_norm"])


def test_output_is_bounded_by_the_values():
    torch.manual_seed(0)
    layer = lively(4, token_shift=False, dtype=torch.float64)
    x = 100 * torch.randn(2, 300, 4, dtype=torch.float64)
    with torch.no_grad():
        layer.output.weight.copy_(torch.eye(4))
        layer.receptance.weight.zero_()
        size = torch.view_as_complex(layer.value(x).unflatten(-1, (-1, 2))).abs().amax((0, 1))
        bound = 0.5 * torch.complex(layer.c_re, layer.c_im).abs() * size
        assert (layer(x)[0].abs() <= bound * (1 + 1e-12)).all()


def test_initial_phases_are_uniform():
    torch.manual_seed(0)
    layer = ComplexRWKV(1, d_state=20_000, max_phase=pi / 3)
    theta = layer.theta_log.exp().detach().double().numpy()
    assert kstest(theta / (pi / 3), "uniform").pvalue > 1e-3
    assert (layer.c_re == 1).all()
    assert not layer.c_im.any()


@pytest.mark.unchecked
@pytest.mark.parametrize("max_phase", [0.0, 7.0])
def test_constructor_words_its_errors(max_phase):
    with pytest.raises(ArgumentError, match=r"max_phase must be in \(0, 2 pi\], got"):
        ComplexRWKV(4, max_phase=max_phase)
