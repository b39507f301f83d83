"""A forecaster that says when its errors have left those of its back-test."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch

from linrnn import RecurrentForecaster
from linrnn.errors import DriftWarning
from linrnn.estimators.drift import BOUND, Drift

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


@pytest.mark.parametrize("kind", ["season", pytest.param("random walk", marks=pytest.mark.slow)])
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
    after = [float(np.mean(d.evidence)) for d in statistics([1.0] * 2000, 50, 10)]
    error = float(np.std(after)) / len(after) ** 0.5
    assert 5 < np.mean(after) < 10 + 3 * error


def test_parts_give_the_statistics_of_the_whole():
    errors = torch.randn(3, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    start = Drift.of(errors[:, :20])
    whole = start.read(2 * errors)
    parts = start.read(2 * errors[:, :7]).read(2 * errors[:, 7:])
    assert parts.evidence == whole.evidence
    np.testing.assert_array_equal(parts.tails, whole.tails)
    assert parts.steps == whole.steps == 40
    assert whole.tails[:, 0].tolist() == [60] * 3


@pytest.mark.parametrize("horizon", [1, 2, 12])
@pytest.mark.parametrize("every", [None, 5])
@pytest.mark.parametrize("channels", [1, 3])
def test_errors_are_those_of_forecasts_one_step_ahead(horizon, every, channels, monkeypatch):
    """In one update and value by value, with each kind of read-out, they are those of predict."""
    y = np.stack([series_of("season", seed) for seed in range(3)], 1)
    y[2:, 1] = y[:-2, 0] + y[2:, 1] / 10  # so it reads the others too
    y[:, 2] = np.cumsum(y[:, 2])
    y = y[:, :channels]
    forecaster = RecurrentForecaster(horizon, season=24, every=every).fit(y[:N])
    if channels > 1 and horizon < 12:
        assert {"together", "own"} & set(forecaster.channels_)
    monkeypatch.setattr("linrnn.estimators._watch._LEAST_ROWS", 2**40)  # one read-out for all
    frozen = forecaster._follower.read_out
    errors = []
    read = Drift.read
    monkeypatch.setattr(Drift, "read", lambda self, e, m: errors.append(e) or read(self, e, m))
    values = torch.from_numpy(y[N : N + 3] / forecaster.scale_)
    forecaster._follower.absorb(values)
    follower, expected = forecaster._follower, []
    for one in values:
        follower.__dict__["read_out"] = frozen
        expected.append(one - follower.forecast(1)[0])
        follower = follower.absorb(one[None])
    expected = torch.stack(expected, 1)
    torch.testing.assert_close(errors[0], expected, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(torch.cat(errors[1:], 1), expected, rtol=1e-9, atol=1e-11)


def test_the_read_out_that_is_watched_follows_the_series():
    """Solved again after a sixteenth more rows, and equal to that of all rows then."""
    y = series_of("season", 0)
    forecaster = RecurrentForecaster(1, season=24).fit(y[:N])
    before = forecaster._follower.watch
    assert forecaster.update(y[N : N + 30])._follower.watch.next is before.next
    after = forecaster.update(y[N + 30 : N + 130])._follower
    assert after.watch.solved_at == before.solved_at + 130
    torch.testing.assert_close(after.watch.next.back.shared, after.read_out.shared)


@pytest.mark.parametrize("seed", range(8))
def test_a_gap_that_is_filled_gives_no_notice(seed):
    y = series_of("season", seed)
    forecaster = RecurrentForecaster(12, season=24, missing="ffill").fit(y[:N])
    y[N + 50 : N + 90] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for part in np.split(y[N:], 25):
            forecaster.update(part)
    assert forecaster.drift_.tolist() == [0]


def test_a_constant_series_gets_a_notice_when_it_moves():
    forecaster = RecurrentForecaster(4).fit(np.full(300, 3.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forecaster.update(np.full(200, 3.0))
    with pytest.warns(DriftWarning):
        forecaster.update(3 + np.random.default_rng(0).standard_normal(60))


def pickled(one):
    return pickle.loads(pickle.dumps(one))  # noqa: S301 - made here


@pytest.mark.parametrize("copied", [pickled, copy.deepcopy])
def test_a_copy_goes_on_with_the_statistics(copied):
    y = series_of("level shift", 0)
    forecaster = RecurrentForecaster(12, season=24).fit(y[:N]).update(y[N : N + 2])
    twin = copied(forecaster)
    for one in (forecaster, twin):
        with pytest.warns(DriftWarning):
            one.update(y[N + 2 : N + 60])
    assert twin.drift_.tolist() == forecaster.drift_.tolist()
    assert twin._follower.watch.drift.evidence == forecaster._follower.watch.drift.evidence


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e30, float("inf"), float("nan")])
def test_errors_of_any_size_leave_the_statistic_finite(size):
    (start,) = statistics([1.0], 200, 1)
    after = start.read(torch.full((1, 1000), size, dtype=torch.float64))
    assert np.isfinite(after.evidence).all()
    assert (after.first[0] > 0) == (size > 1)
    assert after.tails[0, 0] == (201 if np.isnan(size) else 1201)


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
    before = pickle.dumps(forecaster._follower.watch.drift)
    with pytest.warns(DriftWarning):
        forecaster.update(y[N + 2 : N + 60])
    assert forecaster.drift_[0] > 0
    assert pickle.dumps(forecaster.undo()._follower.watch.drift) == before
    assert forecaster.drift_.tolist() == [0]


def test_a_warning_that_is_raised_leaves_the_forecaster_as_it_was():
    y = series_of("level shift", 0)
    forecaster = RecurrentForecaster(12, season=24).fit(y[:N])
    before = pickle.dumps(forecaster._follower.watch.drift)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DriftWarning)
        with pytest.raises(DriftWarning):
            forecaster.update(y[N : N + 60])
    assert pickle.dumps(forecaster._follower.watch.drift) == before
