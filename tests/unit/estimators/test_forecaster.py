"""The forecaster: its equation written out, what it recovers, what it refuses."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit

import linrnn
from linrnn.errors import ArgumentError, ArgumentTypeError, ShapeError, UnknownNameError
from linrnn.estimators import RecurrentForecaster


def seasonal(n, period=12, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    wave = np.sin(2 * np.pi * np.arange(n) / period)
    return 10 + wave + 0.5 * wave**3 + noise * rng.standard_normal(n)


def small(**options):
    return RecurrentForecaster(**({"horizon": 6, "season": 12, "n_modes": 32} | options))


def features(y, modes):
    """Features of one channel by definition: the state, minus that of a constant past y_t."""
    h = y[0] / (1 - modes)
    rows = []
    for value in y:
        h = modes * h + value
        rows.append(value / (1 - modes) - h)
    rows = np.array(rows) * np.sqrt(1 - np.abs(modes) ** 2)
    return np.concatenate([rows.real, rows[:, modes.imag != 0].imag], 1)


def ridge(x, y, penalty, scale):
    """By least squares on rows with the penalty below them."""
    below = np.diag(np.sqrt(penalty * scale))
    x, y = np.concatenate([x, below]), np.concatenate([y, np.zeros((len(below), y.shape[1]))])
    return np.linalg.lstsq(x, y, rcond=None)[0]


def by_hand(y, forecaster, start):
    """The forecast of all rows from ``start`` on, with the penalty of the forecaster."""
    H, n = forecaster.horizon_, len(y)
    series = y / forecaster.scale_
    xs = [features(series[:, c], forecaster.modes_) for c in range(y.shape[1])]
    n_train = n - round(0.25 * n)
    at = np.arange(start, n - H)
    ahead = [np.stack([s[at + h] - s[at] for h in range(1, H + 1)], 1) for s in series.T]
    scale = sum((x[start : n_train - H] ** 2).sum(0) for x in xs)
    w = ridge(
        np.concatenate([x[at] for x in xs]), np.concatenate(ahead), forecaster.penalty_, scale
    )
    return np.stack([s[-1] + x[-1] @ w for s, x in zip(series.T, xs, strict=True)], 1)


def test_forecast_is_that_of_the_equation_written_out():
    y = np.stack([seasonal(200, seed=1), 3 * seasonal(200, seed=2) + 5], 1)
    forecaster = small(channels="shared", n_modes=16).fit(y)
    start = min(7 * 12, (150 - 6) // 4)
    wanted = by_hand(y, forecaster, start) * forecaster.scale_
    np.testing.assert_allclose(forecaster.predict(), wanted, rtol=1e-7)


@pytest.mark.parametrize("channels", ["shared", "own", "together"])
def test_updates_give_what_all_rows_at_once_give(channels):
    """However the values are cut; the later values move the forecast."""
    rng = np.random.default_rng(0)
    lead = rng.standard_normal(330).cumsum() * 0.3 + seasonal(330)
    y = np.stack([lead, 2 * np.roll(lead, 3) + seasonal(330, 5)], 1)
    whole = small(channels=channels).fit(y[:300]).update(y[300:])
    pieces = small(channels=channels).fit(y[:300])
    before = pieces.coef_.copy()
    for value in y[300:321]:
        pieces.update(value[None]).predict(2)
    pieces.update(y[321:])
    np.testing.assert_allclose(pieces.predict(), whole.predict(), rtol=1e-9)
    assert np.abs(pieces.coef_ - before).max() > 1e-4 * np.abs(before).max()


def test_update_is_least_squares_on_everything():
    y = np.stack([seasonal(240, seed=1), seasonal(240, 7, seed=2)], 1)
    forecaster = small(channels="shared", n_modes=16).fit(y[:200])
    start = min(7 * 12, (150 - 6) // 4)
    H, scale = 6, forecaster.scale_
    series = y / scale
    xs = [features(series[:, c], forecaster.modes_) for c in range(2)]
    at = np.arange(start, 240 - H)
    ahead = [np.stack([s[at + h] - s[at] for h in range(1, H + 1)], 1) for s in series.T]
    sums = sum((x[start : 150 - H] ** 2).sum(0) for x in xs)
    rows = np.concatenate([x[at] for x in xs]), np.concatenate(ahead)
    w = ridge(*rows, forecaster.penalty_, sums)
    wanted = np.stack([s[-1] + x[-1] @ w for s, x in zip(series.T, xs, strict=True)], 1) * scale
    np.testing.assert_allclose(forecaster.update(y[200:]).predict(), wanted, rtol=1e-7)


def test_memory_of_updates_does_not_grow():
    import pickle

    y = seasonal(1500)
    forecaster = small(every=2).fit(y[:300])
    forecaster.predict()
    sizes = []
    for part in np.split(y[300:], 4):
        forecaster.update(part).predict()
        sizes.append(len(pickle.dumps(forecaster)))
    assert max(sizes) - min(sizes) < 64  # digits of numbers
    again = pickle.loads(pickle.dumps(forecaster))  # noqa: S301
    np.testing.assert_array_equal(again.predict(9), forecaster.predict(9))


def test_a_constant_is_carried_over():
    y = seasonal(150)
    plain, moved = small().fit(y).predict(), small().fit(y + 1e4).predict()
    np.testing.assert_allclose(moved - 1e4, plain, atol=1e-6)


def test_season_is_found_in_the_data():
    found = RecurrentForecaster(horizon=24).fit(seasonal(1200, 24))
    assert found.season_ == (24,)  # its shape has harmonics
    week = seasonal(3000, 24, 0.3) + 2 * ((np.arange(3000) // 24) % 7 >= 5)
    errors = RecurrentForecaster(horizon=24).fit(week[:2500]).backtest(week[2500:])
    assert errors["forecast"].mse < 0.8 * errors["seasonal naive"].mse < errors["last value"].mse


def test_no_season_is_found_in_noise():
    noise = np.random.default_rng(5).standard_normal(800)
    assert RecurrentForecaster(horizon=8, n_modes=32).fit(noise).season_ == ()


def test_channels_are_read_together_only_where_that_helps():
    rng = np.random.default_rng(0)
    a = rng.standard_normal(1500)
    late = np.stack([a, np.roll(a, 3) + 0.1 * rng.standard_normal(1500)], 1)
    forecaster = RecurrentForecaster(horizon=3, season=1).fit(late[:1200])
    assert forecaster.channels_ == ["shared", "together"]
    errors = forecaster.backtest(late[1200:])
    assert errors["forecast"].mse < 0.6
    alone = RecurrentForecaster(horizon=3, season=1, channels="shared").fit(late[:1200])
    assert alone.backtest(late[1200:])["forecast"].mse > 0.9
    unlike = np.stack([seasonal(800, 7, 0), seasonal(800, 13, 0.3)], 1)
    assert "together" not in small(season=(7, 13)).fit(unlike).channels_


def test_intervals_cover_what_they_say():
    rng = np.random.default_rng(3)
    y = np.zeros((6000, 2))
    for t in range(1, len(y)):
        y[t] = 0.8 * y[t - 1] + rng.standard_normal(2) * (1, 5)
    forecaster = RecurrentForecaster(horizon=8, season=1, channels="shared", n_modes=32)
    forecaster.fit(y[:4000])
    inside = []
    for t in range(4000, 5990, 10):
        low, high = np.moveaxis(forecaster.predict_interval(coverage=0.8), -1, 0)
        came = y[t : t + 8]
        inside.append((low <= came) & (came <= high))
        forecaster.update(y[t : t + 10])
    covered = np.mean(inside, 0)  # of each step ahead and channel, 199 windows
    assert 0.78 < covered.mean() < 0.86  # they are wide enough first of all
    assert covered.min() > 0.75
    spread = np.ptp(forecaster.predict_interval(), axis=-1)
    assert (spread[-1] > 1.3 * spread[0]).all()


def test_quantiles_are_in_order_and_shaped():
    forecaster = small().fit(seasonal(200))
    found = forecaster.predict_quantiles(4, (0.05, 0.25, 0.5, 0.75, 0.95))
    assert found.shape == (4, 5)
    assert (np.diff(found, axis=1) >= 0).all()
    two = small().fit(np.stack([seasonal(200), seasonal(200, 5)], 1))
    assert two.predict_quantiles(4, [0.5]).shape == (4, 2, 1)
    assert two.predict_interval().shape == (6, 2, 2)


def test_forecasts_beyond_the_horizon_go_on():
    y = seasonal(400, noise=0.0)
    forecaster = RecurrentForecaster(horizon=5, season=12).fit(y[:300])
    np.testing.assert_allclose(forecaster.predict(30), y[300:330], atol=1e-2)
    np.testing.assert_array_equal(forecaster.predict(30)[:5], forecaster.predict(5))


def test_backtest_is_forecasts_one_after_the_other():
    y = seasonal(260)
    forecaster = small(refit=False).fit(y[:200])
    found = forecaster.backtest(y[200:230])
    # with nothing learnt, forecasts from later steps are those of a reading that goes on
    residuals, naive, last = [], [], []
    for t in range(200, 225):
        x = features(y[:t] / forecaster.scale_, forecaster.modes_)[-1]
        ahead = y[t - 1] + x @ forecaster.coef_ * forecaster.scale_
        residuals.append(y[t : t + 6] - ahead)
        naive.append(y[t : t + 6] - y[t - 12 : t - 6])
        last.append(y[t : t + 6] - y[t - 1])
    for name, errors in zip(found, (residuals, naive, last), strict=True):
        assert found[name].mse == pytest.approx(np.mean(np.square(errors)), rel=1e-6)
        assert found[name].mae == pytest.approx(np.mean(np.abs(errors)), rel=1e-6)


def test_score_is_r2_of_the_windows():
    from sklearn.metrics import r2_score

    y = np.stack([seasonal(230), seasonal(230, 5, 0.5)], 1)
    at = np.arange(200, 225)
    came = np.stack([y[at + h] for h in range(6)])  # (6, windows, channels)
    reader, said = small(channels="shared", refit=False).fit(y[:200]), []
    for c in range(2):
        x = features(y[:, c] / reader.scale_[c], reader.modes_)[at - 1]
        said.append(y[at - 1, c] + (x @ reader.coef_).T * reader.scale_[c])
    wanted = r2_score(came.reshape(-1, 2), np.stack(said, -1).reshape(-1, 2))
    assert reader.score(y[200:230]) == pytest.approx(wanted, rel=1e-6)


def test_missing_values_are_refused_or_held():
    y = seasonal(200)
    gaps = y.copy()
    gaps[[50, 51, 120]] = np.nan
    with pytest.raises(ArgumentError, match=r"got NaN in 3 places, the first at step 50"):
        small().fit(gaps)
    held = gaps.copy()
    held[[50, 51]], held[120] = held[49], held[119]
    forecaster = small(missing="ffill").fit(gaps)
    np.testing.assert_array_equal(forecaster.predict(), small().fit(held).predict())
    later = np.array([np.nan, 10.0, np.nan])
    wanted = small().fit(held).update([held[-1], 10.0, 10.0]).predict()
    np.testing.assert_array_equal(forecaster.update(later).predict(), wanted)


def test_conventions_of_scikit_learn():
    forecaster = small(random_state=3, channels="own")
    copy = clone(forecaster)
    assert copy.get_params() == forecaster.get_params()
    assert copy.set_params(horizon=4).fit(seasonal(100)).predict().shape == (4,)
    with pytest.raises(NotFittedError):
        forecaster.predict()
    assert linrnn.RecurrentForecaster is RecurrentForecaster
    y = seasonal(160)
    one, same = (small(random_state=5).fit(y).predict() for _ in range(2))
    other = small(random_state=6).fit(y).predict()
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 0


def test_grid_search_over_time():
    grid = GridSearchCV(
        small(n_modes=16), {"season": [5, 12]}, cv=TimeSeriesSplit(3, test_size=40), refit=True
    )
    grid.fit(seasonal(300, noise=0.02))
    assert grid.best_params_ == {"season": 12}
    assert grid.best_score_ > 0.9
    assert grid.predict(3).shape == (3,)


@pytest.mark.parametrize("y", [np.ones(60), np.arange(60.0), np.ones((60, 2))])
def test_lines_and_constants_go_on(y):
    wanted = y[-1] + (y[-1] - y[-2]) * np.arange(1, 4).reshape(-1, *[1] * (y.ndim - 1))
    np.testing.assert_allclose(small(horizon=3).fit(y).predict(), wanted, atol=0.05)


def test_plot_shows_forecast_interval_and_truth():
    y = np.stack([seasonal(200), seasonal(200, 5)], 1)
    figure = small().fit(y[:190]).plot(y[190:])
    assert len(figure.axes) == 2
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert labels == ["read", "90 % interval", "forecast", "truth"]
    forecast = figure.axes[1].get_lines()[1].get_ydata()
    np.testing.assert_allclose(forecast, small().fit(y[:190]).predict()[:, 1])


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "y", "kind", "text"),
    [
        ({}, np.ones((2, 3, 4)), ShapeError, r"y must have shape \(time,\) or \(time, channels\)"),
        ({}, np.array(["a", "b"]), ArgumentTypeError, "y must hold numbers, got text"),
        ({}, [1, 2, np.inf] * 30, ArgumentError, "got infinity in 30 places"),
        (
            {},
            np.ones(19),
            ArgumentError,
            "horizon must be at most 5 for a series of 19 steps",
        ),
        ({"horizon": 0}, np.ones(90), ArgumentError, "horizon must be an integer of at least 1"),
        ({"season": "x"}, np.ones(90), ArgumentError, "season must be a number of steps"),
        ({"season": -1}, np.ones(90), ArgumentError, "season must be a number of steps"),
        ({"n_modes": 0}, np.ones(90), ArgumentError, "n_modes must be an integer from 1"),
        ({"channels": "al"}, np.ones(90), UnknownNameError, "Known: auto, own, shared, together"),
        ({"missing": "no"}, np.ones(90), UnknownNameError, "Known: error, ffill"),
        ({"validation": 1.5}, np.ones(90), ArgumentError, "validation must be a share between 0"),
        ({"refit": 1}, np.ones(90), ArgumentTypeError, "refit must be True or False"),
        ({"every": 500}, np.ones(90), ArgumentError, "every must leave rows"),
        ({"missing": "ffill"}, [np.nan] * 90, ArgumentError, "must begin with a value"),
    ],
)
def test_what_cannot_be_fitted_is_named(options, y, kind, text):
    with pytest.raises(kind, match=text):
        small().set_params(**options).fit(y)


@pytest.mark.unchecked
def test_what_does_not_go_on_is_named():
    forecaster = small().fit(seasonal(150))
    with pytest.raises(ShapeError, match="values must have 1 channels as y of fit, got 2"):
        forecaster.update(np.ones((3, 2)))
    with pytest.raises(ArgumentError, match="horizon must be at most 6, got 7"):
        forecaster.predict_quantiles(7)
    with pytest.raises(ArgumentError, match=r"between 0.005 and 0.995, got \[0.001\]"):
        forecaster.predict_quantiles(3, [0.001])
    with pytest.raises(ArgumentError, match="coverage must be above 0"):
        forecaster.predict_interval(3, coverage=1)
    with pytest.raises(ShapeError, match="y must have at least one step"):
        forecaster.score(np.ones(0))
