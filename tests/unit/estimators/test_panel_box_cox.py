"""The Box-Cox transform of `PanelForecaster`, beside that of SciPy."""

import numpy as np
import pytest
from scipy import stats

from linrnn.estimators._panel.batch import Batch
from linrnn.estimators._panel.box_cox import inverse, likeliest, log_likelihood, transformed
from linrnn.estimators._panel.contestants import BOX_COX, forecasts

POWERS = (0.0, 0.05, 0.5, 1.0)
NORMAL = np.random.default_rng(0).normal(size=400)


def batch(*rows):
    n = np.array([len(row) for row in rows])
    y = np.zeros((len(rows), n.max()))
    for k, row in enumerate(rows):
        y[k, : len(row)] = row
    return Batch(y, n)


@pytest.mark.parametrize("power", POWERS)
def test_transform_and_inverse_are_those_of_scipy(power):
    y = np.exp(NORMAL[:50])
    rows, powers = batch(y, y[:20]), np.array([power, 1.0])
    moved = transformed(rows, powers)
    np.testing.assert_allclose(moved.y[0], stats.boxcox(y, lmbda=power), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(moved.y[1, :20], y[:20] - 1)
    assert (moved.y[1, 20:] == 0).all()
    np.testing.assert_allclose(inverse(moved.y, powers)[0], y, rtol=1e-9)


@pytest.mark.parametrize("power", POWERS)
def test_the_likelihood_of_values_is_that_of_scipy(power):
    y = np.exp(0.5 * NORMAL[:60])
    ours = log_likelihood(batch(y, y[:30]), power, 0)
    expected = [stats.boxcox_llf(power, y), stats.boxcox_llf(power, y[:30])]
    np.testing.assert_allclose(ours, expected, rtol=1e-9)


@pytest.mark.parametrize(("power", "season"), [(0.0, 1), (0.5, 1), (1.0, 1), (0.0, 4), (0.5, 4)])
def test_the_power_that_made_a_walk_is_found(power, season):
    """Levels move far enough for their changes to tell."""
    step = {0.0: 0.05, 0.5: 0.3, 1.0: 1.0}[power]
    z = {0.0: 1.0, 0.5: 12.0, 1.0: 60.0}[power] + step * (0.5 + NORMAL).cumsum() / 2
    z = z + 0.2 * step * np.tile([1.0, -1.0, 2.0, -2.0], 100)
    y = np.exp(z) if power == 0 else (power * z + 1) ** (1 / power)
    assert abs(likeliest(batch(y), season)[0] - power) < 0.25


def test_the_power_does_not_depend_on_the_unit_and_short_rows_have_none():
    y = np.exp(NORMAL.cumsum() * 0.05)
    powers = likeliest(batch(y, 1e5 * y, y[:4], np.full(9, 3.0)), 1)
    assert powers[0] == powers[1] < 0.3
    assert powers[2] == powers[3] == 1.0


def test_values_below_the_range_are_zero():
    np.testing.assert_allclose(inverse(np.array([[-5.0, 0.0]]), np.array([0.5])), [[0.0, 1.0]])


def test_growth_goes_on_at_its_own_shape():
    """A line through square roots, which logarithms overshoot and a straight line misses."""
    steps = np.arange(40.0)
    y = (2 + 0.2 * steps + 0.05 * NORMAL[:40]) ** 2
    rows = batch(y[:32], -y[:32])
    ahead = forecasts(rows, 1, 8, np.arange(2), only=frozenset({BOX_COX, "drift", "log drift"}))
    errors = {name: np.abs(values[0] - y[32:]).mean() for name, values in ahead.items()}
    assert errors[BOX_COX] < 0.6 * min(errors["drift"], errors["log drift"])
    assert np.isnan(ahead[BOX_COX][1]).all()
