"""Many series in one table, through `PanelForecaster`."""

import numpy as np
import pandas as pd
import pytest

from linrnn import PanelForecaster
from linrnn.errors import ArgumentError, RunFolderError

DAYS = pd.date_range("2024-01-01", periods=63)


def shop(name, days=DAYS):
    rng = np.random.default_rng(len(name))
    weekend = days.day_of_week > 4
    y = 20 + 5 * weekend + rng.normal(size=len(days))
    return pd.DataFrame({"unique_id": name, "ds": days, "y": y})


@pytest.fixture(scope="module")
def table():
    return pd.concat([shop("north"), shop("sud", DAYS[20:])])


@pytest.fixture(scope="module")
def fitted(table):
    return PanelForecaster(horizon=7).fit(table)


def test_a_long_table_comes_back_in_long_form_and_finds_its_week(fitted):
    said = fitted.predict()
    assert said.columns.tolist() == ["unique_id", "ds", "y"]
    assert len(said) == 14 and fitted.season_ == 7
    assert said["ds"].min() == DAYS[-1] + pd.Timedelta(1, "D")
    weekend = said["ds"].dt.day_of_week > 4
    assert said["y"][weekend].min() > said["y"][~weekend].max()


def test_bands_hold_the_forecast_and_widen_with_coverage(fitted):
    narrow, wide = (fitted.predict_interval(3, coverage=c) for c in (0.5, 0.9))
    assert (narrow["y_lower"] <= narrow["y"]).all() and (narrow["y"] <= narrow["y_upper"]).all()
    assert (wide["y_upper"] > narrow["y_upper"]).all()


def test_what_was_saved_forecasts_the_same(fitted, tmp_path):
    path = tmp_path / "panel.safetensors"
    fitted.save(path)
    pd.testing.assert_frame_equal(PanelForecaster.load(path).predict(), fitted.predict())
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(RunFolderError):
        PanelForecaster.load(path)


@pytest.mark.parametrize("values", [[3.0], [1.0, 2.0, 4.0]])
def test_a_series_may_be_of_few_values(values):
    said = PanelForecaster(horizon=2).fit(np.array(values)).predict()
    assert said.shape == (2,) and np.isfinite(said).all()


def test_bad_tables_are_refused_by_name(table):
    north = shop("north")
    for bad, words in (
        (north.drop(index=5), "gap from 2024-01-05"),
        (pd.concat([north, north.tail(1)]), "twice"),
        (north.iloc[::-1], "later one"),
        (north.rename(columns={"ds": "day"}), "columns"),
    ):
        with pytest.raises(ArgumentError, match=words):
            PanelForecaster(horizon=2).fit(bad)
