"""A `PanelForecaster` that was saved, copied or followed remembers all that the fit knew."""

import copy
import json
import pickle

import numpy as np
import pandas as pd
import pytest

from linrnn import PanelForecaster
from linrnn.errors import LinrnnError
from linrnn.train.checkpoint import load_tensors, save_tensors

STEPS = 10
SHOPS = ("north", "south", "west")


def stamps(kind):
    """Times of every kind."""
    return {
        "numbers": pd.Index(np.arange(3, 3 + 2 * STEPS, 2)),
        "days": pd.date_range("2024-02-20", periods=STEPS),
        "zone": pd.date_range("2024-03-25", periods=STEPS, tz="Europe/Berlin"),
        "weeks": pd.date_range("2024-02-20", periods=STEPS, freq="W-TUE"),
        "quarters": pd.period_range("2020Q2", periods=STEPS, freq="Q"),
    }[kind]


def table_of(kind="days", ids=SHOPS, seed=0):
    """Series with an input, one below the other; the last begins later."""
    rng = np.random.default_rng(seed)
    times = stamps(kind)
    parts = []
    for k, name in enumerate(ids):
        promo = rng.integers(0, 2, STEPS).astype(float)
        y = 20 + 5 * k + 4 * promo + rng.normal(size=STEPS)
        part = pd.DataFrame({"unique_id": name, "ds": times, "y": y, "promo": promo})
        parts.append(part.tail(STEPS - 4 * (k == 2)))
    return pd.concat(parts, ignore_index=True)


def ahead_of(table, fitted, ids=None):
    """Known inputs of the next two steps of some series."""
    later = fitted._panel.grid.times(int(fitted._panel.ends.max()) + 1, 2)
    ids = list(dict.fromkeys(table["unique_id"])) if ids is None else ids
    return pd.concat(
        [pd.DataFrame({"unique_id": name, "ds": later, "promo": [1.0, 0.0]}) for name in ids],
        ignore_index=True,
    )


CASES = {
    "numbers": lambda: (PanelForecaster(2, 1), table_of("numbers").drop(columns="promo")),
    "zone": lambda: (PanelForecaster(2, 1), table_of("zone")),
    "weeks": lambda: (PanelForecaster(2, 1), table_of("weeks")),
    "quarters": lambda: (PanelForecaster(2, 4), table_of("quarters")),
    "known": lambda: (PanelForecaster(2, 1, known=("promo",)), table_of()),
    "known, totals": lambda: (PanelForecaster(2, 1, known=["promo"], totals=True), table_of()),
    "ids of numbers": lambda: (
        PanelForecaster(2, 1, known=("promo",)),
        table_of(ids=(5, 3, 9)).astype({"unique_id": "int32"}),
    ),
    "ids of categories": lambda: (
        PanelForecaster(2, 1, known=("promo",)),
        table_of().astype({"unique_id": "category"}),
    ),
    "two ids": lambda: (
        PanelForecaster(2, 1, id=["land", "unique_id"], totals=True),
        table_of().assign(land=lambda t: t["unique_id"].str[:1]),
    ),
    "levels": lambda: (PanelForecaster(2, 1), table_of().set_index(["unique_id", "ds"])),
    "wide": lambda: (
        PanelForecaster(2, 1),
        table_of().pivot(index="ds", columns="unique_id", values="y")[["west", "north"]],
    ),
    "series": lambda: (PanelForecaster(2, 1), table_of().head(STEPS).set_index("ds")["y"]),
    "array": lambda: (PanelForecaster(2, 1), table_of()["y"].to_numpy()[:STEPS]),
}


def saved(forecaster, folder):
    """It, from a file."""
    path = folder / f"{len(list(folder.iterdir()))}.safetensors"
    forecaster.save(path)
    return PanelForecaster.load(path)


def answers(forecaster, table):
    """All that is answered, and each error of a wrong question."""
    X = None
    if "promo" in list(forecaster.known):
        X = ahead_of(table, forecaster)
    strange = [None if X is None else X.assign(unique_id="else"), "X", 3]
    asks = [
        lambda: forecaster.predict_interval(X=X),
        lambda: forecaster.scores_,
        lambda: forecaster.weights_,
        lambda: forecaster.n_series_,
        lambda: (forecaster.horizon_, forecaster.season_),
        lambda: forecaster.follow(table).predict(X=X),
        lambda: forecaster.follow("no table"),
        *(lambda x=x: forecaster.predict(X=x) for x in strange),
    ]
    said = []
    for ask in asks:
        try:
            said.append(ask())
        except LinrnnError as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def same(one, other):
    """Raise unless both are the same, types and indexes too."""
    for a, b in zip(one, other, strict=True):
        if isinstance(a, pd.DataFrame):
            pd.testing.assert_frame_equal(a, b)
        elif isinstance(a, pd.Series):
            pd.testing.assert_series_equal(a, b)
        elif isinstance(a, np.ndarray):
            np.testing.assert_array_equal(a, b)
        else:
            assert a == b


