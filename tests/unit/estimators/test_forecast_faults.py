"""Long inputs cannot spoil a forecaster: faults, jumps, growth without end."""

import pickle

import numpy as np
import pytest

from linrnn import RecurrentForecaster
from linrnn.errors import ArgumentError, LinrnnError

# some of what follows is a change that a forecaster says so of
pytestmark = pytest.mark.filterwarnings("ignore::linrnn.errors.DriftWarning")
FAULTS = [1e2, 1e4, -1e8, 1e30, 1e300, -1e299]


def wave(n, seed=0):
    noise = 0.1 * np.random.default_rng(seed).standard_normal(n)
    return np.sin(2 * np.pi * np.arange(n) / 12) + noise


def fitted(**options):
    options = {"horizon": 4, "season": 12, "n_modes": 48} | options
    return RecurrentForecaster(**options).fit(wave(300)[:240])


@pytest.mark.parametrize("horizon", [1, 2])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("n", [10 + 3, 60])
def test_one_step_ahead_is_forecast(horizon, channels, n):
    y = wave(n * channels).reshape(n, channels)
    forecaster = RecurrentForecaster(horizon, validation=horizon, n_modes=8).fit(y)
    assert forecaster.predict().shape == (horizon, channels)
    assert np.isfinite(forecaster.update(y[:1]).predict(3)).all()


def test_an_empty_update_changes_nothing():
    forecaster = fitted()
    before = forecaster.predict()
    np.testing.assert_array_equal(forecaster.update(wave(9)[:0]).predict(), before)
    np.testing.assert_array_equal(forecaster.update(np.empty((0, 1))).predict(), before)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_over_once_it_has_passed(fault):
    """The forecasts of two seasons later are as good as if it had never been read."""
    y = wave(300)
    spoilt, clean = fitted(), fitted()
    spoilt.update([fault])
    assert np.isfinite(spoilt.predict()).all()
    assert np.isfinite(spoilt.predict_interval(coverage=0.5)).all()
    clean.update(y[240:241])
    for forecaster in (spoilt, clean):
        forecaster.update(y[241:290])
    errors = [np.abs(f.predict() - y[290:294]).mean() for f in (spoilt, clean)]
    assert errors[0] < 2 * errors[1] + 0.1
    assert spoilt.bounded_.tolist() == [2]
    assert clean.bounded_.tolist() == [0]
    assert spoilt.backtest(y[290:])["forecast"].mse < 0.2


def test_faults_again_and_again_leave_a_forecaster_alive():
    rng = np.random.default_rng(1)
    y, forecaster = wave(2240), fitted()
    heard = y.copy()
    places = rng.choice(np.arange(240, 1900), 60, replace=False)
    heard[places] = rng.choice(FAULTS, 60)
    for k in range(240, 2000, 40):
        forecaster.update(heard[k : k + 40])
        assert np.isfinite(forecaster.predict()).all()
    assert np.abs(forecaster.predict() - y[2000:2004]).mean() < 0.5


def test_a_stretch_of_garbage_is_outweighed():
    """Sums that it filled would drown what comes later, were a row of it not counted as smaller."""
    y, forecaster = wave(1000), fitted(n_modes=12)
    y[260:340] = np.random.default_rng(2).choice([-1e7, 1e7], 80)
    forecaster.update(y[240:996])
    assert np.abs(forecaster.predict() - y[996:]).mean() < 0.5


def test_updates_with_faults_are_the_same_however_cut():
    y = wave(400)
    y[[250, 300, 301, 302]] = 1e6, -50, 1e9, 50
    y[310:] += 40  # and a level that stays
    whole, pieces = fitted().update(y[240:]), fitted()
    for part in np.split(y[240:], [3, 11, 12, 61, 62, 63, 100]):
        pieces.update(part)
    np.testing.assert_allclose(pieces.predict(), whole.predict(), rtol=1e-7)
    band = [f.predict_interval(coverage=0.5) for f in (pieces, whole)]
    np.testing.assert_allclose(*band, rtol=1e-7)
    np.testing.assert_array_equal(pieces.bounded_, whole.bounded_)
    assert np.abs(whole.predict() - 40).max() < 3


def test_a_level_that_moved_for_good_is_followed():
    y, forecaster = wave(700), fitted()
    y[260:] += 1000
    forecaster.update(y[240:600])
    assert np.abs(forecaster.predict() - y[600:604]).mean() < 0.6


@pytest.mark.parametrize(
    "series", [np.exp(np.arange(700) / 5), 1.15 ** np.arange(900), 1.0 / 1.15 ** np.arange(900)]
)
@pytest.mark.parametrize("horizon", [1, 12])
def test_growth_without_end_is_fitted_and_followed(series, horizon):
    n = len(series) - 200
    forecaster = RecurrentForecaster(horizon, season=1).fit(series[:n])
    close = {"atol": 1e-12 * series[0]}
    np.testing.assert_allclose(forecaster.predict(), series[n : n + horizon], rtol=0.3, **close)
    found = forecaster.update(series[n : n + 150]).predict()
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, series[n + 150 : n + 150 + horizon], rtol=0.9, **close)


def test_an_update_is_taken_back():
    forecaster = fitted().update(wave(300)[240:250])
    before = pickle.dumps(forecaster._follower.forecast(4).numpy())
    band = forecaster.predict_interval(coverage=0.5)
    forecaster.update([1e8]).undo()
    assert pickle.dumps(forecaster._follower.forecast(4).numpy()) == before
    np.testing.assert_array_equal(forecaster.predict_interval(coverage=0.5), band)
    with pytest.raises(ArgumentError, match="update to take back"):
        forecaster.undo()
    with pytest.raises(ArgumentError, match="update to take back"):
        fitted().undo()


@pytest.mark.parametrize(
    "values", [[np.nan], [1e303], [np.inf], ["a"], [[1.0, 2.0]], [None], [1.0, -np.inf]]
)
def test_an_update_that_is_refused_changes_nothing(values):
    forecaster = fitted()
    before = forecaster.predict()
    with pytest.raises(LinrnnError):
        forecaster.update(values)
    np.testing.assert_array_equal(forecaster.predict(), before)
    np.testing.assert_array_equal(forecaster.update(wave(2)).undo().predict(), before)


@pytest.mark.parametrize(
    ("options", "y"),
    [
        ({"every": 500}, 100 * wave(300)),
        ({"horizon": 200}, 100 * wave(300)),
        ({"n_modes": 0}, wave(300)),
        ({}, np.full(300, np.inf)),
    ],
)
def test_a_fit_that_is_refused_changes_nothing(options, y):
    forecaster = fitted()
    before = forecaster.predict(), forecaster.predict_interval(coverage=0.5)
    kept = {name: forecaster.get_params()[name] for name in options}
    with pytest.raises(LinrnnError):
        forecaster.set_params(**options).fit(y)
    forecaster.set_params(**kept)
    np.testing.assert_array_equal(forecaster.predict(), before[0])
    np.testing.assert_array_equal(forecaster.predict_interval(coverage=0.5), before[1])
