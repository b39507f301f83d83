"""Bands cover what they say where level or variance grows, or say that they cannot know."""

import csv
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from linrnn import RecurrentForecaster
from linrnn.errors import ArgumentError
from linrnn.estimators._bands import calibrate
from linrnn.estimators._forecast_fit import Setup, fit_bank, sizes_of
from linrnn.estimators._rolling import (
    Residuals,
    folds,
    rolling_residuals,
    with_rolling_penalty,
)
from linrnn.estimators.read_out import PENALTIES
from linrnn.tasks._reading.files import folder_of

STEPS, HORIZON = 160, 8


def _garch(noise):
    variance, found = 1.0, np.empty_like(noise)
    for t, one in enumerate(noise):
        found[t] = math.sqrt(variance) * one
        variance = 0.05 + 0.1 * found[t] ** 2 + 0.85 * variance
    return found.cumsum()


GENERATED = {
    "noise": lambda e, t: e,
    "random walk": lambda e, t: e.cumsum(),
    "random walk with drift": lambda e, t: (e + 0.3).cumsum(),
    "trend": lambda e, t: 0.1 * t + e,
    "season": lambda e, t: 3 * np.sin(2 * np.pi * t / 12) + e,
    "growing variance": lambda e, t: e * np.exp(t / 60),
    "growing steps": lambda e, t: (e * np.exp(t / 60)).cumsum(),
    "growing level and season": lambda e, t: (
        np.exp(t / 70) * (3 + np.sin(2 * np.pi * t / 12) + 0.2 * e)
    ),
    "variance that clusters": lambda e, t: _garch(e),
}


def held_out(y, ends, season, horizon=HORIZON, coverage=0.8):
    """For each end: the share of what came inside the band, and the share its back-test showed."""
    found = []
    for n in ends:
        forecaster = RecurrentForecaster(horizon, season, n_modes=64).fit(y[:n])
        low, high = forecaster.predict_interval(coverage=coverage).T
        came = y[n : n + horizon]
        shown = forecaster.interval_coverage(coverage=coverage).mean()
        found.append((((low <= came) & (came <= high)).mean(), shown))
    return np.array(found)


@pytest.mark.parametrize("name", GENERATED)
def test_bands_cover_what_they_say_on_series_that_grow(name):
    """Nominal 80 %, eight series of two ends: within two standard errors of it, or above."""
    season, found = 12 if "season" in name else 1, []
    for seed in range(8):
        noise = np.random.default_rng(1000 + seed).standard_normal(STEPS)
        y = GENERATED[name](noise, np.arange(STEPS))
        found.append(held_out(y, (120, STEPS - HORIZON), season).mean(0))
    covered, shown = np.array(found).T
    assert covered.mean() + 2 * covered.std(ddof=1) / math.sqrt(len(covered)) > 0.8
    assert covered.mean() > 0.68
    assert (shown >= 0.8 - 1e-9).all()


def test_no_band_claims_what_its_back_test_does_not_show():
    """For any level and series, over all steps ahead; where one step is missed, it is said."""
    levels = (0.05, 0.5, 0.635, 0.8, 0.9)
    for name, make in GENERATED.items():
        y = make(np.random.default_rng(5).standard_normal(STEPS), np.arange(STEPS))
        forecaster = RecurrentForecaster(HORIZON, n_modes=32, season=1).fit(y)
        shown = [forecaster.interval_coverage(coverage=level) for level in levels]
        assert (np.diff(shown, axis=0) >= 0).all(), name
        assert all(s.mean() >= c - 0.02 for s, c in zip(shown, levels, strict=True)), name
        widths = [np.ptp(forecaster.predict_interval(coverage=c), axis=1) for c in levels]
        assert (np.diff(widths, axis=0) >= 0).all(), name


def test_bands_are_wide_enough_for_the_later_half_of_a_back_test():
    """Errors that grow beyond what the spread says: three times as large in the later half."""
    draws = np.random.default_rng(0).standard_normal((200, 2, 3))
    errors = torch.from_numpy(draws * np.where(np.arange(200) < 100, 1, 3)[:, None, None])
    bands = calibrate(Residuals(torch.arange(200), errors), torch.ones(200, 2).double())
    for coverage in (0.5, 0.8, 0.9):
        widths, later = bands.at(coverage), errors[100:].abs()
        assert ((later <= widths).double().mean((0, 2)) >= coverage).all()
        assert bands.shown_at(coverage).mean() >= coverage
    assert bands.highest(1) > bands.highest(3)  # windows overlap, so fewer of them are independent


