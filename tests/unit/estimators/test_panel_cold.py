"""Series of no, one or a few values among others: what they get from these, or an error."""

import numpy as np
import pandas as pd
import pytest

from linrnn import PanelForecaster
from linrnn.cli import main
from linrnn.errors import ArgumentError

DAYS = pd.date_range("2024-01-01", periods=77)  # ends on a Sunday


def shop(name, n, level):
    """Weekends are ten above the other days."""
    rng = np.random.default_rng(n)
    days = DAYS[len(DAYS) - n :]
    y = level + 10 * (days.day_of_week > 4) + rng.normal(size=n)
    return pd.DataFrame({"unique_id": name, "ds": days, "y": y, "size": level})


LONG = pd.concat([shop(f"s{k}", 77, 20.0 * (k + 1)) for k in range(4)])


def bands(table, *names, static=None, known=()):
    rows = table.drop(columns="size")
    X = None
    if known:
        later = pd.date_range(DAYS[-1] + pd.Timedelta(1, "D"), periods=7)
        rows = rows.assign(promo=promo(rows["ds"]))
        rows["y"] += 30 * rows["promo"]
        X = pd.concat(
            pd.DataFrame({"unique_id": key, "ds": later, "promo": promo(later)})
            for key in rows["unique_id"].unique()
        )
    band = PanelForecaster(7, 7, known=known).fit(rows, static).predict_interval(X=X)
    return [band[band["unique_id"] == name] for name in names]


def promo(days):
    """1 on a day of three, about."""
    return np.asarray(pd.DatetimeIndex(days).day_of_year * 7 % 10 < 3, dtype=float)


@pytest.mark.parametrize(
    ("n", "with_static"),
    [
        pytest.param(n, with_static, id=f"{n}-{name}", marks=() if quick else pytest.mark.slow)
        for n in (1, 2, 3, 4)
        for with_static, name in ((False, "alone"), (True, "static"))
        for quick in [with_static == (n % 2 == 0)]
    ],
)
def test_a_series_of_few_values_has_bands_of_what_few_values_are_good_for(n, with_static):
    """Its last values are a weekend's. Bands two wide, of methods for long series, held none."""
    table = pd.concat([LONG, shop("new", n, 60.0)])
    static = table[["unique_id", "size"]].drop_duplicates() if with_static else None
    band, old = bands(table, "new", "s2", static=static)
    assert np.isfinite(band[["y", "y_lower", "y_upper"]].to_numpy()).all()
    came = 60.0 + 10 * (band["ds"].dt.day_of_week > 4)
    held = (band["y_lower"] <= came) & (came <= band["y_upper"])
    assert held.mean() >= 0.7
    assert (band["y"] - came).abs().max() < 25
    assert (old["y_upper"] - old["y_lower"]).max() < 10


@pytest.mark.parametrize(
    "n", [pytest.param(n, marks=() if n in (1, 4) else pytest.mark.slow) for n in (1, 2, 3, 4)]
)
def test_a_series_of_few_values_is_judged_with_inputs_that_are_known_too(n):
    """Bands of methods for long series held 1 of the 28 days after such series."""
    (band,) = bands(pd.concat([LONG, shop("new", n, 60.0)]), "new", known=("promo",))
    assert np.isfinite(band[["y", "y_lower", "y_upper"]].to_numpy()).all()
    came = 60.0 + 10 * (band["ds"].dt.day_of_week > 4) + 30 * promo(band["ds"])
    held = (band["y_lower"] <= came) & (came <= band["y_upper"])
    assert held.mean() >= 0.8


def test_the_forecast_of_long_series_hangs_little_on_a_new_one():
    more = pd.concat([LONG, shop("new", 1, 60.0)])
    before, after = (bands(table, "s1")[0]["y"] for table in (LONG, more))
    np.testing.assert_allclose(after, before, atol=1.0)


@pytest.mark.parametrize("missing", ["error", "ffill"])
def test_a_series_without_a_value_is_named(missing):
    none = shop("none", 3, 60.0).assign(y=np.nan)
    rows = pd.concat([LONG, none]).drop(columns="size")
    with pytest.raises(ArgumentError, match=r"at least once .* none in series 'none'.*One value"):
        PanelForecaster(7, 7, missing=missing).fit(rows)


def test_the_command_line_forecasts_new_series_and_names_those_without_a_value(tmp_path, capsys):
    run, data = str(tmp_path / "run"), tmp_path / "shops.csv"
    pd.concat([LONG, shop("one", 1, 60.0), shop("two", 2, 50.0)]).to_csv(data, index=False)
    options = ["--task.horizon", "7", "--task.static", "size", "--out", run, "-q"]
    assert main(["train", "forecast", "--data", str(data), *options]) == 0
    capsys.readouterr()
    assert main(["predict", run, str(data)]) == 0
    (tmp_path / "answer.csv").write_text(capsys.readouterr().out)
    answer = pd.read_csv(tmp_path / "answer.csv").set_index("unique_id")
    for name, usual in {"one": 60.0, "two": 50.0}.items():
        assert (answer.loc[name, "y_lower"] < usual).all()
        assert (answer.loc[name, "y_upper"] > usual).all()
    none = shop("none", 3, 60.0).assign(y=np.nan)
    pd.concat([LONG, none]).to_csv(data, index=False)
    assert main(["train", "forecast", "--data", str(data), "--out", run + "2", "-q"]) != 0
    assert "must have a value in column y, got none of 'none'" in capsys.readouterr().err