@pytest.mark.parametrize("case", CASES)
def test_a_copy_of_any_kind_answers_as_the_original(case, tmp_path):
    forecaster, table = CASES[case]()
    fitted = forecaster.fit(table)
    expected = answers(fitted, table)
    assert not isinstance(expected[0], str), expected[0]
    followed = fitted.follow(table)
    for again in (saved(fitted, tmp_path), saved(followed, tmp_path)):
        same(answers(again, table), expected)


@pytest.fixture(scope="module")
def promoted():
    """A forecaster with known inputs, and its table."""
    table = table_of()
    return PanelForecaster(2, 1, known=("promo",)).fit(table), table


@pytest.mark.parametrize("ways", ["followed", "saved, followed", "followed, saved"])
def test_who_follows_some_series_remembers_the_others(promoted, ways, tmp_path):
    fitted, table = promoted
    some = table[table["unique_id"] != "south"]
    one = fitted
    for way in ways.split(", "):
        one = one.follow(some) if way == "followed" else saved(one, tmp_path)
    X = ahead_of(table, fitted)
    same([fitted.follow(some).predict(X=X[X["unique_id"] != "south"])], [one.predict(X=X)])
    with pytest.raises(LinrnnError, match="one that was fitted, got 'else'"):
        one.predict(X=pd.concat([X, X.assign(unique_id="else")]))
    whole = one.follow(table)
    same(answers(whole, table), answers(fitted, table))
    again = one.follow(table[table["unique_id"] == "south"]).scores_
    pd.testing.assert_frame_equal(again, fitted.scores_.loc[["south"]])
    with pytest.raises(LinrnnError, match="one that was fitted, got 'else'"):
        one.follow(some.replace("west", "else"))


def test_a_pickle_answers_as_the_original(promoted):
    fitted, table = promoted
    followed = fitted.follow(table)
    pickled = pickle.loads(pickle.dumps(fitted))  # noqa: S301 - of this test
    for again in (pickled, copy.deepcopy(followed), followed):
        same(answers(again, table), answers(fitted, table))


def test_a_follower_has_times_of_the_same_step(promoted):
    """Quarters read as months would be forecast with the season of quarters."""
    table = table_of("quarters").drop(columns="promo")
    fitted = PanelForecaster(2, 4).fit(table)
    months = pd.PeriodIndex.from_ordinals(pd.PeriodIndex(table["ds"]).asi8, freq="M")
    with pytest.raises(LinrnnError, match="go on in steps of QE-DEC, got ME"):
        fitted.follow(table.assign(ds=months))


def test_an_option_that_is_set_after_the_fit_waits_for_the_next(promoted):
    fitted, table = promoted
    changed = copy.copy(fitted).set_params(totals=True)
    same(answers(changed, table), answers(fitted, table))


def test_a_follower_of_another_form_reads_the_names_of_the_fit(promoted):
    """A wide table has an index without a name; the next long one has the columns of the fit."""
    table = table_of().drop(columns="promo")
    fitted = PanelForecaster(2, 1).fit(table)
    wide = table.pivot(index="ds", columns="unique_id", values="y").rename_axis("when")
    same([fitted.follow(wide).follow(table).predict()], [fitted.predict()])


@pytest.mark.parametrize("case", ["known", "known, totals", "zone"])
def test_a_file_of_the_version_before_answers_as_the_original(case, tmp_path):
    """It had what was read alone, which of a forecaster that did not follow is what was fitted."""
    forecaster, table = CASES[case]()
    fitted = forecaster.fit(table)
    fitted.save(tmp_path / "new.safetensors")
    tensors, metadata = load_tensors(tmp_path / "new.safetensors")
    del tensors["places"]
    texts = json.loads(metadata["text"])
    for name in ("kinds", "fitted grid", "fitted names", "parts"):
        del texts[name]
    metadata = {"kind": metadata["kind"], "version": "1", "text": json.dumps(texts)}
    save_tensors(tensors, tmp_path / "old.safetensors", metadata)
    again = PanelForecaster.load(tmp_path / "old.safetensors")
    same(answers(again, table), answers(fitted, table))