@pytest.mark.filterwarnings("ignore::linrnn.errors.DriftWarning")
def test_bands_widen_as_the_variance_grows_after_the_fit():
    rng = np.random.default_rng(0)
    calm, wild = rng.standard_normal(300).cumsum(), 8 * rng.standard_normal(60).cumsum()
    forecaster = RecurrentForecaster(4, season=1, n_modes=32).fit(calm)
    before = np.ptp(forecaster.predict_interval(coverage=0.8), axis=1)
    after = np.ptp(forecaster.update(calm[-1] + wild).predict_interval(coverage=0.8), axis=1)
    assert (after > 4 * before).all()


@pytest.mark.unchecked
def test_too_little_history_is_said():
    y = np.random.default_rng(0).standard_normal(80).cumsum()
    forecaster = RecurrentForecaster(6, season=1, n_modes=16).fit(y)
    with pytest.raises(ArgumentError, match=r"coverage must be at most 0\.\d+, which the \d+ win"):
        forecaster.predict_interval(coverage=0.99)
    with pytest.raises(ArgumentError, match=r"quantiles must lie between 0\.\d+ and 0\.\d+, which"):
        forecaster.predict_quantiles(quantiles=[0.01])
    for ask in (forecaster.interval_coverage, forecaster.plot):
        with pytest.raises(ArgumentError, match="windows of the back-test can show 6 steps ahead"):
            ask(coverage=0.99)
    assert np.isfinite(forecaster.predict_interval(1, coverage=0.9)).all()
    shortest = RecurrentForecaster(6, season=1, n_modes=16).fit(y[:20])
    assert np.isfinite(shortest.predict()).all()
    with pytest.raises(ArgumentError, match=r"enough windows .* 6 steps ahead, got 1, too few for"):
        shortest.predict_interval(coverage=0.1)


@pytest.mark.parametrize("y", [np.zeros(90), np.full(90, 3.0), np.arange(90.0)])
def test_bands_of_what_never_errs_are_narrow(y):
    band = RecurrentForecaster(3, season=1, n_modes=16).fit(y).predict_interval(coverage=0.8)
    assert (np.ptp(band, axis=1) < 0.06).all()


def test_columns_have_bands_of_their_own():
    rng = np.random.default_rng(0)
    y = rng.standard_normal((400, 2)).cumsum(0) * [1, 50]
    forecaster = RecurrentForecaster(4, season=1, n_modes=16).fit(y)
    assert forecaster.interval_coverage(3, 0.8).shape == (3, 2)
    wide = np.ptp(forecaster.predict_interval(coverage=0.8), axis=2)
    assert (wide[:, 1] > 20 * wide[:, 0]).all()


def test_bands_of_a_real_series():
    path = folder_of("ett") / "ETTh1.csv"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    with path.open(encoding="utf-8") as file:
        y = np.array([float(row["OT"]) for row in csv.DictReader(file)])
    found = held_out(y, range(600, 6000, 450), 24, horizon=12)
    assert found[:, 0].mean() > 0.75
    assert (found[:, 1] >= 0.8 - 1e-9).all()


@pytest.mark.parametrize("channels", [1, 2])
def test_the_penalty_of_a_short_series_has_the_smallest_error_over_folds(channels):
    rng = np.random.default_rng(3)
    steps = rng.standard_normal((160, channels)) * np.exp(rng.standard_normal((160, 1)))
    series = torch.from_numpy(np.cumsum(steps, 0) / 9)
    sizes = sizes_of("here", 160, 4, 0.25)
    setup = Setup(n_modes=24, seasons=(), seed=0)
    fit = fit_bank(series, setup, sizes)
    errors = []
    for penalty in PENALTIES:
        residuals = rolling_residuals(
            replace(fit, choice=replace(fit.choice, penalty=penalty)), series
        )
        squares = residuals.errors.square().mean((1, 2))
        parts = [
            squares[(first <= residuals.origins) & (residuals.origins < end)].mean()
            for first, end in folds(fit)
        ]
        errors.append(float(torch.stack(parts).log().mean()))
    chosen = with_rolling_penalty(fit, series, ()).choice
    assert chosen.penalty == PENALTIES[int(np.argmin(errors))] != fit.choice.penalty
    assert min(errors) < max(errors) - 0.1, "penalties differ"
    assert float(chosen.error.sum()) >= float(fit.choice.error.sum())
