"""Discretisation, HiPPO and initial eigenvalues against SciPy and published numbers."""

from math import pi

import numpy as np
import pytest
import torch
from scipy.linalg import expm
from scipy.signal import cont2discrete
from scipy.stats import kstest

from linrnn.errors import ArgumentError
from linrnn.nn.hippo import (
    DISCRETISATIONS,
    bilinear,
    check_dt,
    check_pairs,
    draw_log_dt,
    hippo_legs,
    hippo_normal,
    initial_eigenvalues,
    zoh,
)

LEGS_KERNELS = {  # size 4, dt = 0.1, C = (1, 1, 1, 1)
    "bilinear": [0.5470521977, 0.2234393675, 0.0639939291, -0.0045994186],
    "zoh": [0.5299328699, 0.2212216587, 0.0676814342, 0.0005733328],
}


@pytest.mark.parametrize("method", DISCRETISATIONS)
def test_discretisation_equals_scipy(method):
    lam = torch.tensor([-0.5 + 3j, -0.1 - 40j, -2 + 0j, 1e-3 + 0.2j], dtype=torch.complex128)
    dt = torch.tensor([0.1, 0.03, 2.0, 1e-3], dtype=torch.float64)
    a, gain = DISCRETISATIONS[method](lam, dt)
    for i in range(4):
        one = np.ones((1, 1))
        system = (np.array([[complex(lam[i])]]), one, one, 0 * one)
        expected_a, expected_gain, *_ = cont2discrete(system, float(dt[i]), method)
        assert complex(a[i]) == pytest.approx(expected_a.item(), rel=1e-13)
        assert complex(gain[i]) == pytest.approx(expected_gain.item(), rel=1e-11)


@pytest.mark.parametrize("method", DISCRETISATIONS)
def test_discretisation_of_a_real_system(method):
    lam, dt = torch.tensor([-3.0, -0.2], dtype=torch.float64), torch.tensor(0.1).double()
    real = DISCRETISATIONS[method](lam, dt)
    pair = DISCRETISATIONS[method](lam.to(torch.complex128), dt)
    for got, expected in zip(real, pair, strict=True):
        assert not got.is_complex()
        torch.testing.assert_close(got, expected.real, rtol=1e-14, atol=0)


@pytest.mark.parametrize("unit", [-1.0, 1j, complex(-1, 1)])
def test_zoh_keeps_its_digits_near_zero(unit):
    """In float32 ``exp(1e-9) - 1`` is 0; the gain is ``dt``."""
    lam = torch.tensor([1e-6 * unit, 1e-3 * unit], dtype=torch.complex64)
    gain = zoh(lam, torch.tensor(1e-3))[1]
    torch.testing.assert_close(gain.real, torch.full((2,), 1e-3), rtol=2e-6, atol=0)


def test_zoh_at_zero_and_its_gradient():
    lam = torch.zeros(2, dtype=torch.complex128, requires_grad=True)
    a, gain = zoh(lam, torch.tensor(0.25).double())
    assert torch.equal(gain, torch.full_like(gain, 0.25))
    assert torch.autograd.grad((a + gain).abs().sum(), lam)[0].isfinite().all()


@pytest.mark.parametrize("method", DISCRETISATIONS)
def test_discretisation_has_right_gradients(method):
    torch.manual_seed(0)
    lam = torch.complex(-torch.rand(3), torch.randn(3)).to(torch.complex128).requires_grad_()
    dt = torch.rand(3, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(DISCRETISATIONS[method], (lam, dt))


def test_bilinear_maps_the_left_half_plane_into_the_disc():
    re, im = -torch.logspace(-3, 6, 50).double(), torch.linspace(-1e4, 1e4, 50).double()
    assert (bilinear(torch.complex(re, im), torch.tensor(0.1).double())[0].abs() < 1).all()


@pytest.mark.parametrize("method", LEGS_KERNELS)
def test_hippo_legs_has_the_published_kernel(method):
    A, B = (x.numpy() for x in hippo_legs(4))
    if method == "zoh":
        step = expm(0.1 * A)
        into = np.linalg.solve(A, (step - np.eye(4)) @ B)
    else:
        step = np.linalg.solve(np.eye(4) - 0.05 * A, np.eye(4) + 0.05 * A)
        into = np.linalg.solve(np.eye(4) - 0.05 * A, 0.1 * B)
    kernel = [np.sum(np.linalg.matrix_power(step, k) @ into) for k in range(4)]
    np.testing.assert_allclose(kernel, LEGS_KERNELS[method], atol=1e-10)


@pytest.mark.parametrize(
    ("size", "positive"),
    [
        (4, [0.5565011151, 4.6032930071]),
        (8, [0.4274887123, 1.9577941509, 5.354208515, 19.857410371]),
    ],
)
def test_normal_part_has_the_published_eigenvalues(size, positive):
    lam = hippo_normal(size)[0]
    np.testing.assert_allclose(lam.imag, [-x for x in positive[::-1]] + positive, atol=1e-9)
    np.testing.assert_allclose(lam.real, -0.5)


@pytest.mark.parametrize("size", [1, 2, 7, 64, 100])
def test_normal_part_is_rebuilt_from_its_eigenvectors(size):
    lam, V, B = hippo_normal(size)
    A, b = hippo_legs(size)
    P = (torch.arange(size, dtype=torch.float64) + 0.5).sqrt()
    normal = (A + torch.outer(P, P)).to(V.dtype)
    eye = torch.eye(size, dtype=V.dtype)
    torch.testing.assert_close(V.mH @ V, eye, rtol=0, atol=1e-12)
    torch.testing.assert_close(V @ torch.diag(lam) @ V.mH, normal, rtol=1e-11, atol=1e-11 * size)
    torch.testing.assert_close(V @ B.to(V.dtype), b.to(V.dtype), rtol=0, atol=1e-11 * size)
    assert (B > 0).all()


def test_initial_eigenvalues_are_the_published_ones():
    inv = initial_eigenvalues("inv", 4)
    np.testing.assert_allclose(inv, [-0.5 + 3.8197186342j, -0.5 + 0.4244131816j], atol=1e-9)
    lin = initial_eigenvalues("lin", 6)
    np.testing.assert_allclose(lin, [-0.5, -0.5 + pi * 1j, -0.5 + 2j * pi])
    np.testing.assert_allclose(initial_eigenvalues("real", 3), [-1, -2, -3])
    legs = initial_eigenvalues("legs", 4)
    np.testing.assert_allclose(legs.imag, [0.5565011151, 4.6032930071], atol=1e-9)


def test_log_dt_is_uniform_between_its_bounds():
    torch.manual_seed(0)
    u = (draw_log_dt(20_000, 1e-3, 0.1) - np.log(1e-3)) / np.log(100)
    assert kstest(u.numpy(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize(
    "bounds", [(0.0, 0.1), (0.2, 0.1), (1e-3, float("inf")), (float("nan"), 1)]
)
def test_bounds_of_dt_must_be_in_order(bounds):
    with pytest.raises(ArgumentError, match=f"0 < dt_min <= dt_max, got dt_min={bounds[0]}"):
        check_dt("S4D", *bounds)


def test_odd_state_has_no_pairs():
    with pytest.raises(ArgumentError, match=r"X: d_state must be even, .*, got 5. Fix it."):
        check_pairs("X", 5, "Fix it.")
