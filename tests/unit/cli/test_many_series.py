"""Long tables of many series on the command line."""

import io
import json

import numpy as np
import pandas as pd
import pytest

import linrnn
from linrnn.cli import main
from linrnn.errors import ArgumentError, LinrnnError
from linrnn.tasks import column_names, open_frame

DAYS = pd.date_range("2024-01-01", periods=35)


def table():
    rng = np.random.default_rng(0)
    shops = pd.DataFrame({"unique_id": np.repeat(["n", "s"], 35), "ds": DAYS.append(DAYS)})
    shops["price"] = rng.choice([2.0, 3.0], 70)
    shops["region"] = np.repeat(["up", "down"], 35)
    shops["note"] = "x"
    shops["y"] = 40 - 8 * shops["price"] + rng.normal(size=70)
    shops.loc[shops["ds"] >= DAYS[30], "y"] = np.nan
    return shops


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("many")
    table().to_csv(place / "shops.csv", index=False)
    renamed = table().rename(columns={"unique_id": "shop", "ds": "day", "y": "sold"})
    renamed.to_csv(place / "named.csv", index=False)
    options = ["--task.horizon", "5", "--task.known", "price", "--task.static", "region"]
    argv = ["train", "forecast", "--data", str(place / "shops.csv"), "--out", str(place / "run")]
    assert main([*argv, *options, "-q"]) == 0
    return place


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".parquet"])
@pytest.mark.parametrize("rows", [1, 70, 60_000])
def test_names_of_columns_are_read_from_the_head_as_from_the_whole(tmp_path, ending, rows):
    """Long files too, whose head ends inside a row."""
    long = pd.DataFrame({"unique_id": "a series", "a, b": 1.5, "y": np.arange(float(rows))})
    path = tmp_path / f"x{ending}"
    if ending == ".parquet":
        long.to_parquet(path)
    else:
        long.to_csv(path, index=False)
    assert column_names(path) == open_frame(path).names == ["unique_id", "a, b", "y"]


@pytest.mark.parametrize("text", ["", "unique_id,ds,y", "1,2\n3,4\n", "a;b\n1,5;2\n"])
def test_an_odd_head_has_the_names_or_the_refusal_of_the_whole(tmp_path, text):
    path = tmp_path / "x.csv"
    path.write_text(text)

    def outcome(read):
        try:
            return read(path)
        except LinrnnError as error:
            return str(error)

    assert outcome(column_names) == outcome(lambda path: open_frame(path).names)


