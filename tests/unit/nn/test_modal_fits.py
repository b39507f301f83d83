"""Fits of filters by small recurrences: exact where they are one, and never better than can be."""

import numpy as np
import pytest
import scipy.signal
import torch

from linrnn.errors import ArgumentError, ShapeError
from linrnn.nn import modal
from linrnn.nn.modal import STABLE, Modes, fit_modes, fit_orders, hankel_values

TIME = 96
#: Of channels of one order: all poles real, two pairs, a pair and two real ones.
POLES = [
    [0.95, 0.7, -0.5, 0.1],
    [0.9 * np.exp(0.4j), 0.9 * np.exp(-0.4j), 0.99 * np.exp(2j), 0.99 * np.exp(-2j)],
    [0.6 * np.exp(1j), 0.6 * np.exp(-1j), 0.8, -0.9],
]


def responses(time=TIME):
    """Impulse responses of rational filters, by SciPy."""
    impulse = np.zeros(time)
    impulse[0] = 1
    numerator = np.random.default_rng(0).standard_normal((len(POLES), 5))
    found = [
        scipy.signal.lfilter(b, np.poly(poles).real, impulse)
        for b, poles in zip(numerator, POLES, strict=True)
    ]
    return torch.from_numpy(np.stack(found))


def test_a_recurrence_is_found_again_and_goes_on_as_it_does():
    long = responses(4 * TIME)
    found = fit_modes(long[:, :TIME], 4)
    torch.testing.assert_close(found.kernel(4 * TIME), long, rtol=1e-8, atol=1e-9)
    for poles, known in zip(found.poles, POLES, strict=True):
        upper = sorted(
            (complex(p) for p in known if np.imag(p) >= 0), key=lambda p: (p.real, p.imag)
        )
        ours = sorted((complex(p) for p in poles if p != 0), key=lambda p: (p.real, p.imag))
        np.testing.assert_allclose(ours, upper, atol=1e-7)


def test_filtering_by_the_recurrence_is_filtering_by_the_kernel():
    found = fit_modes(responses(), 4)
    u, state, ys = torch.randn(3, 50, dtype=torch.float64), torch.zeros_like(found.poles), []
    for u_t in u.unbind(1):
        ys.append((found.residues * state).real.sum(1) + found.direct * u_t)
        state = found.poles * state + u_t[:, None]
    kernel = found.kernel(50)
    want = torch.stack([torch.from_numpy(np.convolve(a, b)[:50]) for a, b in zip(kernel, u)])  # noqa: B905
    torch.testing.assert_close(torch.stack(ys, 1), want, rtol=1e-10, atol=1e-10)


def test_errors_fall_with_the_order_and_not_below_the_singular_values():
    t = torch.arange(TIME, dtype=torch.float64)
    kernel = torch.stack([(-0.01 * (t - 20) ** 2).exp(), 1 / (1 + t)])  # no recurrence of any order
    values, before = hankel_values(kernel), torch.full((2,), float("inf"))
    for order in (2, 4, 8, 12):
        error = kernel - fit_modes(kernel, order).kernel(TIME)
        size = hankel_values(error)[:, 0]  # spectral norm
        assert (size >= values[:, order] * (1 - 1e-9)).all()
        assert (size < 0.5 * before).all()
        before = size
    assert (before < 1e-2 * values[:, 0]).all()


def test_several_orders_are_each_alone_and_none_is_below_its_floor():
    t = torch.arange(TIME, dtype=torch.float64)
    kernel = torch.cat([torch.stack([torch.sin(0.01 * t**2) * 0.99**t, 1 / (1 + t)]), responses()])
    orders = (2, 5, 12)
    for order, fit in zip(orders, fit_orders(kernel, orders), strict=True):
        alone = fit_modes(kernel, order)
        torch.testing.assert_close(fit.modes.kernel(TIME), alone.kernel(TIME))
        error = (fit.modes.kernel(TIME) - kernel).norm(dim=1) / kernel.norm(dim=1)
        values = hankel_values(kernel)
        assert (error >= fit.floor).all()
        torch.testing.assert_close(fit.singular, values[:, order] / values[:, 0])
        if order == 12:  # three channels are of order 4, and noise must not spoil them
            assert (error[2:] < 1e-9).all()
            assert (fit.floor[:2] > 0).all()


