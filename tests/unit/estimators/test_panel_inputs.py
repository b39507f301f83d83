"""Inputs of `PanelForecaster`: known ahead, of the past, and of each series."""

import numpy as np
import pandas as pd
import pytest

from linrnn import PanelForecaster
from linrnn.errors import ArgumentError, ArgumentTypeError

STEPS = 60


def sale(name, seed, effect=8.0):
    """Noise about 20, and what a promotion adds."""
    rng = np.random.default_rng(seed)
    promo = (rng.random(STEPS) < 0.25).astype(float)
    promo[-2:] = 1.0, 0.0
    y = 20 + effect * promo + rng.normal(size=STEPS)
    return pd.DataFrame({"unique_id": name, "ds": np.arange(STEPS), "y": y, "promo": promo})


SALES = pd.concat([sale("a", 0), sale("b", 1)])
PAST, AHEAD = SALES[SALES["ds"] < STEPS - 2], SALES[SALES["ds"] >= STEPS - 2]


@pytest.fixture(scope="module")
def promoted():
    return PanelForecaster(2, 1, known=("promo",)).fit(PAST)


def test_what_is_known_ahead_moves_the_forecast_by_its_effect(promoted):
    y = promoted.predict(X=AHEAD).set_index(["unique_id", "ds"])["y"].unstack()
    np.testing.assert_allclose(y[STEPS - 2] - y[STEPS - 1], 8, atol=1.5)
    without = AHEAD.assign(promo=0.0)
    still = promoted.predict(X=without).set_index(["unique_id", "ds"])["y"].unstack()
    assert (still[STEPS - 2] - still[STEPS - 1]).abs().max() < 1.5


def test_two_series_may_have_two_effects():
    two = pd.concat([sale("a", 0, 8.0), sale("b", 1, -8.0)])
    forecaster = PanelForecaster(2, 1, known=("promo",)).fit(two[two["ds"] < STEPS - 2])
    y = forecaster.predict(X=AHEAD).set_index(["unique_id", "ds"])["y"].unstack()
    np.testing.assert_allclose(y[STEPS - 2] - y[STEPS - 1], [8, -8], atol=2)


def test_values_and_further_rows_of_x_say_nothing(promoted):
    expected = promoted.predict(X=AHEAD)
    for X in (
        AHEAD.drop(columns="y"),
        AHEAD.assign(y=-1e9),
        SALES,
        AHEAD.iloc[::-1],
    ):
        pd.testing.assert_frame_equal(promoted.predict(X=X), expected)
    first = promoted.predict(1, X=AHEAD[AHEAD["ds"] == STEPS - 2])
    np.testing.assert_allclose(first["y"], expected["y"][::2], rtol=1e-12)


def test_bad_inputs_are_refused_by_name(promoted):
    for X, error, words in (
        (None, ArgumentError, "X must hold the known inputs"),
        (AHEAD.drop(columns="promo"), ArgumentError, "X must have the columns"),
        (AHEAD.head(3), ArgumentError, "X must have a number .* 'promo' at 59 of series 'b'"),
        (AHEAD.assign(promo=np.nan), ArgumentError, "X must have a number"),
        (pd.concat([AHEAD, AHEAD.assign(unique_id="c")]), ArgumentError, "X .* fitted, got 'c'"),
        (AHEAD.assign(promo="yes"), ArgumentTypeError, "column 'promo' of X must hold numbers"),
        (pd.concat([AHEAD, AHEAD.head(1)]), ArgumentError, "X must have one row .* 58 .* 'a'"),
    ):
        with pytest.raises(error, match=words):
            promoted.predict(X=X)
    with pytest.raises(ArgumentError, match="known must name columns of y, got 'price'"):
        PanelForecaster(2, known=("price",)).fit(PAST)
    with pytest.raises(ArgumentError, match="column 'promo' must hold a number"):
        PanelForecaster(2, known=("promo",)).fit(PAST.assign(promo=np.nan))


def test_known_inputs_of_an_index_of_ids_and_times(promoted):
    levels = ["unique_id", "ds"]
    forecaster = PanelForecaster(2, 1, known=("promo",)).fit(PAST.set_index(levels))
    answer = forecaster.predict(X=AHEAD.set_index(levels)[["promo"]])
    np.testing.assert_allclose(answer["y"], promoted.predict(X=AHEAD)["y"])
    with pytest.raises(ArgumentError, match="without 'y'"):
        PanelForecaster(2).fit(PAST.rename(columns={"y": "sales"}).set_index(levels))


