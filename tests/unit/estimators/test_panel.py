"""Many series in one table, through `PanelForecaster`: forms of tables, errors by name, files."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest

from linrnn import PanelForecaster
from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    LinrnnError,
    RunFolderError,
    ShapeError,
)

DAYS = pd.date_range("2024-01-01", periods=35)


def shop(name, days=DAYS):
    rng = np.random.default_rng(len(name))
    weekend = days.day_of_week > 4
    y = 20 + 5 * weekend + rng.normal(size=len(days))
    return pd.DataFrame({"unique_id": name, "ds": days, "y": y})


TABLE = pd.concat([shop("north"), shop("sud", DAYS[14:])])


@pytest.fixture(scope="module")
def fitted():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a plain table gives no cause for one
        return PanelForecaster(horizon=7).fit(TABLE)


def test_a_long_table_comes_back_in_long_form_and_finds_its_week(fitted):
    answer = fitted.predict()
    assert answer.columns.tolist() == ["unique_id", "ds", "y"]
    assert len(answer) == 14
    assert fitted.season_ == 7
    assert fitted.n_series_ == 2
    assert answer["ds"].min() == DAYS[-1] + pd.Timedelta(1, "D")
    weekend = answer["ds"].dt.day_of_week > 4
    assert answer["y"][weekend].min() > answer["y"][~weekend].max()


def test_each_series_is_forecast_from_its_own_end():
    early = shop("north", DAYS[:30])
    answer = PanelForecaster(horizon=3).fit(pd.concat([early, shop("sud")])).predict()
    first = answer.groupby("unique_id")["ds"].min()
    assert first["north"] == DAYS[30]
    assert first["sud"] == DAYS[-1] + pd.Timedelta(1, "D")


def test_weights_are_shares_and_scores_say_who_is_better_than_the_last_value(fitted):
    weights, scores = fitted.weights_, fitted.scores_
    assert weights.index.tolist() == ["north", "sud"]
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    assert (weights.to_numpy() >= 0).all()
    assert (scores["naive"] - 1).abs().max() < 1e-6
    assert scores["season"]["north"] < 0.6


def test_bands_hold_the_forecast_and_widen_with_coverage(fitted):
    narrow, wide = (fitted.predict_interval(3, coverage=c) for c in (0.5, 0.9))
    assert (narrow["y_lower"] <= narrow["y"]).all()
    assert (narrow["y"] <= narrow["y_upper"]).all()
    assert (wide["y_upper"] > narrow["y_upper"]).all()


def test_quantiles_are_the_ends_of_bands_and_rise(fitted):
    q = fitted.predict_quantiles(2, (0.1, 0.5, 0.9))
    band = fitted.predict_interval(2, coverage=0.8)
    np.testing.assert_allclose(q["y_q0.1"], band["y_lower"])
    np.testing.assert_allclose(q["y_q0.9"], band["y_upper"])
    np.testing.assert_allclose(q["y_q0.5"], band["y"])


# ------------------------------------------------------------------- forms of tables


def test_columns_of_other_names(fitted):
    table = TABLE.set_axis(["shop", "day", "sales"], axis=1)
    named = PanelForecaster(horizon=7, id="shop", time="day", value="sales").fit(table)
    answer = named.predict_interval()
    assert answer.columns.tolist() == ["shop", "day", "sales", "sales_lower", "sales_upper"]
    np.testing.assert_allclose(answer["sales"], fitted.predict()["y"])


def test_several_columns_of_ids(tmp_path):
    two = pd.concat([shop("north").assign(item=k, y=lambda t, k=k: t.y + k) for k in (3, 11)])
    forecaster = PanelForecaster(horizon=2, id=("unique_id", "item")).fit(two)
    answer = forecaster.predict()
    assert answer.columns.tolist() == ["unique_id", "item", "ds", "y"]
    assert answer["item"].tolist() == [3, 3, 11, 11]
    assert forecaster.weights_.index.names == ["unique_id", "item"]
    forecaster.save(tmp_path / "two")
    again = PanelForecaster.load(tmp_path / "two")
    pd.testing.assert_frame_equal(again.predict(), answer)
    pd.testing.assert_frame_equal(again.weights_, forecaster.weights_)


def test_an_index_of_ids_and_times_as_sktime_has_it(fitted):
    frame = TABLE.rename(columns={"y": "sales"}).set_index(["unique_id", "ds"])
    answer = PanelForecaster(horizon=7).fit(frame).predict()
    assert answer.index.names == ["unique_id", "ds"]
    assert answer.columns.tolist() == ["sales"]
    np.testing.assert_allclose(answer["sales"], fitted.predict()["y"])


def test_three_levels_of_an_index():
    frame = pd.concat([TABLE.assign(land=x, y=TABLE.y + len(x)) for x in ("de", "nor")])
    frame = frame.set_index(["land", "unique_id", "ds"])[["y"]]
    answer = PanelForecaster(horizon=2).fit(frame).predict()
    assert answer.index.names == ["land", "unique_id", "ds"]
    assert len(answer) == 8
    assert answer.loc[("nor", "sud")].index[0] == DAYS[-1] + pd.Timedelta(1, "D")


def test_a_wide_table_keeps_its_columns_and_begins_each_at_its_first_number(fitted):
    wide = TABLE.pivot(index="ds", columns="unique_id", values="y")[["sud", "north"]]
    assert wide["sud"].isna().sum() == 14
    forecaster = PanelForecaster(horizon=7).fit(wide)
    answer = forecaster.predict()
    assert answer.columns.tolist() == ["sud", "north"]
    assert answer.index[0] == DAYS[-1] + pd.Timedelta(1, "D")
    usual = fitted.predict().set_index(["unique_id", "ds"])["y"]
    np.testing.assert_allclose(answer["sud"], usual["sud"])
    assert forecaster.predict_interval().columns.tolist()[-2:] == ["y_lower", "y_upper"]


def test_a_series_of_quarters_is_answered_as_one():
    y = pd.Series(np.arange(24.0), pd.period_range("2020Q1", periods=24, freq="Q"), name="gdp")
    forecaster = PanelForecaster(horizon=2).fit(y)
    answer = forecaster.predict()
    assert answer.index[0] == y.index[-1] + 1
    assert answer.name == "gdp"
    assert forecaster.season_ == 4
    np.testing.assert_allclose(answer, [24, 25], atol=0.1)
    assert forecaster.predict_interval().columns.tolist() == ["y", "y_lower", "y_upper"]


def test_an_array_is_answered_by_arrays():
    forecaster = PanelForecaster(horizon=2).fit(np.arange(24))
    assert forecaster.predict().shape == (2,)
    assert forecaster.predict_interval().shape == (2, 3)
    np.testing.assert_allclose(forecaster.predict(), [24, 25], atol=0.1)


# ------------------------------------------------------------------- times


@pytest.mark.parametrize(
    ("freq", "season", "following"),
    [
        ("MS", 12, "2022-07-01"),
        ("ME", 12, "2022-07-31"),
        ("BMS", 12, "2022-07-01"),
        ("QS", 4, "2027-07-01"),
        ("W-SUN", 1, "2020-08-02"),  # a year of weeks is longer than half of this
        ("B", 5, "2020-02-12"),
        ("h", 1, "2020-01-02 06:00"),
    ],
)
def test_the_frequency_of_dates_is_found(freq, season, following):
    times = pd.date_range("2020-01-01", periods=30, freq=freq)
    table = pd.DataFrame({"unique_id": 1, "ds": times, "y": np.cos(np.arange(30.0) ** 2)})
    forecaster = PanelForecaster(horizon=1).fit(table)
    assert forecaster.season_ == season
    assert forecaster.predict()["ds"][0] == pd.Timestamp(following)


def test_of_numbers_the_season_is_found():
    rng = np.random.default_rng(0)
    y = np.tile([5.0, 1.0, 4.0, 2.0, 9.0, 0.0], 8) + 0.1 * rng.normal(size=48)
    forecaster = PanelForecaster().fit(y)
    assert forecaster.season_ == 6
    assert forecaster.horizon_ == 6  # an eighth
    np.testing.assert_allclose(forecaster.predict(), y[-6:], atol=0.6)


def test_a_frequency_may_be_named_where_rows_are_too_few():
    two = pd.DataFrame({"unique_id": 1, "ds": ["2024-01-31", "2024-02-29"], "y": [1.0, 2.0]})
    with pytest.raises(ArgumentError, match="freq="):
        PanelForecaster(horizon=1).fit(two)
    answer = PanelForecaster(horizon=1, freq="ME").fit(two).predict()
    assert answer["ds"][0] == pd.Timestamp("2024-03-31")
    with pytest.raises(ArgumentError, match="freq must be"):
        PanelForecaster(horizon=1, freq="moons").fit(two)


def test_steps_of_two_quarters_of_whole_numbers_and_of_a_time_zone(tmp_path):
    halves = pd.period_range("2010Q1", periods=20, freq="2Q")
    y = np.cos(np.arange(20.0) ** 2)
    answer = PanelForecaster(horizon=2).fit(pd.Series(y, halves)).predict()
    assert answer.index.tolist() == [halves[-1] + 1, halves[-1] + 2]
    years = pd.DataFrame({"unique_id": 1, "ds": np.arange(1900, 2000, 5), "y": y})
    assert PanelForecaster(horizon=2).fit(years).predict()["ds"].tolist() == [2000, 2005]
    days = pd.date_range("2024-03-20", periods=20, tz="Europe/Berlin")  # summer time begins
    forecaster = PanelForecaster(horizon=1).fit(pd.Series(y, days))
    assert forecaster.predict().index[0] == days[-1] + pd.offsets.Day(1)
    forecaster.save(tmp_path / "zone")
    again = PanelForecaster.load(tmp_path / "zone").predict()
    pd.testing.assert_series_equal(again, forecaster.predict())


# ------------------------------------------------------------------- gaps


def test_gaps_are_refused_or_filled_with_the_last_value():
    north = shop("north")
    gap = north.drop(index=[5, 6])
    with pytest.raises(ArgumentError, match=r"gap from 2024-01-05.* to 2024-01-08 .*'north'"):
        PanelForecaster(horizon=2).fit(gap)
    empty = north.assign(y=north["y"].where(~north.index.isin([5, 6])))
    with pytest.raises(ArgumentError, match=r"column 'y' must hold a number .* 2024-01-06"):
        PanelForecaster(horizon=2).fit(empty)
    full = north.assign(y=empty["y"].ffill())
    expected = PanelForecaster(horizon=2).fit(full).predict()
    for table in (gap, empty):
        answer = PanelForecaster(horizon=2, missing="ffill").fit(table).predict()
        pd.testing.assert_frame_equal(answer, expected)


def test_nothing_fills_a_gap_at_the_beginning():
    late = shop("north").assign(y=lambda t: t["y"].where(t.index > 0))
    with pytest.raises(ArgumentError, match="2024-01-01"):
        PanelForecaster(horizon=2, missing="ffill").fit(late)


# ------------------------------------------------------------------- few values


@pytest.mark.parametrize("values", [[3.0], [1.0, 2.0], [1.0, 2.0, 4.0], [0.0, 0.0, 0.0]])
def test_a_series_may_be_of_few_values(values):
    forecaster = PanelForecaster(horizon=2).fit(np.array(values))
    band = forecaster.predict_interval()
    assert band.shape == (2, 3)
    assert np.isfinite(band).all()
    assert (band[:, 1] <= band[:, 0]).all()
    assert (band[:, 2] > band[:, 0]).all()


def test_a_series_of_one_row_among_others_leans_on_them(fitted):
    short = shop("new", DAYS[-1:])
    forecaster = PanelForecaster(horizon=7).fit(pd.concat([TABLE, short]))
    band = forecaster.predict_interval().set_index("unique_id").loc["new"]
    assert np.isfinite(band[["y", "y_lower", "y_upper"]].to_numpy()).all()
    assert (band["y_lower"] < band["y_upper"]).all()
    assert (band["y"] - short["y"].iloc[0]).abs().max() < 15


# ------------------------------------------------------------------- errors


def test_bad_tables_are_refused_by_name():
    north = shop("north")
    mixed = pd.concat([north, north.assign(unique_id=3)])
    for bad, error, words in (
        (pd.concat([north, north.tail(1)]), ArgumentError, "2024-02-04 .* twice"),
        (north.rename(columns={"ds": "day"}), ArgumentError, "columns"),
        (north.assign(y="many"), ArgumentTypeError, "column 'y' of y must hold numbers"),
        (north.assign(y=np.inf), ArgumentError, "finite"),
        (north.assign(ds="soon"), ArgumentTypeError, "'ds' of y must hold dates"),
        (north.assign(ds="1/2/2024"), ArgumentTypeError, "got '1/2/2024'"),
        (north.assign(ds=np.nan), ArgumentTypeError, "'ds'"),
        (north.assign(unique_id=None), ArgumentError, "must name a series in every row"),
        (north.head(0), ArgumentError, "rows"),
        (mixed, ArgumentError, "'unique_id' must be all text or all numbers"),
        (np.ones((3, 2)), ShapeError, "one axis"),
        ("north", ArgumentTypeError, "a table or a series"),
    ):
        with pytest.raises(error, match=words):
            PanelForecaster(horizon=2).fit(bad)


def test_two_steps_in_one_table_are_refused():
    slow = shop("slow").assign(ds=DAYS + pd.Timedelta(12, "h"))
    with pytest.raises(ArgumentError, match="one grid of steps of D"):
        PanelForecaster(horizon=2).fit(pd.concat([shop("north"), slow]))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"horizon": 0}, "horizon"),
        ({"season": -1}, "season"),
        ({"missing": "drop"}, "missing"),
        ({"known": ("y",)}, "different columns"),
        ({"id": ()}, "id must name at least one column"),
    ],
)
def test_bad_options_are_refused_by_name(options, word):
    with pytest.raises(LinrnnError, match=word):
        PanelForecaster(**options).fit(TABLE)


def test_bad_questions_are_refused_by_name(fitted):
    with pytest.raises(ArgumentError, match="horizon must be at most 7"):
        fitted.predict(8)
    with pytest.raises(ArgumentError, match="coverage"):
        fitted.predict_interval(coverage=1.0)
    with pytest.raises(ArgumentError, match="X must be None"):
        fitted.predict(X=TABLE)
    with pytest.raises(ArgumentTypeError, match="known must name columns, got 'price'"):
        PanelForecaster(known="price").fit(TABLE)


# ------------------------------------------------------------------- files


def test_what_was_saved_forecasts_the_same(fitted, tmp_path):
    path = tmp_path / "panel.safetensors"
    fitted.save(path)
    again = PanelForecaster.load(path)
    pd.testing.assert_frame_equal(again.predict_interval(), fitted.predict_interval())
    assert again.get_params() == fitted.get_params()
    assert b"pickle" not in path.read_bytes()
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(RunFolderError):
        PanelForecaster.load(path)


def test_ids_that_are_no_text_are_not_written(tmp_path):
    dates = shop("north").assign(unique_id=pd.Timestamp("2024-01-01"))
    forecaster = PanelForecaster(horizon=1).fit(dates)
    with pytest.raises(ArgumentTypeError, match="id must be text or a number"):
        forecaster.save(tmp_path / "dates")
    assert json.dumps(list(tmp_path.iterdir())) == "[]"


@pytest.mark.unchecked
def test_a_table_without_ids_is_told_how_a_single_series_is_passed():
    table = pd.DataFrame({"ds": pd.date_range("2024-01-01", periods=9), "y": np.arange(9.0)})
    with pytest.raises(LinrnnError, match="For a single series, add 'unique_id' with the"):
        PanelForecaster(horizon=2).fit(table)
    without_times = table.drop(columns="ds").assign(unique_id="a")
    with pytest.raises(LinrnnError, match=r"without 'ds'. id=, time= and value= name them\.$"):
        PanelForecaster(horizon=2).fit(without_times)