def crowded(modes, apart, time):
    """The response of so many pairs of poles whose angles are so far apart, at one modulus."""
    angle = apart * torch.arange(modes, dtype=torch.float64)[None]
    residues = torch.randn(
        1, modes, dtype=torch.complex128, generator=torch.Generator().manual_seed(0)
    )
    poles = torch.polar(torch.full_like(angle, 0.9995), angle)
    return Modes(poles, residues, torch.zeros(1, dtype=torch.float64)).kernel(time)


def test_a_recurrence_is_found_that_the_first_matrix_cannot_tell_apart():
    (fit,) = fit_orders(crowded(32, 0.006, 2048), [64])  # by 512 rows it is 0.05
    assert fit.error.item() < 1e-9


def test_slow_poles_are_found_in_more_numbers_than_the_widest_matrix_sees(monkeypatch):
    monkeypatch.setattr(modal, "WIDEST", 128)
    (fit,) = fit_orders(crowded(16, 0.024, 1024), [32], rows=64)  # by 128 rows it is 0.3
    assert fit.error.item() < 1e-9


def test_error_and_floor_are_those_of_the_whole_filter():
    t = torch.arange(400, dtype=torch.float64)
    kernel = (0.99**t * torch.cos(0.3 * t))[None]
    kernel[0, 200:240] += torch.randn(
        40, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    (fit,) = fit_orders(kernel, [2], rows=16)  # 32 numbers are a recurrence of order 2
    error = (fit.modes.kernel(400) - kernel).norm(dim=1) / kernel.norm(dim=1)
    torch.testing.assert_close(fit.error, error)
    assert 0.1 < fit.floor.item() < fit.error.item()


def test_a_kernel_that_has_not_faded_where_it_ends_is_met_by_one_that_fades():
    t = torch.arange(TIME, dtype=torch.float64)
    kernel = (torch.sin(0.01 * t**2) * torch.exp(-t / 60))[None]
    found = fit_modes(kernel, 40)
    assert (found.kernel(TIME) - kernel).norm() < 0.05 * kernel.norm()  # 0.19 by moved poles
    assert found.poles.abs().max() <= STABLE * (1 + 1e-12)


def test_an_order_of_which_the_rest_is_noise_does_no_harm():
    t = torch.arange(TIME, dtype=torch.float64)
    kernel = (torch.cos(0.3 * t) * (1 + 0.02 * t) + torch.sin(0.05 * t**1.5))[None]
    few, many = ((fit_modes(kernel, n).kernel(TIME) - kernel).norm() for n in (32, 44))
    assert many < 1.05 * few


def test_a_delay_of_one_step_is_a_mode_at_nothing():
    kernel = torch.zeros(2, 20)
    kernel[0, 1] = kernel[1, 0] = 3
    found = fit_modes(kernel, 2)
    torch.testing.assert_close(found.kernel(20), kernel.double())
    assert found.poles.shape == (2, 1)


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_the_first_numbers_of_a_filter(length):
    found = fit_modes(responses(), 4)
    torch.testing.assert_close(found.kernel(length), found.kernel(TIME)[:, :length])


def test_modes_that_are_added_change_nothing():
    found = fit_modes(responses(), 4)
    more = found.padded(found.poles.shape[1] + 3)
    assert more.poles.shape == more.residues.shape == (3, found.poles.shape[1] + 3)
    torch.testing.assert_close(more.kernel(TIME), found.kernel(TIME))


def test_what_grows_is_moved_into_the_circle():
    kernel = 1.05 ** torch.arange(40, dtype=torch.float64)[None]
    assert fit_modes(kernel, 1).poles.abs().max() <= STABLE * (1 + 1e-12)


def test_a_filter_of_zeros_and_of_one_tap():
    kernel = torch.zeros(2, 20)
    kernel[1, 0] = 2
    torch.testing.assert_close(fit_modes(kernel, 3).kernel(20), kernel.double())


@pytest.mark.unchecked
def test_errors():
    kernel = torch.randn(2, 9)
    with pytest.raises(ArgumentError, match=r"order must be at most the 4 rows .*, got 5"):
        fit_modes(kernel, 5)
    with pytest.raises(ArgumentError, match="order must be an integer of at least 1, got 0"):
        fit_modes(kernel, 0)
    with pytest.raises(ArgumentError, match="at least three numbers a channel, got 2"):
        fit_modes(kernel[:, :2], 1)
    with pytest.raises(ArgumentError, match="kernel must be finite"):
        fit_modes(kernel / 0, 1)
    with pytest.raises(ShapeError, match="kernel must have shape"):
        fit_modes(kernel[0], 1)