def test_inputs_are_stored(promoted, tmp_path):
    promoted.save(tmp_path / "sales")
    again = PanelForecaster.load(tmp_path / "sales")
    pd.testing.assert_frame_equal(again.predict(X=AHEAD), promoted.predict(X=AHEAD))


def led(name, seed):
    """Each value is twice the input a step before."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=120)
    x[109] = 3.0
    y = 10 + np.r_[0, 2 * x[:-1]] + 0.2 * rng.normal(size=120)
    return pd.DataFrame({"unique_id": name, "ds": np.arange(120), "y": y, "lead": x})


LED = pd.concat([led("a", 0), led("b", 1)])


def test_an_input_of_the_past_that_leads_is_used():
    past = LED[LED["ds"] < 110]
    forecaster = PanelForecaster(1, 1).fit(past)
    expected = 10 + 2 * past.groupby("unique_id")["lead"].last().to_numpy()
    np.testing.assert_allclose(forecaster.predict()["y"], expected, atol=1.5)
    blind = PanelForecaster(1, 1).fit(past.drop(columns="lead")).predict()["y"]
    assert np.abs(blind - expected).min() > 4


def test_what_does_not_change_is_told_from_numbers_and_words():
    """Slopes differ by kind: a series of one step says nothing of its own."""
    rng = np.random.default_rng(0)
    kinds = {f"{kind}{k}": kind for kind in ("up", "down") for k in range(6)}
    slope = {"up": 2.0, "down": -2.0}
    rows = []
    for k, (name, kind) in enumerate(kinds.items()):
        steps = np.arange(24 if k % 6 else 4)
        y = 50 + slope[kind] * steps + 6 * rng.normal(size=len(steps))
        rows.append(pd.DataFrame({"unique_id": name, "ds": steps + 24 - len(steps), "y": y}))
    table = pd.concat(rows)
    words = pd.DataFrame({"unique_id": list(kinds), "kind": list(kinds.values()), "size": 1.0})
    numbers = words.assign(kind=(words["kind"] == "up").astype(float))
    # the regression of all series hears of it, and nothing else
    blind = PanelForecaster(4, 1).fit(table).scores_["bank"].mean()
    for static in (words, numbers):
        told = PanelForecaster(4, 1).fit(table, static).scores_["bank"].mean()
        assert told < 0.95 * blind


@pytest.mark.parametrize(
    ("static", "words"),
    [
        (pd.DataFrame({"unique_id": ["a"], "size": 1.0}), "row for each series, got none for 'b'"),
        (pd.DataFrame({"unique_id": ["a", "a", "b"], "size": 1.0}), "got 'a' twice"),
        (pd.DataFrame({"unique_id": ["a", "b"], "size": np.nan}), "finite numbers"),
        (pd.DataFrame({"shop": ["a", "b"], "size": 1.0}), "static must be a DataFrame"),
        ({"a": 1.0}, "static must be a DataFrame"),
    ],
)
def test_bad_statics_are_refused_by_name(static, words):
    with pytest.raises(ArgumentError, match=words):
        PanelForecaster(2, 1).fit(PAST.drop(columns="promo"), static)


@pytest.mark.parametrize(
    "cells",
    [
        pd.date_range("2024", periods=2),
        pd.date_range("2024", periods=2, tz="UTC"),
        pd.date_range("2024", periods=2).date,
        pd.period_range("2024", periods=2, freq="D"),
        pd.timedelta_range("1D", periods=2),
        pd.interval_range(0, 2),
        [1j, 2j],
        [{"x": 1}, {"x": 2}],
    ],
    ids=["times", "zoned", "dates", "periods", "spans", "intervals", "complex", "objects"],
)
def test_statics_that_are_neither_numbers_nor_words_are_refused(cells):
    static = pd.DataFrame({"unique_id": ["a", "b"], "opened": cells})
    with pytest.raises(ArgumentTypeError, match=r"static.*opened|opened.*static"):
        PanelForecaster(2, 1).fit(PAST.drop(columns="promo"), static)


@pytest.mark.parametrize("kind", ["str", "string", "category", object])
def test_a_missing_word_is_no_category(kind):
    table = PAST.drop(columns="promo")
    words = pd.Series(["north", None], dtype=kind)
    static = pd.DataFrame({"unique_id": ["a", "b"], "region": words})
    number = static.assign(region=[1.0, 0.0])
    of_words = PanelForecaster(2, 1).fit(table, static).predict()
    pd.testing.assert_frame_equal(of_words, PanelForecaster(2, 1).fit(table, number).predict())


@pytest.mark.parametrize("unit", [1e-9, 1e200])
def test_inputs_may_have_any_unit(promoted, unit):
    small = PanelForecaster(2, 1, known=("promo",)).fit(PAST.assign(promo=PAST["promo"] * unit))
    answer = small.predict(X=AHEAD.assign(promo=AHEAD["promo"] * unit))
    np.testing.assert_allclose(answer["y"], promoted.predict(X=AHEAD)["y"], rtol=1e-6)


def test_known_inputs_may_be_dated_in_another_time_zone():
    days = pd.date_range("2024-03-24", periods=14)  # summer time begins in Berlin
    past = pd.DataFrame({"unique_id": "a", "ds": days, "y": np.arange(14.0), "promo": 1.0})
    ahead = pd.DataFrame({"unique_id": "a", "ds": pd.date_range(days[-1], periods=3)[1:]})
    ahead["promo"] = [1.0, 0.0]

    def zoned(table, zone):
        return table.assign(ds=table["ds"].dt.tz_localize(zone))

    fitted = PanelForecaster(2, 1, known=("promo",)).fit(zoned(past, "Europe/Berlin"))
    expected = fitted.predict(X=zoned(ahead, "Europe/Berlin"))
    elsewhere = zoned(ahead, "Europe/Berlin")
    elsewhere["ds"] = elsewhere["ds"].dt.tz_convert("UTC")
    pd.testing.assert_frame_equal(fitted.predict(X=elsewhere), expected)
    with pytest.raises(ArgumentError, match="'ds' of X must have dates with a time zone as in y"):
        fitted.predict(X=ahead)
    plain = PanelForecaster(2, 1, known=("promo",)).fit(past)
    with pytest.raises(ArgumentError, match="'ds' of X must have dates without a time zone"):
        plain.predict(X=elsewhere)


def test_two_columns_of_one_name_are_refused_in_every_table():
    """A long one ended in an AttributeError, a wide one spoke of times that come twice."""
    twice = pd.concat([PAST, PAST[["y"]]], axis=1)
    wide = PAST.pivot(index="ds", columns="unique_id", values="y").set_axis(["a", "a"], axis=1)
    wide.index = pd.date_range("2024-01-01", periods=len(wide))
    kinds = pd.DataFrame({"unique_id": ["a", "b"], "size": 1.0})
    fitted = PanelForecaster(2, 1, known=("promo",)).fit(PAST)
    for call in (
        lambda: PanelForecaster(2, 1).fit(twice),
        lambda: PanelForecaster(2, 1).fit(wide),
        lambda: PanelForecaster(2, 1).fit(PAST, pd.concat([kinds, kinds[["size"]]], axis=1)),
        lambda: fitted.predict(X=pd.concat([AHEAD, AHEAD[["promo"]]], axis=1)),
        lambda: fitted.follow(twice),
    ):
        with pytest.raises(ArgumentError, match=r"must have names that differ, got .* twice"):
            call()


def test_ids_that_cannot_name_a_series_are_refused_with_their_row():
    listed = PAST.assign(unique_id=[["a"]] * len(PAST))
    with pytest.raises(ArgumentTypeError, match=r"'unique_id' of y .*got \['a'\] in row 0"):
        PanelForecaster(2, 1).fit(listed)


def test_constants_are_numbers_in_a_column_of_objects_and_may_be_indexed_by_ids():
    past = PAST.drop(columns="promo")
    numbers = pd.DataFrame({"unique_id": ["a", "b"], "size": [1.0, 3.0]})
    expected = PanelForecaster(2, 1).fit(past, numbers).predict()
    for same in (numbers.astype({"size": object}), numbers.set_index("unique_id")):
        pd.testing.assert_frame_equal(PanelForecaster(2, 1).fit(past, same).predict(), expected)
