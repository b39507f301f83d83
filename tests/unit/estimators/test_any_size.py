"""Numbers of any size and place are learned as those around 0 are, and nothing is warned of."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from linrnn import (
    RecurrentClassifier,
    RecurrentDetector,
    RecurrentForecaster,
    RecurrentImputer,
    RecurrentRegressor,
)
from linrnn.errors import ArgumentError
from linrnn.estimators._ridge import choose_ridge

SIZES = [2.0**1000, 2.0**500, 2.0**130, 2.0**-130, 2.0**-500, 2.0**-1000]
BANK = {"n_modes": 50, "random_state": 0}
TRAINED = {"d_model": 8, "n_layers": 1, "max_steps": 20, "learning_rate": 0.01, "random_state": 0}


MODELS = [pytest.param(BANK, id="bank"), pytest.param(TRAINED | {"mixer": "lru"}, id="lru")]


@pytest.fixture(autouse=True)
def _nothing_is_warned_of():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=RuntimeWarning)
        yield


def waves(count=24):
    random = np.random.default_rng(0)
    kind = np.arange(count) % 2
    return np.sin(np.arange(30) / (2 + kind[:, None])) + 0.1 * random.normal(size=(count, 30)), kind


def channels():
    """Two, as (series, time, channels)."""
    X, y = waves()
    return np.stack([X, np.roll(X, 3, 1) + 1], 2), y


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("options", MODELS)
def test_series_of_any_size(options, size):
    pytest.importorskip("lightning")
    X, y = channels()
    expected = RecurrentClassifier(**options).fit(X, y).decision_function(X)
    model = RecurrentClassifier(**options).fit(X * [1, size], y)
    np.testing.assert_allclose(
        model.decision_function(X * [1, size]), expected, rtol=1e-3, atol=1e-4
    )


def table(moving=2):
    """Some channels that move, and one that does not; (time, channels), with no gap."""
    t = np.arange(160.0)
    wave = np.round(20 * np.sin(t / 3) + 3 * np.cos(t**2))
    moves = [wave, 2 * wave[::-1]][:moving]
    return np.stack([*moves, np.full(160, 7.0)], 1)


ALSO = [*SIZES, 1e20, 1e-20]
"""Numbers that round, too: the mean of equal ones is not quite one of them."""


@pytest.mark.parametrize("size", ALSO)
@pytest.mark.parametrize("whole", [True, False], ids=["all", "what moves not"])
def test_gaps_of_any_size(whole, size):
    gaps, sizes = table(), np.array([size if whole else 1, size if whole else 1, size])
    gaps[30:40, 0] = gaps[100:103, 1] = gaps[50:55, 2] = np.nan
    expected = RecurrentImputer(n_modes=12).fit_transform(gaps)
    filled = RecurrentImputer(n_modes=12).fit_transform(gaps * sizes) / sizes
    np.testing.assert_allclose(filled, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", ALSO)
@pytest.mark.parametrize("whole", [True, False], ids=["all", "what moves not"])
def test_surprises_of_any_size(whole, size):
    steps, sizes = table(1), np.array([size if whole else 1, size])
    expected = RecurrentDetector(n_modes=8, memory=40, random_state=0).fit(steps)
    expected = expected.score_samples(steps)
    detector = RecurrentDetector(n_modes=8, memory=40, random_state=0).fit(steps * sizes)
    scores = detector.score_samples(steps * sizes)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("place", [1e6, 1e8, 1e12, -1e8])
@pytest.mark.parametrize("options", MODELS)
def test_series_anywhere(options, place):
    pytest.importorskip("lightning")
    X, y = waves()
    X = np.round(X * 2**10) / 2**10  # as exact there as here
    expected = RecurrentClassifier(**options).fit(X, y).decision_function(X)
    model = RecurrentClassifier(**options).fit(X + place, y)
    found = model.decision_function(X + place)
    np.testing.assert_allclose(found, expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("options", MODELS)
def test_numbers_of_any_size(options, size):
    pytest.importorskip("lightning")
    X, y = waves()
    expected = RecurrentRegressor(**options).fit(X, y + 0.5).predict(X)
    found = RecurrentRegressor(**options).fit(X, (y + 0.5) * size).predict(X)
    np.testing.assert_allclose(found / size, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("season", [12, None])
def test_forecasts_of_any_size(season, size):
    y = np.sin(np.arange(200) * 2 * np.pi / 12)
    y = np.stack([y, 1 + np.roll(y, 2)], 1)
    options = {"horizon": 3, "season": season, "n_modes": 16}
    expected = RecurrentForecaster(**options).fit(y)
    found = RecurrentForecaster(**options).fit(y * [1, size])
    np.testing.assert_array_equal(found.predict() / [1, size], expected.predict())
    np.testing.assert_array_equal(
        found.predict_interval() / np.array([1, size])[:, None], expected.predict_interval()
    )


@pytest.mark.parametrize("value", [0.0, 0.1, 1e8, 1e200])
@pytest.mark.parametrize("options", MODELS)
def test_a_constant_says_nothing(options, value):
    pytest.importorskip("lightning")
    y = np.arange(24) % 2
    X = np.full((24, 30), value)
    model = RecurrentClassifier(**options).fit(X, y)
    assert len(np.unique(model.decision_function(X))) == 1
    np.testing.assert_allclose(model.predict_proba(X), 0.5, atol=0.1)


@pytest.mark.parametrize("features", [1, 3])
def test_leave_one_out_of_few_features_is_leaving_one_out(features):
    random = np.random.default_rng(0)
    x = random.normal(size=(12, features))
    x, y = x - x.mean(0), random.normal(size=(12, 2))
    others = [np.arange(12) != k for k in range(12)]
    for alpha in (1e-2, 10.0):
        expected = [Ridge(alpha).fit(x[o], y[o]).predict(x[~o])[0] for o in others]
        np.testing.assert_allclose(choose_ridge(x, y, [alpha]).left_out, expected, rtol=1e-6)


@pytest.mark.parametrize("mixer", ["lru", "gru", "mamba"])
def test_the_default_dtype_changes_nothing(mixer):
    pytest.importorskip("lightning")
    X, y = waves()
    expected = RecurrentClassifier(**TRAINED, mixer=mixer).fit(X, y)
    torch.set_default_dtype(torch.float64)
    try:
        found = RecurrentClassifier(**TRAINED, mixer=mixer).fit(X, y)
        np.testing.assert_array_equal(found.decision_function(X), expected.decision_function(X))
    finally:
        torch.set_default_dtype(torch.float32)
    np.testing.assert_array_equal(found.decision_function(X), expected.decision_function(X))


@pytest.mark.unchecked
def test_what_cannot_be_meant_is_named():
    X, y = waves()
    with pytest.raises(ArgumentError, match="mixer_options must be None with mixer='bank'"):
        RecurrentClassifier(**BANK, mixer_options={"foo": 1}).fit(X, y)
    model = RecurrentClassifier(**BANK).fit(X, y)
    with pytest.raises(ArgumentError, match=r"x must lie within 1e\+30 standard deviations"):
        model.predict(X * 1e200)
