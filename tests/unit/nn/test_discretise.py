"""Rules of discretisation against SciPy."""

import numpy as np
import pytest
import torch
from scipy.signal import cont2discrete

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.nn import discretise
from linrnn.nn.discretise import RULES, bilinear, dense, generalised, zoh
from linrnn.nn.hippo import MEASURES, hippo
from linrnn.testing._derivatives import check_derivatives

SCIPY = {"backward": "backward_diff"}


@pytest.mark.parametrize("method", RULES)
def test_discretisation_equals_scipy(method):
    lam = torch.tensor([-0.5 + 3j, -0.1 - 40j, -2 + 0j, 1e-3 + 0.2j], dtype=torch.complex128)
    dt = torch.tensor([0.1, 0.03, 2.0, 1e-3], dtype=torch.float64)
    a, gain = RULES[method](lam, dt)
    for i in range(4):
        one = np.ones((1, 1))
        system = (np.array([[complex(lam[i])]]), one, one, 0 * one)
        expected_a, expected_gain, *_ = cont2discrete(
            system, float(dt[i]), SCIPY.get(method, method)
        )
        assert complex(a[i]) == pytest.approx(expected_a.item(), rel=1e-13)
        assert complex(gain[i]) == pytest.approx(expected_gain.item(), rel=1e-11)


@pytest.mark.parametrize("method", RULES)
def test_discretisation_of_a_real_system(method):
    lam, dt = torch.tensor([-3.0, -0.2], dtype=torch.float64), torch.tensor(0.1).double()
    real = RULES[method](lam, dt)
    pair = RULES[method](lam.to(torch.complex128), dt)
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


@pytest.mark.parametrize("method", RULES)
def test_discretisation_has_right_gradients(method):
    torch.manual_seed(0)
    lam = torch.complex(-torch.rand(3), torch.randn(3)).to(torch.complex128).requires_grad_()
    dt = torch.rand(3, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(RULES[method], (lam, dt))


def test_bilinear_maps_the_left_half_plane_into_the_disc():
    re, im = -torch.logspace(-3, 6, 50).double(), torch.linspace(-1e4, 1e4, 50).double()
    assert (bilinear(torch.complex(re, im), torch.tensor(0.1).double())[0].abs() < 1).all()


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 1.0])
def test_generalised_rule_equals_scipy(alpha):
    lam, dt = torch.tensor([-2.0, -0.3]).double(), torch.tensor([0.4, 1.5]).double()
    a, gain = generalised(lam, dt, alpha)
    for i in range(2):
        one = np.ones((1, 1))
        system = (float(lam[i]) * one, one, one, 0 * one)
        expected = cont2discrete(system, float(dt[i]), "gbt", alpha)
        assert a[i] == pytest.approx(expected[0].item(), rel=1e-14)
        assert gain[i] == pytest.approx(expected[1].item(), rel=1e-14)


@pytest.mark.parametrize("rule", [*RULES, 0.3])
@pytest.mark.parametrize("measure", MEASURES)
def test_dense_rule_equals_scipy(measure, rule):
    A, B = hippo(measure, 16, theta=2.0)
    dt = torch.tensor([[0.05], [0.4]]).double()
    a, b = dense(A, B, dt, rule)
    assert a.shape == (2, 1, 16, 16)
    assert b.shape == (2, 1, 16)
    for i in range(2):
        system = (A.numpy(), B.numpy()[:, None], np.ones((1, 16)), np.zeros((1, 1)))
        method = ("gbt", rule) if isinstance(rule, float) else (SCIPY.get(rule, rule),)
        expected = cont2discrete(system, float(dt[i]), *method)
        np.testing.assert_allclose(a[i, 0], expected[0], rtol=0, atol=1e-12 * float(A.abs().max()))
        np.testing.assert_allclose(b[i, 0], expected[1][:, 0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", [*RULES, 0.3])
def test_dense_rule_of_a_diagonal_matrix_is_the_diagonal_rule(rule):
    lam, dt = torch.tensor([-3.0, -0.2, 0.0]).double(), torch.tensor(0.1).double()
    a, b = dense(torch.diag(lam), torch.ones_like(lam), dt, rule)
    expected = generalised(lam, dt, rule) if isinstance(rule, float) else RULES[rule](lam, dt)
    torch.testing.assert_close(a, torch.diag(expected[0]), rtol=0, atol=1e-15)
    torch.testing.assert_close(b, expected[1].expand(3), rtol=0, atol=1e-15)


@pytest.mark.parametrize("rule", [*RULES, 0.3])
def test_dense_rule_has_right_gradients(rule):
    torch.manual_seed(0)
    A, B = torch.randn(3, 3).double().requires_grad_(), torch.randn(3).double().requires_grad_()
    dt = torch.rand(2, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda *x: dense(*x, rule), (A, B, dt))


@pytest.mark.unchecked
def test_rule_must_be_known_and_alpha_between_the_two_eulers():
    A, B = hippo("legs", 2)
    with pytest.raises(UnknownNameError, match=r"discretise\.dense rule"):
        dense(A, B, 0.1, "simpson")
    with pytest.raises(ArgumentError, match=r"alpha must lie .* got 1.5. 0.5 is the bil"):
        dense(A, B, 0.1, 1.5)


@pytest.mark.parametrize("rule", ["zoh", 0.0, 0.5, 1.0])
def test_a_dense_system_has_second_derivatives_in_every_mode(rule):
    A, B = hippo("legt", 5)
    arguments = {"A": A, "B": B, "dt": torch.tensor([0.02, 0.1], dtype=torch.float64)}
    check_derivatives(str(rule), lambda **moved: dense(**moved, rule=rule), arguments)


@pytest.mark.parametrize("size", [0.0, 1e-300, 1e-87, 1e-20, 1e-8, 0.009999, 0.010001, 0.5])
def test_gain_of_zoh_has_the_gradient_of_its_series_however_small(size):
    """d/dz of (exp(z) - 1) / z is 1/2 + z/3 + z^2/8 + ..., to the last term that counts."""
    z = torch.tensor(complex(-0.6 * size, 0.8 * size), dtype=torch.complex128).requires_grad_()
    one = torch.ones((), dtype=torch.float64)
    (slope,) = torch.autograd.grad(zoh(z, one)[1].real, z)
    terms = [(n - 1) / np.prod(np.arange(1.0, n + 1)) * z.detach() ** (n - 2) for n in range(2, 30)]
    torch.testing.assert_close(slope.conj(), sum(terms), rtol=1e-12, atol=0)


@pytest.mark.parametrize("size", [1e-9, 0.3, 40.0, 2.0**29])
def test_in_a_graph_the_exponential_is_products(size):
    torch.manual_seed(0)
    A = torch.randn(3, 4, 4, dtype=torch.float64)
    A = -size * (A @ A.mT + 0.1 * torch.eye(4).double()) / (A @ A.mT).abs().sum(-1).max()
    got, expected = discretise._by_products(A), torch.linalg.matrix_exp(A)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(discretise._exponential(A), expected, rtol=1e-12, atol=1e-14)
