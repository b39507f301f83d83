"""HiPPO and initial eigenvalues against quadrature and published numbers."""

from math import pi

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import eval_genlaguerre, eval_legendre
from scipy.stats import kstest

from linrnn.errors import ArgumentError, LinrnnError
from linrnn.nn.discretise import dense
from linrnn.nn.hippo import (
    POLYNOMIALS,
    check_dt,
    check_pairs,
    draw_log_dt,
    hippo,
    hippo_legs,
    hippo_normal,
    initial_eigenvalues,
    nplr,
)

LEGS_KERNELS = {  # size 4, dt = 0.1, C = (1, 1, 1, 1)
    "bilinear": [0.5470521977, 0.2234393675, 0.0639939291, -0.0045994186],
    "zoh": [0.5299328699, 0.2212216587, 0.0676814342, 0.0005733328],
}


@pytest.mark.parametrize("method", LEGS_KERNELS)
def test_hippo_legs_has_the_published_kernel(method):
    step, into = dense(*hippo_legs(4), 0.1, method)
    kernel = [float((torch.linalg.matrix_power(step, k) @ into).sum()) for k in range(4)]
    np.testing.assert_allclose(kernel, LEGS_KERNELS[method], atol=1e-10)


def test_legendre_memory_has_the_published_steps():
    """The LMU's coordinates are ``(-1)^n sqrt(2n+1)`` times those of LegT."""
    step, into = (x.numpy() for x in dense(*hippo("legt", 3, theta=4.0), 1.0))
    scale = np.array([1, -(3**0.5), 5**0.5])
    expected = [
        [0.7633232082, -0.2053030867, -0.0647040050],
        [0.6159092601, 0.2121179532, -0.2784714641],
        [-0.3235200252, 0.4641191068, 0.1670693921],
    ]
    np.testing.assert_allclose(scale[:, None] * step / scale, expected, atol=1e-10)
    np.testing.assert_allclose(
        scale * into, [0.2366767918, -0.6159092601, 0.3235200252], atol=1e-10
    )


def signal(s):
    """Any smooth one; of degree 3 as a whole, so that four coefficients hold all of it."""
    return 1 - 0.7 * s + 0.4 * s**2 - 0.05 * s**3


def weight(measure, n, t, s, theta=1.0, alpha=0.0, beta=1.0):
    """The weight of the past at s in coefficient n at t."""
    if measure == "lagt":
        return np.exp(-(1 + beta) / 2 * (t - s)) * eval_genlaguerre(n, alpha, t - s)
    length = t if measure == "legs" else theta
    return (2 * n + 1) ** 0.5 * eval_legendre(n, 2 * (s - t + length) / length - 1) / length


def coefficients(measure, t, **options):
    """The integrals themselves, of the past of `signal` before t; without one before 0."""
    start = t - options["theta"] if measure == "legt" else 0
    return np.array(
        [
            quad(lambda s, n=n: signal(s) * weight(measure, n, t, s, **options), start, t)[0]
            for n in range(4)
        ]
    )


@pytest.mark.parametrize(
    ("measure", "options"),
    [
        ("legs", {}),
        ("legt", {"theta": 1.5}),
        ("lagt", {}),
        ("lagt", {"alpha": 0.5, "beta": 0.3}),
        ("lagt", {"alpha": -0.5, "beta": 2.0}),
    ],
)
def test_coefficients_of_the_definition_obey_the_differential_equation(measure, options):
    """Their derivative, by central differences, is ``A c + B f``: LegT's too, of a cubic."""
    t, h = 2.3, 1e-3
    A, B = (x.numpy() for x in hippo(measure, 4, **options))
    assert A.dtype == B.dtype == np.float64
    at = {k: coefficients(measure, t + k * h, **options) for k in (-2, -1, 0, 1, 2)}
    slope = (8 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12 * h)
    expected = A @ at[0] + B * signal(t)
    np.testing.assert_allclose(slope * (t if measure == "legs" else 1), expected, atol=1e-9)


CASES = [(measure, size) for measure in POLYNOMIALS for size in (1, 2, 7, 64)]


@pytest.mark.parametrize(("measure", "size"), [*CASES, ("fout", 2), ("fout", 6), ("fout", 64)])
def test_normal_plus_low_rank_is_the_matrix(measure, size):
    options = {"legt": {"theta": 3.0}, "lagt": {"alpha": 0.3, "beta": 0.4}, "fout": {"theta": 3.0}}
    options = options.get(measure, {})
    A, B = hippo(measure, size, **options)
    form = nplr(measure, size, **options)
    assert form.P.shape == (2 if measure == "legt" else 1, size)
    eye, tight = torch.eye(size, dtype=form.V.dtype), {"rtol": 0, "atol": 1e-11 * size}
    torch.testing.assert_close(form.V.mH @ form.V, eye, **tight)
    middle = torch.diag(form.Lambda) - form.P.T @ form.P.conj()
    torch.testing.assert_close(form.V @ middle @ form.V.mH, A.to(eye.dtype), **tight)
    torch.testing.assert_close(form.V @ form.B, B.to(eye.dtype), **tight)
    for x in form:  # conjugates mirror each other
        torch.testing.assert_close(x.flip(-1).conj().resolve_conj(), x, **tight)
    rises = form.Lambda.imag.diff()
    if measure == "fout":  # but for the pair that does not turn
        assert rises[size // 2 - 1] == 0
        rises[size // 2 - 1] = 1
    assert (rises > 0).all()
    assert form.B.imag.abs().max() < 1e-11 * size
    assert form.B.real.min() > -1e-11 * size


def test_fourier_coefficients_obey_the_differential_equation():
    """A signal that repeats with the window, so that its end is the value of the series."""
    theta, t, h, w = 1.5, 2.3, 1e-3, 2 * pi / 1.5

    def periodic(s):
        return 0.7 + np.cos(w * s + 0.4) - 0.3 * np.sin(2 * w * s)

    def at(t):
        waves = [lambda d: 1, lambda d: 0]
        for k in (1, 2):
            waves.append(lambda d, k=k: 2**0.5 * np.cos(k * w * d))
            waves.append(lambda d, k=k: 2**0.5 * np.sin(k * w * d))
        return np.array(
            [quad(lambda s, g=g: periodic(s) * g(t - s) / theta, t - theta, t)[0] for g in waves]
        )

    A, B = (x.numpy() for x in hippo("fout", 6, theta=theta))
    slope = (8 * (at(t + h) - at(t - h)) - (at(t + 2 * h) - at(t - 2 * h))) / (12 * h)
    np.testing.assert_allclose(slope, A @ at(t) + B * periodic(t), atol=1e-8)


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


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("measure", "options", "text"),
    [
        ("fourier", {}, r"hippo measure"),
        ("legt", {"theta": 0.0}, r"hippo: theta must be positive and finite, got 0.0. theta=1"),
        ("lagt", {"alpha": -1.0}, r"hippo: 1 \+ alpha must be positive"),
        ("lagt", {"beta": float("inf")}, r"hippo: beta must be at least 0 and finite, got inf"),
    ],
)
def test_measure_must_be_known_and_its_numbers_positive(measure, options, text):
    with pytest.raises(LinrnnError, match=text):
        nplr(measure, 4, **options)
