"""Laws of `PanelForecaster`: order, units, time and neighbours, and answers to odd series."""

import numpy as np
import pandas as pd
import pytest

from linrnn import PanelForecaster
from linrnn.errors import LinrnnError

STEPS = 20


def walk(seed, n=STEPS):
    rng = np.random.default_rng(seed)
    return 30 + rng.normal(size=n).cumsum() + 3 * (np.arange(n) % 4 == 1)


def long(**series):
    return pd.concat(
        pd.DataFrame({"unique_id": name, "ds": np.arange(len(y)), "y": y})
        for name, y in series.items()
    )


TABLE = long(a=walk(0), b=walk(1), c=walk(2, 12))


def answer(table, **options):
    """All that is answered, by series."""
    options = {"horizon": 3, "season": 4} | options
    return PanelForecaster(**options).fit(table).predict_interval()


@pytest.fixture(scope="module")
def usual():
    return answer(TABLE)


def test_the_order_of_rows_says_nothing(usual):
    for seed in range(2):
        pd.testing.assert_frame_equal(answer(TABLE.sample(frac=1, random_state=seed)), usual)


@pytest.mark.parametrize("unit", [2.0**-30, 2.0**40, 1000.0])
def test_each_series_may_have_its_own_unit(usual, unit):
    """Exactly for powers of 2: logarithms, roots and bands too."""
    units = TABLE["unique_id"].map({"a": unit, "b": 1.0, "c": 1 / unit})
    scaled = answer(TABLE.assign(y=TABLE["y"] * units))
    back = scaled["unique_id"].map({"a": unit, "b": 1.0, "c": 1 / unit})
    for name in ("y", "y_lower", "y_upper"):
        np.testing.assert_allclose(scaled[name] / back, usual[name], rtol=1e-6)


def test_series_that_are_wrong_together_count_once_in_bands():
    """Twelve copies say no more than one series, so bands are as wide: 4 % narrower before."""

    def width(seed, copies):
        y = np.random.default_rng(seed).normal(size=40).cumsum()
        band = answer(long(**{f"s{k}": (k + 1) * y for k in range(copies)}), horizon=6, season=1)
        band = band[band["unique_id"] == "s0"]
        return (band["y_upper"] - band["y_lower"]).mean()

    ratios = [width(seed, 12) / width(seed, 1) for seed in range(6)]
    assert np.mean(ratios) > 0.985


def test_time_has_no_origin(usual):
    later = answer(TABLE.assign(ds=TABLE["ds"] + 1000))
    pd.testing.assert_frame_equal(later.assign(ds=later["ds"] - 1000), usual)


def test_series_mirrored_are_forecast_mirrored():
    """Where there is no logarithm or root: of both signs from the start."""
    y = np.r_[1.0, -1.0, walk(0)[2:] - walk(0).mean()]
    up, down = answer(long(a=y)), answer(long(a=-y))
    np.testing.assert_allclose(up["y"], -down["y"], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(up["y_lower"], -down["y_upper"], rtol=1e-6, atol=1e-9)


def test_names_say_nothing():
    one, other = answer(long(a=walk(0), b=walk(1))), answer(long(z=walk(0), y=walk(1)))
    expected = one.set_index("unique_id")["y"].loc["a"]
    np.testing.assert_allclose(other.set_index("unique_id")["y"].loc["z"], expected, rtol=1e-9)


def test_fewer_steps_are_the_first_of_more():
    forecaster = PanelForecaster(4, 4).fit(TABLE)
    every = forecaster.predict()
    first = every[every.groupby("unique_id").cumcount() < 2].reset_index(drop=True)
    pd.testing.assert_frame_equal(forecaster.predict(2), first)


def test_fit_does_not_touch_the_table_and_says_the_same_twice(usual):
    before = TABLE.copy()
    pd.testing.assert_frame_equal(answer(TABLE), usual)
    pd.testing.assert_frame_equal(TABLE, before)


def test_a_failed_fit_leaves_what_was_fitted():
    forecaster = PanelForecaster(3, 4).fit(TABLE)
    before = forecaster.predict()
    with pytest.raises(LinrnnError):
        forecaster.fit(TABLE.assign(y="no"))
    pd.testing.assert_frame_equal(forecaster.predict(), before)


ODD = {
    "zeros": np.zeros(12),
    "constant": np.full(12, 7.0),
    "one jump": np.r_[np.zeros(11), 1.0],
    "alternating": np.tile([1.0, -1.0], 6),
    "exponential": 10.0 ** np.arange(0, 240, 20),
    "tiny": 1e-300 * np.arange(12),
    "subnormal": np.full(12, 5e-324),
    "huge": 1e308 * np.cos(np.arange(12)),
    "far": 1e12 + np.arange(12) % 3,
    "counts": np.array([0, 0, 3, 0, 0, 0, 1, 0, 0, 5, 0, 0.0]),
    "booleans": np.arange(12) % 2 == 0,
    "small integers": np.arange(12, dtype=np.uint8),
    "two": np.array([1.0, -1.0]),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_series_have_finite_answers(name):
    for season in (1, 4):
        band = PanelForecaster(3, season).fit(ODD[name]).predict_interval()
        assert np.isfinite(band).all()
        assert (band[:, 1] <= band[:, 0]).all()
        assert (band[:, 0] <= band[:, 2]).all()


def test_a_table_of_odd_series_has_finite_answers():
    table = long(**{name: y.astype(float) for name, y in ODD.items()})
    band = PanelForecaster(2, 4).fit(table).predict_interval()
    assert np.isfinite(band[["y", "y_lower", "y_upper"]].to_numpy()).all()


@pytest.mark.parametrize("seed", range(6))
def test_drawn_series_have_finite_answers(seed):
    """Series of any length, size, kind and number."""
    rng = np.random.default_rng(seed)
    series = {}
    for k in range(int(rng.integers(1, 5))):
        n = int(rng.integers(1, 24))
        y = rng.normal(size=n) * 10.0 ** rng.integers(-6, 7)
        y = [y, y.cumsum(), np.abs(y), rng.poisson(0.5, n)][int(rng.integers(4))]
        series[f"s{k}"] = np.asarray(y, dtype=float)
    season, horizon = int(rng.choice([1, 2, 4, 7])), int(rng.integers(1, 6))
    band = PanelForecaster(horizon, season).fit(long(**series)).predict_interval()
    values = band[["y_lower", "y", "y_upper"]].to_numpy()
    assert np.isfinite(values).all()
    assert (np.diff(values, axis=1) >= 0).all()
    low = {name: y.min() for name, y in series.items()}
    never_negative = band["unique_id"].map(low) >= 0
    assert (values[never_negative] >= 0).all()


@pytest.fixture(scope="module")
def of_whole_numbers():
    return answer(TABLE.assign(y=TABLE["y"].round()))


@pytest.mark.parametrize("dtype", ["Float64", "float32", "int64", "Int64", "object"])
def test_columns_of_any_number(of_whole_numbers, dtype):
    whole = TABLE.assign(y=TABLE["y"].round())
    typed = answer(whole.assign(y=whole["y"].astype(dtype)))
    np.testing.assert_allclose(typed["y"], of_whole_numbers["y"])