def test_predict_goes_on_after_the_last_value_as_the_loaded_run_does(place, capsys):
    assert main(["predict", str(place / "run"), str(place / "shops.csv"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["predictions"]
    assert [row["ds"] for row in rows[:5]] == [f"{day:%Y-%m-%d}" for day in DAYS[30:]]
    later = table()[table()["ds"] >= DAYS[30]][["unique_id", "ds", "price"]]
    expected = linrnn.load(place / "run").predict(X=later)
    np.testing.assert_allclose([row["y"] for row in rows], expected["y"])


def _without_values(shops):
    """One series has rows of what is known ahead, and no value."""
    return shops.assign(y=shops["y"].where(shops["unique_id"] != "n"))


def _without_rows(shops):
    return shops[shops["unique_id"] != "n"]


def _short_of_inputs(shops):
    """Inputs known ahead end two days earlier for one series than for the other."""
    return shops[(shops["unique_id"] != "n") | (shops["ds"] < DAYS[33])]


def _with_a_new_one(shops):
    return pd.concat([shops, shops[shops["unique_id"] == "n"].replace("n", "new")])


def _inputs_alone(shops):
    """Inputs known ahead alone, also of a series that was not fitted."""
    return _with_a_new_one(shops[shops["ds"] >= DAYS[30]])


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (_without_values, "'n'"),
        (_without_rows, "'n'"),
        (_short_of_inputs, "3 steps of 5"),
        (_with_a_new_one, "'new'"),
        (_inputs_alone, "'new'"),
    ],
)
def test_nothing_of_a_file_or_a_run_is_left_out_without_a_word(
    place, tmp_path, capsys, changed, named
):
    """Each series has all its steps in the answer, or standard error says what has not."""
    changed(table()).to_csv(tmp_path / "new.csv", index=False)
    code = main(["predict", str(place / "run"), str(tmp_path / "new.csv")])
    out, err = capsys.readouterr()
    assert named in err
    if code == 0:
        answer = pd.read_csv(io.StringIO(out))
        assert np.isfinite(answer[["y", "y_lower", "y_upper"]].to_numpy()).all()
    else:
        assert not out
        assert ", got " in err


def test_a_whole_file_is_answered_without_a_notice(place, capsys):
    assert main(["predict", str(place / "run"), str(place / "shops.csv")]) == 0
    assert capsys.readouterr().err == ""
    assert main(["predict", str(place / "run"), str(place / "shops.csv"), "-q"]) == 0


def test_inputs_of_a_series_that_was_not_fitted_are_named(place):
    """Those of one that was fitted and is not followed are what a table of all has."""
    forecaster = linrnn.load(place / "run")
    rows = table()[table()["ds"] < DAYS[30]][["unique_id", "ds", "price", "y"]]
    later = table()[table()["ds"] >= DAYS[30]][["unique_id", "ds", "price"]]
    with pytest.raises(
        ArgumentError, match="every series of X must be one that was fitted, got 'w'"
    ):
        forecaster.predict(X=_with_a_new_one(later).replace("new", "w"))
    one = forecaster.follow(rows[rows["unique_id"] == "s"])
    assert one.predict(X=later)["unique_id"].unique().tolist() == ["s"]


def test_eval_repeats_the_test_of_the_training(place, capsys):
    assert main(["eval", str(place / "run"), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    before = json.loads((place / "run" / "panel.json").read_text())["result"]
    assert again["test_metric"] == before["test_metric"]
    assert "the last value" in (place / "run" / "contest.csv").read_text()


def test_eval_names_a_file_that_is_gone_and_takes_it_where_it_is(place, tmp_path, capsys):
    table().to_csv(tmp_path / "here.csv", index=False)
    run, here, moved = (str(tmp_path / name) for name in ("run", "here.csv", "moved.csv"))
    options = ["--task.horizon", "5", "--task.known", "price", "--out", run, "-q"]
    assert main(["train", "forecast", "--data", here, *options]) == 0
    capsys.readouterr()
    assert main(["eval", run, "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    assert before["data"] == here
    (tmp_path / "here.csv").rename(moved)
    assert main(["eval", run]) == 1
    said = capsys.readouterr().err
    assert f"must be at {here}, got no such file" in said
    assert f"linrnn eval {run} --data" in said
    assert main(["eval", run, "--data", moved, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["test_metric"] == before["test_metric"]
    assert again["data"] == moved
    other = table().assign(y=lambda t: t["y"] * np.linspace(1, 2, len(t)))
    other.to_csv(here, index=False)
    assert main(["eval", run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["test_metric"] != before["test_metric"]
    assert main(["eval", run, "--data", moved, "--cycles", "2"]) != 0
    assert "--data must be alone, got --cycles too" in capsys.readouterr().err


def test_following_the_same_table_says_the_same_and_a_new_series_is_named(place):
    forecaster = linrnn.load(place / "run")
    rows = table()[table()["ds"] < DAYS[30]][["unique_id", "ds", "price", "y"]]
    later = table()[table()["ds"] >= DAYS[30]][["unique_id", "ds", "price"]]
    followed = forecaster.follow(rows)
    expected = forecaster.predict(X=later)["y"]
    np.testing.assert_allclose(followed.predict(X=later)["y"], expected)
    one = forecaster.follow(rows[rows["unique_id"] == "s"]).predict(X=later)
    assert one["unique_id"].unique().tolist() == ["s"]
    with pytest.raises(ArgumentError, match="must be one that was fitted, got 'w'"):
        forecaster.follow(rows.replace("s", "w"))


def test_totals_are_forecast_beside_their_parts(tmp_path, capsys):
    shops = table().dropna(subset=["y"])
    regions = shops["unique_id"].map(lambda name: "up" if name == "n" else "down")
    shops.assign(land=regions).to_csv(tmp_path / "shops.csv", index=False)
    data, run = str(tmp_path / "shops.csv"), str(tmp_path / "run")
    options = ["--task.id", "land", "unique_id", "--task.totals", "--task.horizon", "2"]
    assert main(["train", "forecast", "--data", data, *options, "--out", run, "-q"]) == 0
    capsys.readouterr()
    assert main(["predict", run, data]) == 0
    answers = pd.read_csv(io.StringIO(capsys.readouterr().out))
    whole = answers["land"] == "(all)"
    parts = answers["unique_id"] != "(all)"
    sums = answers[parts].groupby("ds")["y"].sum()
    np.testing.assert_allclose(answers[whole].set_index("ds")["y"], sums, rtol=1e-4)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--task.id", "shp"], "no column named 'shp'. Did you mean 'shop'?"),
        (["--task.id", "shop", "--task.time", "day"], "Name it: --task.value COLUMN"),
        (
            ["--task.id=shop", "--task.time=day", "--task.value=sold", "--task.static=price"],
            "column price must stay the same in a series, got",
        ),
        (["--task.id", "shop", "--mixer", "lru"], "id must be left out where a mixer"),
        (["--task.totals", "--mixer", "lru"], "totals must be left out where a mixer"),
        (["--task.known", "price", "--only", "bank"], "known must be left out where a mixer"),
    ],
)
def test_errors_name_the_column(place, options, said, capsys):
    argv = ["train", "forecast", "--data", str(place / "named.csv"), *options]
    assert main([*argv, "--out", str(place / "other")]) != 0
    assert said in capsys.readouterr().err
    assert not (place / "other").exists()


@pytest.mark.unchecked
def test_other_verbs_say_what_the_folder_holds(place, capsys):
    assert main(["export", str(place / "run"), str(place / "a.onnx")]) != 0
    assert "a forecaster of many series" in capsys.readouterr().err
