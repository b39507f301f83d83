"""The forecaster with pandas: kinds kept, the index continued, what is irregular refused."""

import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from linrnn.errors import ArgumentError, ArgumentTypeError
from linrnn.estimators import RecurrentForecaster

pd = pytest.importorskip("pandas")

WAVE = np.sin(np.arange(120) * np.pi / 6)


def forecaster(**options):
    return RecurrentForecaster(horizon=4, season=12, n_modes=32, **options)


@pytest.mark.parametrize(
    ("index", "after"),
    [
        (pd.date_range("2020-01-31", periods=120, freq="ME"), "2030-01-31"),
        (pd.date_range("2020-01-01", periods=120, freq="h", tz="UTC"), "2020-01-06"),
        (pd.period_range("2020-01", periods=120, freq="M"), "2030-01"),
        (pd.timedelta_range("0s", periods=120, freq="s"), "2min"),
        (pd.RangeIndex(10, 250, 2), 250),
        (pd.Index(np.arange(120)), 120),
    ],
    ids=["months", "hours", "periods", "differences", "range", "integers"],
)
def test_index_is_continued(index, after):
    fitted = forecaster().fit(pd.Series(WAVE, pd.Index(index), name="y"))
    found = fitted.predict()
    assert found.name == "y"
    kind = type(index[0])
    assert found.index[0] == (after if isinstance(after, int) else kind(after, **zone(index)))
    whole = pd.Index(index).append(found.index)
    assert whole.is_monotonic_increasing
    np.testing.assert_array_equal(found.to_numpy(), forecaster().fit(WAVE).predict())
    fitted.update(pd.Series([0.0, 0.5], found.index[:2], name="y"))
    assert fitted.predict().index[0] == found.index[2]


def zone(index):
    return {"tz": index.tz} if getattr(index, "tz", None) is not None else {}


def test_dates_without_a_frequency_have_theirs_found():
    dates = pd.DatetimeIndex(np.asarray(pd.date_range("2024-01-01", periods=120, freq="D")))
    assert dates.freq is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = forecaster().fit(pd.Series(WAVE, dates)).predict()
    assert found.index[0] == pd.Timestamp("2024-04-30")
    assert found.name is None


@pytest.mark.parametrize("kind", ["str", "category", object])
def test_numbers_of_another_dtype_are_refused_with_the_fix(kind):
    """A series has no columns to choose from."""
    y = pd.Series(["1"] * 120, dtype=kind)
    with pytest.raises(ArgumentTypeError, match=r"y must .* got .*y\.astype\(float\)"):
        forecaster().fit(y)
    assert np.isfinite(forecaster().fit(y.astype(float)).predict()).all()


def test_tables_keep_their_columns():
    dates = pd.date_range("2024-01-01", periods=120, freq="D")
    table = pd.DataFrame({"a": WAVE, "b": -2 * WAVE}, dates)
    fitted = forecaster().fit(table)
    found = fitted.predict(3)
    assert list(found.columns) == ["a", "b"]
    assert fitted.feature_names_in_.tolist() == ["a", "b"]
    quantiles = fitted.predict_quantiles(3, (0.1, 0.9))
    assert quantiles.columns.tolist() == [("a", 0.1), ("a", 0.9), ("b", 0.1), ("b", 0.9)]
    one = forecaster().fit(table["a"]).predict_interval(coverage=0.5)
    assert one.columns.tolist() == [0.25, 0.75]
    assert one.index.equals(fitted.predict().index)
    assert set(fitted.backtest(table.set_axis(dates + pd.Timedelta(days=120)))) >= {"forecast"}


@pytest.mark.unchecked
def test_what_is_irregular_or_another_is_refused():
    dates = pd.date_range("2024-01-01", periods=120, freq="D")
    with pytest.raises(ArgumentError, match="must go on in equal steps"):
        forecaster().fit(pd.Series(WAVE[1:], dates.delete(50)))
    filled = pd.Series(WAVE[1:], dates.delete(50)).asfreq("D")
    held = forecaster().set_params(missing="ffill").fit(filled).predict()
    assert held.index[0] == pd.Timestamp("2024-04-30")
    with pytest.raises(ArgumentError, match="must go on in equal steps"):
        forecaster().fit(pd.Series(WAVE, dates[::-1]))
    with pytest.raises(ArgumentTypeError, match="must hold dates, periods"):
        forecaster().fit(pd.Series(WAVE, [str(k) for k in range(120)]))
    table = pd.DataFrame({"a": WAVE, "b": "x"}, dates)
    with pytest.raises(ArgumentTypeError, match=r"must hold numbers, got .* in 'b'"):
        forecaster().fit(table)
    fitted = forecaster().fit(table[["a"]])
    later = pd.date_range("2024-05-02", periods=2, freq="D")
    with pytest.raises(ArgumentError, match="must go on where the series ended"):
        fitted.update(pd.DataFrame({"a": [0.0, 1.0]}, later))
    with pytest.raises(ArgumentError, match=r"must have the columns \['a'\], got \['c'\]"):
        fitted.update(pd.DataFrame({"c": [0.0, 1.0]}, later))
    with pytest.raises(ArgumentTypeError, match="must be an array"):
        forecaster().fit(WAVE).update(pd.Series([0.0]))
    assert fitted.update([[0.0], [1.0]]).predict(1).index[0] == pd.Timestamp("2024-05-02")


def test_numbers_in_object_columns_are_read():
    y = pd.Series([*WAVE[:117], Decimal("0.5"), Fraction(1, 4), np.int8(1)], dtype=object)
    plain = y.astype(float)
    expected = forecaster().fit(plain).predict()
    pd.testing.assert_series_equal(forecaster().fit(y).predict(), expected)
    array = y.to_numpy()
    np.testing.assert_array_equal(forecaster().fit(array).predict(), expected.to_numpy())
    both = pd.DataFrame({"a": y, "b": plain})
    np.testing.assert_allclose(
        forecaster().fit(both).predict(),
        forecaster().fit(both.astype(float)).predict(),
        rtol=1e-5,
    )
    gaps = y.copy()
    gaps[[50, 51, 52]] = [None, pd.NA, float("nan")]
    filled = forecaster(missing="ffill").fit(gaps).predict()
    floats = gaps.where(gaps.notna(), np.nan).astype(float)
    pd.testing.assert_series_equal(filled, forecaster(missing="ffill").fit(floats).predict())


@pytest.mark.unchecked
@pytest.mark.parametrize("cell", ["1.5", "x", 1j, pd.NaT, pd.Timestamp("2024-01-01"), [1.0]])
def test_what_is_no_number_is_refused_with_its_row_and_column(cell):
    y = pd.Series(WAVE.astype(object), name="sold", index=pd.RangeIndex(1000, 1120))
    y.at[1007] = cell
    with pytest.raises(ArgumentTypeError, match=r"must be a number, got .* in row 1007\."):
        forecaster().fit(y)
    with pytest.raises(ArgumentTypeError, match=r"in row 1007 of column 'sold'"):
        forecaster().fit(y.to_frame().assign(other=1.0))
    with pytest.raises(ArgumentTypeError, match=r"in row 7\."):
        forecaster().fit(y.to_numpy())
    pair = np.stack([WAVE.astype(object), y.to_numpy()], 1)
    with pytest.raises(ArgumentTypeError, match=r"in row 7 of column 1"):
        forecaster().fit(pair)


@pytest.mark.unchecked
def test_a_number_beyond_float64_is_refused():
    with pytest.raises(ArgumentError, match=r"finite in float64, got .* in row 3\."):
        forecaster().fit([0.0, 1.0, 2.0, 10**400, *WAVE])
