"""Totals of groups of series: forecasts that add up, and what is refused."""

import numpy as np
import pandas as pd
import pytest

from linrnn import PanelForecaster
from linrnn.errors import ArgumentError, ArgumentTypeError
from linrnn.estimators._panel import engine

ALL = "(all)"
DAYS = pd.date_range("2024-01-01", periods=84)


def sales(noise=2.0, seed=0, late=0, unit=1.0):
    """Shops of two regions with a week in common; the last shops begin later."""
    random = np.random.default_rng(seed)
    parts = []
    for region, shops in (("north", 3), ("south", 2)):
        for k in range(shops):
            days = DAYS[late * k :]
            level = 10 + 5 * k + 4 * (days.day_of_week > 4)
            y = unit * (level + noise * random.normal(size=len(days)))
            columns = {"region": region, "shop": f"shop {k}", "ds": days, "y": y}
            parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


def forecaster(**options):
    return PanelForecaster(horizon=7, id=("region", "shop"), totals=True, **options)


@pytest.fixture(scope="module")
def fitted():
    return forecaster().fit(sales(late=7))


def add_up(answers, value="y"):
    table = answers.pivot(index="ds", columns=["region", "shop"], values=value)
    for region in ("north", "south"):
        shops = table[region].drop(columns=ALL)
        np.testing.assert_allclose(table[region, ALL], shops.sum(axis=1), rtol=1e-12)
    regions = table["north", ALL] + table["south", ALL]
    np.testing.assert_allclose(table[ALL, ALL], regions, rtol=1e-12)


def test_forecasts_add_up_at_every_level(fitted):
    answers = fitted.predict()
    assert len(answers) == 7 * (5 + 2 + 1)
    add_up(answers)
    add_up(forecaster().fit(sales(unit=1e200)).predict())
    add_up(forecaster().fit(sales(unit=1e-200)).predict())


def test_the_totals_are_sums_of_what_is_there():
    """Shops begin one week after another, so sums grow; the panel holds them as they were."""
    table = sales(late=7)
    panel = forecaster().fit(table)._panel
    place = panel.keys.get_loc(("north", ALL))
    expected = table[table["region"] == "north"].groupby("ds")["y"].sum()
    y = np.ldexp(panel.batch.y[place], panel.powers[place])
    np.testing.assert_allclose(y, expected, rtol=1e-12)
    one = panel.keys.get_loc((ALL, ALL))
    np.testing.assert_allclose(
        np.ldexp(panel.batch.y[one], panel.powers[one]), table.groupby("ds")["y"].sum(), rtol=1e-12
    )


def test_they_are_the_weighted_least_squares_of_all_forecasts(fitted):
    """An oracle: b = (S' W^-1 S)^-1 S' W^-1 yhat for all nodes at once."""
    panel, chosen = fitted._panel, fitted._chosen
    raw = engine.forecast(panel.batch, fitted.season_, fitted.horizon_, None, chosen)
    width = engine.half_widths(panel.batch, chosen, 0.8)[:, 0]
    unit = 2.0**panel.powers
    raw, weights = raw * unit[:, None], 1 / (width * unit) ** 2
    parts = [key for key in panel.keys if key[1] != ALL]
    S = np.array(
        [
            [all(a in (ALL, b) for a, b in zip(key, part, strict=True)) for part in parts]
            for key in panel.keys
        ],
        dtype=float,
    )
    least = np.linalg.solve(S.T @ (weights[:, None] * S), S.T @ (weights[:, None] * raw))
    answers = fitted.predict()["y"].to_numpy().reshape(len(panel.keys), -1)
    np.testing.assert_allclose(answers, S @ least, rtol=1e-8)


def test_a_part_that_never_was_negative_stays_so():
    table = sales(noise=0.1)
    small = table["shop"] == "shop 0"
    table.loc[small, "y"] = (np.arange(small.sum()) % 9 == 0).astype(float)
    answers = forecaster().fit(table).predict()
    assert (answers["y"] >= 0).all()
    add_up(answers)


def test_one_column_of_ids_has_one_total():
    table = sales()
    table["unique_id"] = table["region"] + " " + table["shop"]
    fitted = PanelForecaster(horizon=3, totals=True).fit(table[["unique_id", "ds", "y"]])
    wide = fitted.predict().pivot(index="ds", columns="unique_id", values="y")
    np.testing.assert_allclose(wide[ALL], wide.drop(columns=ALL).sum(axis=1))
    columns = table.pivot(index="ds", columns="unique_id", values="y")
    as_wide = PanelForecaster(horizon=3, totals=True).fit(columns).predict()
    np.testing.assert_allclose(as_wide[ALL], wide[ALL], rtol=1e-9)


