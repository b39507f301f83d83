"""The SLRU against a digital filter and against the LRU without phase; its initial statistics."""

import numpy as np
import pytest
import torch
from scipy.signal import lfilter
from scipy.stats import kstest

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import LRU, SLRU


def make(d_model=3, **options):
    torch.manual_seed(0)
    layer = SLRU(d_model, **{"dtype": torch.float64, **options})
    torch.nn.init.normal_(layer.in_proj.bias)
    torch.nn.init.normal_(layer.out_proj.bias)
    return layer


@pytest.mark.parametrize("form", SLRU.forms)
def test_forward_equals_scipy_lfilter(form):
    layer = make(d_state=5, form=form)
    x, h0 = torch.randn(2, 40, 3, dtype=torch.float64), torch.randn(2, 5, dtype=torch.float64)
    lam = np.exp(-np.exp(layer.nu_log.detach().numpy()))
    gamma = np.exp(layer.gamma_log.detach().numpy())
    v = layer.in_proj(x).detach().numpy()
    h = np.empty((2, 40, 5))
    for i in range(2):
        for n in range(5):
            zi = [lam[n] * h0[i, n].item()]
            h[i, :, n], _ = lfilter([gamma[n]], [1, -lam[n]], v[i, :, n], zi=zi)
    y, last = layer(x, h0)
    expected = layer.out_proj(torch.from_numpy(h))
    torch.testing.assert_close(y, expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(last.detach().numpy(), h[:, -1], rtol=1e-11, atol=1e-11)


def test_equals_the_lru_without_phase_or_imaginary_parts():
    layer = make(d_state=4)
    lru = LRU(3, d_state=4, dtype=torch.float64)
    with torch.no_grad():
        for bias in (layer.in_proj.bias, layer.out_proj.bias):
            bias.zero_()
        for parameter in lru.parameters():
            parameter.zero_()
        lru.theta_log.fill_(-torch.inf)
        lru.nu_log.copy_(layer.nu_log)
        lru.gamma_log.copy_(layer.gamma_log)
        lru.B[:, 0] = layer.in_proj.weight
        lru.C[..., 0] = layer.out_proj.weight
    x = torch.randn(2, 30, 3, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0], lru(x)[0])
    torch.testing.assert_close(layer.eigenvalues(), lru.eigenvalues())


def test_initial_decays_are_those_of_the_ring():
    torch.manual_seed(0)
    layer = SLRU(1, d_state=20_000)
    lam = layer.decay().detach().double().numpy()
    assert kstest((lam**2 - 0.81) / (0.999**2 - 0.81), "uniform").pvalue > 1e-3
    torch.testing.assert_close(layer.gamma_log.exp() ** 2 + layer.decay() ** 2, torch.ones(20_000))


def test_initial_maps_are_glorot_uniform_without_biases():
    torch.manual_seed(0)
    layer = SLRU(100, d_state=200)
    for linear in (layer.in_proj, layer.out_proj):
        limit = (6 / 300) ** 0.5
        assert linear.weight.abs().max() <= limit
        assert linear.weight.var().item() == pytest.approx(limit**2 / 3, rel=0.03)
        assert not linear.bias.any()


BAD = [
    ({"d_state": 0}, ArgumentError, "SLRU: d_state must be an integer of at least 1, got 0"),
    ({"r_min": 0.9, "r_max": 0.5}, ArgumentError, "r_min=0.9, r_max=0.5"),
    ({"form": "fft"}, UnknownNameError, "no SLRU form named 'fft'"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_constructor_words_its_errors(options, error, message):
    with pytest.raises(error, match=message):
        SLRU(4, **options)


@pytest.mark.unchecked
def test_conv_form_refuses_a_reset():
    with pytest.raises(ArgumentError, match=r"SLRU\.forward: reset must be None for form='conv'"):
        SLRU(2, form="conv")(torch.ones(1, 3, 2), reset=torch.zeros(1, 3, dtype=torch.bool))
