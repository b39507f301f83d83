"""The LRU against oracles written from the equations alone, and its initial statistics."""

from math import log, pi

import numpy as np
import pytest
import torch
from scipy.signal import dlsim
from scipy.stats import kstest

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import LRU


def numpy_lru(layer, x, h0):
    """``y_t = Re(C h_t) + D x_t`` in complex128, one step and one sequence at a time."""
    p = {name: value.detach().double().numpy() for name, value in layer.named_parameters()}
    lam = np.exp(-np.exp(p["nu_log"]) + 1j * np.exp(p["theta_log"]))
    B, C = p["B_re"] + 1j * p["B_im"], p["C_re"] + 1j * p["C_im"]
    y = np.empty_like(x)
    last = np.empty_like(h0)
    for i in range(len(x)):
        h = h0[i]
        for t in range(x.shape[1]):
            h = lam * h + np.exp(p["gamma_log"]) * (B @ x[i, t])
            y[i, t] = (C @ h).real + p["D"] * x[i, t]
        last[i] = h
    return y, last


def test_forward_equals_a_transcription_in_numpy():
    torch.manual_seed(0)
    layer = LRU(5, d_state=7, dtype=torch.float64)
    x = torch.randn(2, 40, 5, dtype=torch.float64)
    h0 = torch.randn(2, 7, dtype=torch.complex128)
    y, last = layer(x, h0)
    expected_y, expected_last = numpy_lru(layer, x.numpy(), h0.numpy())
    np.testing.assert_allclose(y.detach().numpy(), expected_y, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(last.detach().numpy(), expected_last, rtol=1e-11, atol=1e-11)


def test_forward_equals_explicit_powers():
    """``y_t = Re sum_s C lam^(t-s) gamma B x_s + D x_t``: no recurrence at all."""
    torch.manual_seed(1)
    layer = LRU(3, d_state=4, dtype=torch.float64)
    x = torch.randn(1, 12, 3, dtype=torch.float64)
    lam, gamma = layer.eigenvalues(), layer.gamma_log.exp()
    B = torch.complex(layer.B_re, layer.B_im)
    C = torch.complex(layer.C_re, layer.C_im)
    expected = layer.D * x[0]
    for t in range(12):
        for s in range(t + 1):
            kernel = (C * (lam ** (t - s) * gamma)) @ B
            expected[t] = expected[t] + kernel.real @ x[0, s]
    torch.testing.assert_close(layer(x)[0][0], expected, rtol=1e-10, atol=1e-10)


def test_forward_equals_scipy_dlsim():
    """The layer as a real system of twice the size, in control theory's delayed convention."""
    torch.manual_seed(2)
    layer = LRU(2, d_state=3, dtype=torch.float64)
    lam = layer.eigenvalues().detach().numpy()
    B = torch.complex(layer.B_re, layer.B_im).detach().numpy()
    B = B * layer.gamma_log.exp().detach().numpy()[:, None]
    C = torch.complex(layer.C_re, layer.C_im).detach().numpy()
    A = np.block([[np.diag(lam.real), -np.diag(lam.imag)], [np.diag(lam.imag), np.diag(lam.real)]])
    Br, Cr = np.vstack([B.real, B.imag]), np.hstack([C.real, -C.imag])
    D = np.diag(layer.D.detach().numpy())
    x = torch.randn(1, 30, 2, dtype=torch.float64)
    _, expected, _ = dlsim((A, Br, Cr @ A, Cr @ Br + D, 1.0), x[0].numpy())
    np.testing.assert_allclose(layer(x)[0][0].detach().numpy(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("r_min", "r_max", "max_phase"), [(0, 1, 2 * pi), (0.9, 0.999, pi / 10)])
def test_initial_eigenvalues_are_uniform_on_the_ring(r_min, r_max, max_phase):
    """Lemma 2: the squared radius is uniform, and so is the phase, independently."""
    torch.manual_seed(0)
    lam = LRU(1, d_state=20_000, r_min=r_min, r_max=r_max, max_phase=max_phase).eigenvalues()
    radius = lam.abs().detach().double().numpy()
    phase = np.angle(lam.detach().numpy()) % (2 * pi)
    assert radius.min() >= r_min - 1e-6
    assert radius.max() <= r_max
    square = (radius**2 - r_min**2) / (r_max**2 - r_min**2)
    assert kstest(square, "uniform").pvalue > 1e-3
    assert kstest(phase / max_phase, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(radius, phase)[0, 1]) < 0.03


def test_initial_weights_have_the_stated_variances():
    torch.manual_seed(0)
    layer = LRU(200, d_state=400)
    for weight, variance in (
        (layer.B_re, 1 / 400),
        (layer.B_im, 1 / 400),
        (layer.C_re, 1 / 400),
        (layer.C_im, 1 / 400),
        (layer.D, 1.0),
    ):
        assert weight.var().item() == pytest.approx(
            variance, rel=0.25 if weight.ndim == 1 else 0.03
        )
        assert abs(weight.mean().item()) < 4 * (variance / weight.numel()) ** 0.5


def test_gamma_normalises_the_state_of_white_input():
    """With gamma E|h|^2 = E|Bx|^2; without it the gain of Proposition 3 of the paper."""
    torch.manual_seed(0)
    r_min, r_max = 0.5, 0.95
    layer = LRU(16, d_state=256, r_min=r_min, r_max=r_max)
    x = torch.randn(64, 400, 16)
    power = (layer.B_re**2 + layer.B_im**2).sum(1).mean()
    with torch.no_grad():
        normalised = layer(x)[1].abs().pow(2).mean() / power
        layer.gamma_log.zero_()
        plain = layer(x)[1].abs().pow(2).mean() / power
    gain = log((1 - r_min**2) / (1 - r_max**2)) / (r_max**2 - r_min**2)
    assert normalised.item() == pytest.approx(1.0, rel=0.06)
    assert plain.item() == pytest.approx(gain, rel=0.12)


def test_gamma_survives_a_radius_that_rounds_to_one():
    layer = LRU(2, d_state=3, r_min=1 - 1e-9, r_max=1.0)
    assert layer.gamma_log.isfinite().all()
    assert (layer.gamma_log < -6).all()  # 1 - |lam|^2 is 0 in float32; gamma is not
    y, _ = layer(torch.randn(1, 1000, 2))
    assert y.isfinite().all()


def test_initialisation_follows_the_seed():
    torch.manual_seed(3)
    first = LRU(4).state_dict()
    torch.manual_seed(3)
    second = LRU(4).state_dict()
    assert all(torch.equal(first[n], second[n]) for n in first)


def test_state_defaults_to_the_model_width_and_complex64():
    state = LRU(4).init_state(3)
    assert state.shape == (3, 4)
    assert state.dtype == torch.complex64
    assert LRU(4, dtype=torch.bfloat16).init_state(1).dtype == torch.complex64
    assert LRU(4).init_state(1, dtype=torch.float64).dtype == torch.complex128


BAD = [
    ({"d_state": 0}, ArgumentError, "d_state must be an integer of at least 1, got 0"),
    ({"d_state": 2.5}, ArgumentError, "got 2.5"),
    ({"d_model": -1}, ArgumentError, "d_model must be an integer of at least 1, got -1"),
    ({"r_min": 0.9, "r_max": 0.5}, ArgumentError, r"r_min=0.9, r_max=0.5"),
    ({"r_min": 0.5, "r_max": 0.5}, ArgumentError, "0 <= r_min < r_max <= 1"),
    ({"r_max": 1.5}, ArgumentError, "r_max=1.5"),
    ({"r_min": float("nan")}, ArgumentError, "r_min=nan"),
    ({"max_phase": 0.0}, ArgumentError, r"max_phase must be in \(0, 2 pi\], got 0.0"),
    ({"max_phase": 7.0}, ArgumentError, "got 7.0"),
    ({"form": "scam"}, UnknownNameError, "no LRU form named 'scam'. Did you mean 'scan'?"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_constructor_words_its_errors(options, error, message):
    with pytest.raises(error, match=message):
        LRU(**{"d_model": 4, **options})


@pytest.mark.unchecked
def test_conv_form_refuses_a_reset():
    with pytest.raises(ArgumentError, match="reset must be None for form='conv'"):
        LRU(2, form="conv")(torch.ones(1, 3, 2), reset=torch.zeros(1, 3, dtype=torch.bool))


@pytest.mark.unchecked
def test_complex_state_is_not_taken_for_a_real_one():
    with pytest.raises(TypeError, match=r"state must be torch.complex64, got torch.float32"):
        LRU(2)(torch.ones(1, 3, 2), torch.zeros(1, 2))
