"""`RecurrentDetector`, as users of scikit-learn and of streams use it."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from linrnn import RecurrentDetector
from linrnn.errors import ArgumentError, ShapeError

IN_TIME = "rows are steps of one series, so their order says something"
LEFT_OUT = {
    "check_methods_sample_order_invariance": IN_TIME,
    "check_methods_subset_invariance": IN_TIME,
}


@parametrize_with_checks([RecurrentDetector(n_modes=4)], expected_failed_checks=lambda _: LEFT_OUT)
def test_it_is_an_outlier_detector_of_scikit_learn(estimator, check):
    check(estimator)


def beats(steps=1500, seed=0):
    """A wave of 25 steps with some noise."""
    random = np.random.default_rng(seed)
    return np.sin(2 * np.pi * np.arange(steps) / 25) + 0.1 * random.normal(size=steps)


def test_a_spike_a_faster_wave_and_a_shift_are_found():
    y = beats()
    y[1000] += 2
    y[1200:1240] = np.sin(2 * np.pi * np.arange(40) / 8)
    y[1400:] += 3
    detector = RecurrentDetector(false_alarms=0.01).fit(y[:800, None])
    scores = np.array([detector.update(value) for value in y[800:]])
    alarms = set(800 + np.flatnonzero(scores < detector.offset_))
    assert 1000 in alarms
    assert alarms & set(range(1200, 1250))
    assert 1400 in alarms
    assert len([a for a in alarms if a < 1000]) <= 6


def load(steps, seed):
    """Requests by five minutes: a day of two waves, with noise of 3."""
    random = np.random.default_rng(seed)
    day = 2 * np.pi * np.arange(steps) / 288
    return 100 + 40 * np.sin(day) + 15 * np.sin(2 * day + 1) + 3 * random.normal(size=steps)


@pytest.mark.parametrize("fault", ["none", "spike", "outage", "change of level"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_fault_does_not_hide_the_next(fault, seed):
    """A spike of 16 deviations, half a day after another fault."""
    y = load(288 * 10, seed)
    at = 288 * 8 + 50
    if fault == "spike":
        y[at] += 150
    elif fault == "outage":
        y[at : at + 30] = 0
    elif fault == "change of level":
        y[at:] += 60
    y[at + 144] += 48
    detector = RecurrentDetector().fit(y[: 288 * 7, None])
    scores = np.array([detector.update(value) for value in y[288 * 7 :]])
    after = at + 144 - 288 * 7
    assert scores[after] < detector.offset_
    usual = np.delete(scores, np.r_[at - 288 * 7 : at - 288 * 7 + 40, after : after + 10])
    assert (usual < detector.offset_).sum() <= 6


def test_a_level_that_changed_for_good_becomes_usual():
    y = load(288 * 10, 0)
    y[288 * 8 :] += 100
    detector = RecurrentDetector().fit(y[: 288 * 7, None])
    scores = np.array([detector.update(value) for value in y[288 * 7 :]])
    assert scores[288] < detector.offset_
    assert (scores[288 + 200 :] < detector.offset_).sum() <= 3


def test_forecasts_are_learned_from_a_series_that_begins_with_equal_values():
    """A wave is only strange where it stops, so its forecast must have been learned."""
    y = beats(1500)
    y[:3] = y[0]
    y[1200:1206] = y[1200]
    detector = RecurrentDetector(false_alarms=0.01).fit(y[:1000, None])
    assert np.abs(detector._channels[0].weight).max() > 0
    scores = np.array([detector.update(value) for value in y[1000:]])
    assert scores[200:210].min() < detector.offset_


@pytest.mark.parametrize("rate", [0.003, 0.02])
@pytest.mark.parametrize("heavy", [False, True])
def test_usual_steps_are_called_outliers_as_often_as_was_said(rate, heavy):
    random = np.random.default_rng(0)
    noise = random.standard_t(3, 8000) if heavy else random.normal(size=8000)
    y = noise + 3 * np.sin(np.arange(8000) / 4)
    detector = RecurrentDetector(false_alarms=rate, n_modes=12).fit(y[:3000, None])
    share = (detector.predict(y[3000:, None]) == -1).mean()
    assert 0.3 * rate < share < 2.5 * rate


def test_a_stream_and_a_series_have_the_same_scores():
    y, more = beats(400), beats(100, seed=1)
    detector = RecurrentDetector().fit(y[:, None])
    before = pickle.dumps(detector)
    scores = detector.score_samples(more[:, None])
    assert pickle.dumps(detector) == before
    for channel in detector._channels:
        channel.restart()
    np.testing.assert_array_equal([detector.update(value) for value in more], scores)


def test_what_the_numbers_are_measured_in_does_not_matter():
    y = np.stack([beats(500), beats(500, seed=1)], 1)
    plain = RecurrentDetector().fit(y[:400]).score_samples(y[400:])
    units = RecurrentDetector().fit(1e9 * y[:400] + 1e3).score_samples(1e9 * y[400:] + 1e3)
    np.testing.assert_allclose(units, plain, rtol=1e-4)


def test_it_beats_a_forest_on_windows_where_time_says_what_is_odd():
    """A wave that stops for a moment at a value it often has."""
    y = beats(3000)
    wrong = np.zeros(3000, bool)
    for start in range(1600, 2900, 150):
        wrong[start : start + 6] = True
        y[start : start + 6] = y[start]
    windows = np.lib.stride_tricks.sliding_window_view(np.r_[np.full(15, y[0]), y], 16)
    forest = IsolationForest(random_state=0).fit(windows[:1500])
    detector = RecurrentDetector().fit(y[:1500, None])
    scores = [detector.update(value) for value in y[1500:]]
    ours = roc_auc_score(wrong[1500:], -np.array(scores))
    assert ours > roc_auc_score(wrong[1500:], -forest.score_samples(windows[1500:])) + 0.05
    assert ours > 0.75


def test_missing_values_are_passed_over():
    y = beats(600)
    y[::7] = np.nan
    detector = RecurrentDetector().fit(y[:400, None])
    scores = np.array([detector.update(value) for value in y[400:]])
    assert (scores[np.isnan(y[400:])] == 0).all()
    assert (scores < np.log10(0.01)).mean() < 0.05
    constant = RecurrentDetector().fit(np.ones((50, 1)))
    assert constant.update(1.0) == 0
    assert constant.update(2.0) < -1


def test_an_interrupted_fit_changes_nothing():
    detector = RecurrentDetector().fit(beats(200)[:, None])
    before = dict(vars(detector))
    with pytest.raises(ValueError, match="minimum of 8"):
        detector.fit(np.ones((3, 1)))
    assert vars(detector) == before


@pytest.mark.unchecked
def test_wrong_use_is_named():
    y = beats(100)[:, None]
    with pytest.raises(ArgumentError, match="false_alarms must be a rate between 0 and 1"):
        RecurrentDetector(false_alarms=1).fit(y)
    with pytest.raises(ArgumentError, match="n_modes must be an integer of at least 1, got 0"):
        RecurrentDetector(n_modes=0).fit(y)
    with pytest.raises(ShapeError, match="each channel of X must hold a value that is not NaN"):
        RecurrentDetector().fit(np.full((20, 1), np.nan))
    detector = clone(RecurrentDetector()).fit(y)
    with pytest.raises(ShapeError, match="row must have the 1 channels of the fit, got 2"):
        detector.update([1.0, 2.0])
    with pytest.raises(ArgumentError, match="row must be finite or NaN, got infinity"):
        detector.update(np.inf)


def test_a_series_without_channels_is_told_how_to_be_one():
    words = r"RecurrentDetector: X must have shape \(time, channels\), got \(1500,\)\. Reshape"
    with pytest.raises(ShapeError, match=words):
        RecurrentDetector().fit(beats())