def test_three_levels_of_ids():
    table = sales()
    both = pd.concat([table.assign(country="a"), table.assign(country="b", y=2 * table["y"])])
    options = {"horizon": 2, "id": ("country", "region", "shop"), "totals": True}
    answers = PanelForecaster(**options).fit(both).predict()
    first = answers[answers["ds"] == answers["ds"].min()].set_index(["country", "region", "shop"])
    assert len(first) == 10 + 4 + 2 + 1
    countries = first.loc[("a", ALL, ALL), "y"] + first.loc[("b", ALL, ALL), "y"]
    assert first.loc[(ALL, ALL, ALL), "y"] == pytest.approx(countries)


def test_it_is_saved_and_follows(fitted, tmp_path):
    fitted.save(tmp_path / "file.safetensors")
    again = PanelForecaster.load(tmp_path / "file.safetensors")
    pd.testing.assert_frame_equal(again.predict(), fitted.predict())
    table = sales(late=7)
    earlier = table[table["ds"] < DAYS[-10]].sample(frac=1, random_state=0)
    answers = again.follow(earlier).predict()
    assert answers["ds"].min() == DAYS[-10]
    add_up(answers)
    with pytest.raises(ArgumentError, match=r"every series of the fit for totals.*shop 2"):
        again.follow(table[table["shop"] != "shop 2"])


def test_known_inputs_of_totals_are_means():
    table = sales(noise=0.5)
    random = np.random.default_rng(1)
    table["promotion"] = (random.random(len(table)) < 0.2).astype(float)
    table["y"] += 6 * table["promotion"]
    past, later = table[table["ds"] < DAYS[-7]], table[table["ds"] >= DAYS[-7]]
    fitted = forecaster(known=("promotion",)).fit(past)
    answers = fitted.predict(X=later.drop(columns="y"))
    add_up(answers)
    both = answers.merge(later, on=["region", "shop", "ds"])
    assert (both["y_x"] - both["y_y"]).abs().mean() < 2
    shops = past[["region", "shop"]].drop_duplicates().assign(size=np.arange(5))
    add_up(forecaster().fit(past[["region", "shop", "ds", "y"]], static=shops).predict())


@pytest.mark.slow
def test_sums_are_forecast_better_with_totals_where_parts_are_mostly_noise():
    """Three regions, each with a week and a walk of its own; errors of sums over all shops."""
    days, errors = pd.date_range("2024-01-01", periods=140), {True: [], False: []}
    week = 3 * np.sin(2 * np.pi * np.arange(140) / 7)
    for seed in range(3):
        random, parts = np.random.default_rng(seed), []
        for region in range(3):
            common = 20 + week + 0.4 * np.cumsum(random.normal(size=140))
            for shop in range(4):
                y = common + 6 * random.normal(size=140)
                ids = {"region": f"region {region}", "shop": f"shop {shop}"}
                parts.append(pd.DataFrame({**ids, "ds": days, "y": y}))
        table = pd.concat(parts)
        for end in (112, 119, 126, 133):
            past = table[table["ds"] < days[end]]
            came = table[table["ds"].isin(days[end : end + 7])].groupby("ds")["y"].sum()
            for totals, apart in errors.items():
                options = {"horizon": 7, "id": ("region", "shop"), "totals": totals}
                answers = PanelForecaster(**options).fit(past).predict()
                shops = answers[answers["shop"] != ALL].groupby("ds")["y"].sum()
                apart.append((shops - came).abs().mean())
    assert np.mean(errors[True]) < 0.98 * np.mean(errors[False])


def test_what_cannot_be_is_refused():
    table = sales()
    with pytest.raises(ArgumentError, match=r"end at the same time for totals.*shop 2"):
        forecaster().fit(table[(table["shop"] != "shop 2") | (table["ds"] < DAYS[-3])])
    with pytest.raises(ArgumentError, match=r"text other than.*got 1"):
        forecaster().fit(table.assign(shop=1, region="a").drop_duplicates("ds"))
    with pytest.raises(ArgumentError, match=r"text other than '\(all\)'"):
        forecaster().fit(table.replace("shop 2", ALL))


@pytest.mark.unchecked
def test_totals_are_true_or_false():
    with pytest.raises(ArgumentTypeError, match="totals must be True or False, got 'yes'"):
        PanelForecaster(totals="yes").fit(sales())
