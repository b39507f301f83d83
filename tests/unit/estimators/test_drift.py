"""A forecaster that says when its errors have left those of its back-test."""

import pickle
import warnings

import numpy as np
import pytest
import torch

from linrnn import RecurrentForecaster
from linrnn.errors import DriftWarning
from linrnn.estimators._drift import BOUND, Drift

N, LATER = 2000, 250


def series_of(kind: str, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_normal(N + LATER)
    season = 2 * np.sin(np.arange(N + LATER) * 2 * np.pi / 24)
    if kind == "random walk":
        return noise.cumsum()
    if kind == "doubled variance":
        noise[N:] *= 2**0.5
    if kind == "level shift":
        season[N:] += 4
    return season + noise


def followed(kind: str, seed: int) -> RecurrentForecaster:
    y = series_of(kind, seed)
    forecaster = RecurrentForecaster(12, season=24).fit(y[:N])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DriftWarning)
        for part in np.split(y[N:], 25):
            forecaster.update(part)
    return forecaster


def statistics(deviations: list[float], windows: int, steps: int) -> list[Drift]:
    """After independent errors whose deviation changes with the first step."""
    generator = torch.Generator().manual_seed(0)
    results = []
    for deviation in deviations:
        past = torch.randn(1, windows, generator=generator, dtype=torch.float64)
        later = torch.randn(1, steps, generator=generator, dtype=torch.float64)
        results.append(Drift.of(past).read(deviation * later))
    return results


@pytest.mark.parametrize("kind", ["season", "random walk"])
def test_stationary_series_get_no_more_notices_than_stated(kind):
    """20 series of 250 steps: the stated rate allows one notice on average."""
    notices = sum(bool(followed(kind, seed).drift_[0]) for seed in range(20))
    assert notices <= 20 * LATER / BOUND


@pytest.mark.parametrize(("kind", "latest"), [("level shift", 10), ("doubled variance", 200)])
def test_a_change_gets_a_notice_in_time(kind, latest):
    first = [int(followed(kind, seed).drift_[0]) for seed in range(10)]
    assert min(first) > 0
    assert max(first) <= latest


@pytest.mark.parametrize("windows", [20, 200])
def test_false_notices_are_as_rare_as_stated(windows):
    """Within T steps with probability T / 5000, here 0.08: 24 of 300, and three deviations."""
    notices = sum(bool(d.first[0]) for d in statistics([1.0] * 300, windows, 400))
    assert notices <= 300 * 400 / BOUND + 3 * (300 * 0.08 * 0.92) ** 0.5
    assert sum(bool(d.first[0]) for d in statistics([3.0] * 30, 200, 100)) == 30


def test_the_mean_of_the_statistic_grows_by_one_a_step_at_most():
    """The property that the rate follows from."""
    after = [float(d.evidence.mean()) for d in statistics([1.0] * 2000, 50, 10)]
    error = float(np.std(after)) / len(after) ** 0.5
    assert 5 < np.mean(after) < 10 + 3 * error


def test_parts_give_the_statistics_of_the_whole():
    errors = torch.randn(3, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    start = Drift.of(errors[:, :20])
    whole = start.read(2 * errors)
    parts = start.read(2 * errors[:, :7]).read(2 * errors[:, 7:])
    np.testing.assert_array_equal(parts.evidence, whole.evidence)
    np.testing.assert_array_equal(parts.tails, whole.tails)
    assert parts.steps == whole.steps == 40
    assert whole.tails[:, 0].tolist() == [60] * 3


def test_errors_are_those_of_the_forecasts():
    y = series_of("season", 0)
    forecaster = RecurrentForecaster(4, season=24).fit(y[:N])
    errors = forecaster._follower.errors(torch.from_numpy(y[N : N + 3, None] / forecaster.scale_))
    for k in range(3):
        fresh = forecaster.backtest(y[N : N + 1 + k], horizon=1)["forecast"].mse
        mean = float(errors[0, : k + 1].square().mean()) * forecaster.scale_[0] ** 2
        assert mean == pytest.approx(fresh, rel=1e-9)
    first = y[N] - forecaster.predict(1)[0]
    assert float(errors[0, 0]) * forecaster.scale_[0] == pytest.approx(first, rel=1e-9)


def test_the_warning_names_the_channel_and_comes_once():
    y = np.stack([series_of("season", 0), series_of("level shift", 1)], 1)
    forecaster = RecurrentForecaster(12, season=24).fit(y[:N])
    with pytest.warns(DriftWarning, match=r"forecasts of \[1\] one step ahead"):
        forecaster.update(y[N : N + 60])
    assert forecaster.drift_[0] == 0 < forecaster.drift_[1] <= 60
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forecaster.update(y[N + 60 : N + 70])


@pytest.mark.unchecked
def test_the_warning_points_at_the_caller_of_update():
    y = series_of("level shift", 0)
    forecaster = RecurrentForecaster(12, season=24).fit(y[:N])
    with pytest.warns(DriftWarning) as notices:
        forecaster.update(y[N : N + 60])
    assert notices[0].filename == __file__


def test_an_update_taken_back_leaves_the_statistics_bit_for_bit():
    y = series_of("level shift", 0)
    forecaster = RecurrentForecaster(12, season=24).fit(y[:N])
    forecaster.update(y[N : N + 2])
    before = pickle.dumps(forecaster._follower.drift)
    with pytest.warns(DriftWarning):
        forecaster.update(y[N + 2 : N + 60])
    assert forecaster.drift_[0] > 0
    assert pickle.dumps(forecaster.undo()._follower.drift) == before
    assert forecaster.drift_.tolist() == [0]


def test_a_warning_that_is_raised_leaves_the_forecaster_as_it_was():
    y = series_of("level shift", 0)
    forecaster = RecurrentForecaster(12, season=24).fit(y[:N])
    before = pickle.dumps(forecaster._follower.drift)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DriftWarning)
        with pytest.raises(DriftWarning):
            forecaster.update(y[N : N + 60])
    assert pickle.dumps(forecaster._follower.drift) == before
