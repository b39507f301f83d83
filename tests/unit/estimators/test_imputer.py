"""`RecurrentImputer`: values for the gaps of a series."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer
from sklearn.utils.estimator_checks import parametrize_with_checks

from linrnn import RecurrentImputer
from linrnn.errors import ArgumentError, ShapeError


def sensors(steps=800, seed=0, noise=0.05):
    """Three channels that follow one wave and one walk, each with noise."""
    random = np.random.default_rng(seed)
    common = np.sin(2 * np.pi * np.arange(steps) / 48) + np.cumsum(random.normal(size=steps)) * 0.03
    return common[:, None] * [1.0, -0.6, 1.5] + noise * random.normal(size=(steps, 3))


def holes(x, length, share=0.1, seed=1, together=False):
    """Which values are hidden, in stretches of one length."""
    random, mask = np.random.default_rng(seed), np.zeros(x.shape, bool)
    for _ in range(int(share * x.size / length)):
        first = random.integers(1, len(x) - length - 1)
        mask[first : first + length, slice(None) if together else random.integers(3)] = True
    return mask


def line(x):
    filled, steps = x.copy(), np.arange(len(x))
    for column in filled.T:
        seen = ~np.isnan(column)
        column[~seen] = np.interp(steps[~seen], steps[seen], column[seen])
    return filled


def error(filled, x, mask):
    return float(np.sqrt(np.square((filled - x) / x.std(0))[mask].mean()))


@parametrize_with_checks([RecurrentImputer()])
def test_it_is_a_transformer_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    ("length", "together", "share"),
    [
        (1, False, 1.0),
        pytest.param(8, False, 0.9, marks=pytest.mark.slow),
        pytest.param(30, False, 0.9, marks=pytest.mark.slow),
        (8, True, 0.9),
    ],
)
def test_it_is_better_than_a_line_where_there_is_something_to_learn(length, together, share):
    x = sensors()
    mask = holes(x, length, together=together)
    given = np.where(mask, np.nan, x)
    filled = RecurrentImputer().fit_transform(given)
    assert (filled[~mask] == x[~mask]).all()
    assert error(filled, x, mask) < share * error(line(given), x, mask)


def levels(seed):
    """Steps between levels, as counters of people in a room make them."""
    random = np.random.default_rng(seed)
    return np.repeat(random.poisson(4, 400), random.geometric(0.2, 400))[:1500][:, None] * 1.0


def walks(seed):
    return np.random.default_rng(seed).normal(size=(1000, 3)).cumsum(0)


PLAIN = {
    "mean": lambda x: np.where(np.isnan(x), np.nanmean(x, 0), x),
    "last value": lambda x: np.stack([ahead(column) for column in x.T], 1),
    "line": line,
    "chained": lambda x: IterativeImputer(random_state=0).fit_transform(x),
}


def ahead(column):
    seen = np.flatnonzero(~np.isnan(column))
    place = np.searchsorted(seen, np.arange(len(column)), side="right") - 1
    return column[seen[place.clip(0)]]


SERIES = {
    "clear sensors": lambda seed: sensors(1000, seed, 0.02),
    "sensors": lambda seed: sensors(1000, seed, 0.1),
    "short sensors": lambda seed: sensors(400, seed, 0.05),
    "levels": levels,
    "walks": walks,
}
LENGTHS = [1, 8, 24, 60]
# each takes one to two seconds: every kind of series and every length is quick twice or less
QUICK = {(name, LENGTHS[i % len(LENGTHS)]) for i, name in enumerate(SERIES)}


@pytest.mark.filterwarnings("ignore:.*Early stopping criterion not reached")
@pytest.mark.parametrize(
    ("make", "length"),
    [
        pytest.param(
            make,
            length,
            id=f"{name}-{length}",
            marks=() if (name, length) in QUICK else pytest.mark.slow,
        )
        for name, make in SERIES.items()
        for length in LENGTHS
    ],
)
def test_no_plain_way_is_better_by_a_tenth(make, length):
    """Over three series, as a single one has a few long gaps only."""
    errors = {name: 0.0 for name in ("ours", *PLAIN)}
    for seed in range(3):
        x = make(seed)
        mask = np.zeros(x.shape, bool)
        random = np.random.default_rng(seed)
        for _ in range(int(0.1 * x.size / length)):
            first = random.integers(1, len(x) - length - 1)
            mask[first : first + length, random.integers(x.shape[1])] = True
        given = np.where(mask, np.nan, x)
        for name, fill in PLAIN.items():
            errors[name] += error(fill(given), x, mask)
        errors["ours"] += error(RecurrentImputer().fit_transform(given), x, mask)
    assert errors["ours"] < 1.1 * min(errors[name] for name in PLAIN)


def test_it_is_no_worse_than_a_line_where_there_is_nothing_to_learn():
    x = np.cumsum(np.random.default_rng(0).normal(size=(1000, 3)), 0)
    for length in (1, 8, 30):
        mask = holes(x, length)
        given = np.where(mask, np.nan, x)
        filled = RecurrentImputer().fit_transform(given)
        assert error(filled, x, mask) < 1.05 * error(line(given), x, mask)


def test_ends_are_filled_from_one_side():
    x = sensors()
    given = x.copy()
    given[:12, 0] = given[-12:, 1] = np.nan
    filled = RecurrentImputer().fit_transform(given)
    mask = np.isnan(given)
    assert error(filled, x, mask) < 0.5 * error(line(given), x, mask)


def test_what_was_learned_fills_another_series():
    x, other = sensors(), sensors(200, seed=5)
    mask = holes(other, 8)
    imputer = RecurrentImputer().fit(x)
    filled = imputer.transform(np.where(mask, np.nan, other))
    assert error(filled, other, mask) < 0.8 * error(
        line(np.where(mask, np.nan, other)), other, mask
    )
    again = pickle.loads(pickle.dumps(imputer))  # noqa: S301
    np.testing.assert_array_equal(again.transform(np.where(mask, np.nan, other)), filled)


def test_units_and_levels_do_not_matter():
    x = sensors(400)
    given = np.where(holes(x, 8), np.nan, x)
    filled = RecurrentImputer().fit_transform(given)
    scaled = RecurrentImputer().fit_transform(1e6 + 40 * given)
    np.testing.assert_allclose((scaled - 1e6) / 40, filled, atol=1e-6)


def test_odd_series():
    """Too short to learn from, constant, and a channel that is empty in what is to be filled."""
    few = np.array([[1.0], [np.nan], [3.0]])
    np.testing.assert_allclose(RecurrentImputer().fit_transform(few), [[1], [2], [3]])
    flat = np.full((100, 2), 5.0)
    flat[20:30, 0] = np.nan
    np.testing.assert_allclose(RecurrentImputer().fit_transform(flat), 5.0)
    x = sensors(300)
    empty = x[:50].copy()
    empty[:, 1] = np.nan
    filled = RecurrentImputer().fit(x).transform(empty)
    np.testing.assert_allclose(filled[:, 1], x[:, 1].mean())


def test_a_data_frame_keeps_its_columns():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(sensors(300), columns=["a", "b", "c"])
    table.loc[100:105, "b"] = None
    imputer = RecurrentImputer().set_output(transform="pandas")
    filled = imputer.fit_transform(table)
    assert list(filled.columns) == ["a", "b", "c"]
    assert not filled.isna().any().any()


@pytest.mark.unchecked
def test_settings_that_cannot_be():
    x = sensors(100)
    with pytest.raises(ArgumentError, match="n_modes must be an integer"):
        RecurrentImputer(n_modes=0).fit(x)
    with pytest.raises(ArgumentError, match="season must be an integer"):
        RecurrentImputer(season=2.5).fit(x)
    x[:, 1] = np.nan
    with pytest.raises(ShapeError, match="each channel of X must hold a value"):
        clone(RecurrentImputer()).fit(x)


def test_a_series_without_channels_is_told_how_to_be_one():
    words = r"RecurrentImputer: X must have shape \(time, channels\), got \(100,\)\. .*X\[:, None\]"
    with pytest.raises(ShapeError, match=words):
        RecurrentImputer().fit(np.zeros(100))


def test_rows_may_be_missing_and_their_numbers_say_nothing_of_time():
    pandas = pytest.importorskip("pandas")
    dates = pandas.date_range("2024-01-01", periods=300)
    table = pandas.DataFrame(sensors(300), columns=["a", "b", "c"], index=dates)
    imputer = RecurrentImputer().fit(table)
    uneven = table.iloc[np.r_[0:50, 60:300]]
    assert imputer.transform(uneven).shape == (290, 3), "rows may be missing"
    rows = table.reset_index(drop=True).iloc[np.r_[0:7, 8, 7, 9:300]]
    assert imputer.transform(rows).shape == (300, 3), "numbers of rows say nothing of time"


@pytest.mark.unchecked
def test_a_row_without_a_date_is_refused():
    pandas = pytest.importorskip("pandas")
    dates = pandas.date_range("2024-01-01", periods=300).to_series()
    dates.iloc[5] = pandas.NaT
    table = pandas.DataFrame(sensors(300), index=pandas.DatetimeIndex(dates))
    with pytest.raises(ArgumentError, match="a time in each row, got none in row 5"):
        RecurrentImputer().fit(table)
