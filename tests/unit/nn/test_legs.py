"""Steps of HiPPO-LegS against the dense rules, SciPy's polynomials and integrals."""

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import eval_legendre

from linrnn.nn.discretise import dense
from linrnn.nn.hippo import hippo
from linrnn.nn.legs import LEGS_RULES, legendre, legs_matrices, legs_step

K = torch.tensor([1, 2, 3, 17, 1000, 10**7])


@pytest.mark.parametrize("size", [1, 2, 9, 64])
@pytest.mark.parametrize("rule", LEGS_RULES)
def test_matrices_are_the_rules_of_dense_systems(size, rule):
    """Whose products with matrices of size N^2 lose some digits: those of zoh are held to less."""
    A, B = hippo("legs", size)
    step = torch.log1p(1 / K.double()) if rule == "zoh" else 1 / K.double()
    a, b = legs_matrices(size, K, rule)
    expected = dense(A, B, step, rule)
    torch.testing.assert_close(a, expected[0], rtol=0, atol=1e-11)
    torch.testing.assert_close(b, expected[1], rtol=0, atol=1e-11)


@pytest.mark.parametrize("size", [1, 2, 5, 64])
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_step_without_a_matrix_is_the_step(size, dtype, atol):
    torch.manual_seed(0)
    c, f = torch.randn(6, 3, size, dtype=dtype), torch.randn(6, 3, dtype=dtype)
    a, b = legs_matrices(size, K, "bilinear")
    expected = c.double() @ a.mT + f.double()[..., None] * b[:, None]
    got = legs_step(c, f, K[:, None])
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("rule", LEGS_RULES)
def test_first_step_sets_the_memory_to_a_constant(rule):
    k = torch.tensor([0, 5])
    a, b = legs_matrices(4, k, rule)
    assert torch.equal(a[0], torch.zeros(4, 4, dtype=torch.float64))
    torch.testing.assert_close(b[0], torch.eye(4, dtype=torch.float64)[0], rtol=0, atol=1e-15)
    got = legs_step(torch.full((2, 4), float("nan")), torch.tensor([3.0, 1.0]), k)
    assert got[0].tolist() == [3.0, 0.0, 0.0, 0.0]


def read(signal, size, rule):
    c = torch.zeros(size, dtype=torch.float64)
    a, b = legs_matrices(size, torch.arange(len(signal)), rule)
    for k, f in enumerate(signal):
        c = a[k] @ c + b[k] * f
    return c


@pytest.mark.parametrize("rule", LEGS_RULES)
def test_a_constant_and_a_ramp_have_the_published_coefficients(rule):
    """For forward Euler |c| passes through 1e9; here it never exceeds that of the signal."""
    s = torch.arange(4000, dtype=torch.float64) / 4000
    one = read(torch.ones(500), 16, rule)
    torch.testing.assert_close(one, torch.eye(16).double()[0], rtol=0, atol=1e-12)
    expected = torch.zeros(16).double()
    expected[0], expected[1] = 1 / 2, 1 / (2 * 3**0.5)
    torch.testing.assert_close(read(s, 16, rule), expected, rtol=0, atol=1e-3)


def polynomial(x, n):
    return (2 * n + 1) ** 0.5 * eval_legendre(n, 2 * x - 1)


def test_zoh_is_the_projection_of_a_staircase():
    """Exactly: each coefficient is the integral over the function that is constant on each step."""
    torch.manual_seed(0)
    stairs = torch.randn(12, dtype=torch.float64)
    got = read(stairs, 5, "zoh")
    for n in range(5):
        parts = [quad(polynomial, k / 12, (k + 1) / 12, (n,))[0] for k in range(12)]
        assert float(got[n]) == pytest.approx(float(stairs.numpy() @ parts), rel=1e-12)


def test_polynomials_are_those_of_scipy():
    x = np.linspace(0, 1, 33)
    expected = [polynomial(x, n) for n in range(100)]
    got = legendre(100, torch.from_numpy(x))
    np.testing.assert_allclose(got.numpy(), np.stack(expected, -1), atol=1e-12)
    assert legendre(1, torch.from_numpy(x)).shape == (33, 1)
