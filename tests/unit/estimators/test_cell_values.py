"""One rule for cells in all estimators: numbers and truth values are read, text never is."""

import datetime
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from odd_data import KIND, SMALL

from linrnn import (
    PanelForecaster,
    RecurrentClassifier,
    RecurrentDetector,
    RecurrentForecaster,
    RecurrentImputer,
    RecurrentRegressor,
    estimators,
)
from linrnn.errors import ArgumentTypeError, LinrnnError

pd = pytest.importorskip("pandas")
# the shape checker refuses what is wrong before the library can
pytestmark = pytest.mark.unchecked

N = 24
WAVE = np.round(10 * np.sin(np.arange(N) / 2))
READ = {
    "floats": WAVE,
    "whole numbers": WAVE.astype(int),
    "decimals": [Decimal(str(x)) for x in WAVE],
    "fractions": [Fraction(int(x), 1) for x in WAVE],
    "scalars": [np.float32(x) for x in WAVE],
    "truth values": [bool(x > 0) for x in WAVE],
    "None": [None if k == 9 else x for k, x in enumerate(WAVE)],
    "NA": [pd.NA if k == 9 else x for k, x in enumerate(WAVE)],
    "truth values, None": [None if k == 9 else bool(x > 0) for k, x in enumerate(WAVE)],
}
REFUSED = {
    "a text of digits": "1.5",
    "a word": "high",
    "bytes": b"1.5",
    "an empty text": "",
    "a complex number": 1j,
    "a date": datetime.date(2024, 1, 1),
    "a time": pd.Timestamp("2024-01-01"),
    "no time": pd.NaT,
    "a dictionary": {"x": 1},
    "a set": {1.0},
}
DTYPES = ["str", "string", "category"]


def readers():
    """Calls that read one series (time, 1), by estimator and method; the last row is the newest."""
    forecaster = RecurrentForecaster(2, 6, n_modes=6, missing="ffill")
    series = np.tile(WAVE, (12, 1))
    calls = {
        "RecurrentForecaster": lambda y: forecaster.fit(y).predict(),
        "RecurrentImputer": lambda y: RecurrentImputer(n_modes=4).fit_transform(y),
        "RecurrentDetector": lambda y: RecurrentDetector(n_modes=4).fit(y).score_samples(y),
        "RecurrentDetector.update": RecurrentDetector(n_modes=4).fit(WAVE[:, None]).update,
    }
    for cls in (RecurrentClassifier, RecurrentRegressor):
        model = cls(**SMALL).fit(list(series[..., None]), KIND)
        calls |= {
            f"{cls.__name__}.fit": lambda y, cls=cls: (
                cls(**SMALL).fit([*series[1:, :, None], y], KIND).predict(list(series[..., None]))
            ),
            f"{cls.__name__}.predict": lambda y, model=model: model.predict([y]),
        }
    early = RecurrentClassifier(early=3, **SMALL).fit(list(series[..., None]), KIND)
    return calls | {"RecurrentClassifier.stream": lambda y: early.stream().update(y).confidence}


def panel(y):
    """One series of many, without its second axis, cut short."""
    if isinstance(y, list):
        y = [x[0] for x in y]
    else:
        y = y.iloc[:, 0] if hasattr(y, "iloc") else y[:, 0]
    return PanelForecaster(1, 1, missing="ffill").fit(y[:11]).predict()


READERS = readers() | {"PanelForecaster": panel}


def containers(cells):
    """A series of one channel in each form that holds cells as they are."""
    column = pd.Series(np.array([*cells, None], dtype=object)[:-1], dtype=object)
    return {
        "array": column.to_numpy().reshape(-1, 1),
        "list": [[cell] for cell in cells],
        "frame": column.to_frame("a"),
    }


def floats_of(cells):
    return np.array([[np.nan if x is None or x is pd.NA else float(x)] for x in cells])


def said(call, y):
    """The answer as an array, or the error."""
    try:
        return np.asarray(call(y), dtype=float)
    except LinrnnError as error:
        return error


def test_every_estimator_is_under_this_rule():
    assert {name.split(".")[0] for name in READERS} == set(estimators.__all__)


@pytest.mark.parametrize("reader", READERS)
def test_what_is_a_number_is_read_as_that_number(reader):
    call, wrong = READERS[reader], []
    if reader == "RecurrentDetector.update":
        call = lambda y: [READERS[reader](row) for row in y][:0]  # noqa: E731 - it learns
    for k, (name, cells) in enumerate(READ.items()):
        expected = said(call, floats_of(cells))
        forms = list(containers(cells).items())
        # each fit of a forecaster chooses among many methods
        for form, y in [forms[k % 3]] if reader.endswith("Forecaster") else forms:
            answer = said(
                call, y.to_numpy() if reader.endswith("update") and form == "frame" else y
            )
            if isinstance(answer, LinrnnError) or not np.allclose(answer, expected, equal_nan=True):
                wrong.append(f"{name} in {form}: {answer!r:.200}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_number_is_refused(reader):
    wrong = []
    for name, cell in REFUSED.items():
        cells = [*WAVE[:5].tolist(), cell, *WAVE[6:].tolist()]
        for form, y in containers(cells).items():
            if reader.endswith("update"):
                y = y[5] if form != "frame" else y.iloc[5]
            answer = said(READERS[reader], y)
            if not isinstance(answer, ArgumentTypeError):
                wrong.append(f"{name} in {form}: {answer!r:.200}")
    for kind in DTYPES:
        column = pd.DataFrame({"a": [str(int(x)) for x in WAVE]}, dtype=kind)
        answer = said(READERS[reader], column.iloc[5] if reader.endswith("update") else column)
        if not isinstance(answer, ArgumentTypeError):
            wrong.append(f"{kind}: {answer!r:.200}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("reader", [name for name in READERS if not name.endswith("update")])
def test_dtypes_of_pandas_with_numbers_are_read(reader):
    call = READERS[reader]
    for kind in ("Int64", "Float32", "int8", "boolean", "bool", "Sparse[float64]"):
        values = WAVE > 0 if "bool" in kind else WAVE
        expected = said(call, values[:, None].astype(float))
        answer = said(call, pd.DataFrame({"a": pd.Series(values).astype(kind)}))
        assert isinstance(answer, np.ndarray), f"{kind}: {answer}"
        np.testing.assert_allclose(answer, expected, rtol=1e-6, err_msg=kind)


@pytest.mark.parametrize("cls", [RecurrentClassifier, RecurrentRegressor])
def test_a_table_of_series_keeps_the_rule(cls):
    table = np.tile(WAVE, (12, 1)) + np.arange(12)[:, None]
    expected = cls(**SMALL).fit(table, KIND).predict(table)
    for same in (table.astype(object), table.tolist(), pd.DataFrame(table.astype(object))):
        np.testing.assert_array_equal(cls(**SMALL).fit(same, KIND).predict(same), expected)
    bad = table.astype(object)
    bad[3, 5] = "1.5"
    for wrong in (bad, bad.tolist(), pd.DataFrame(bad), list(bad)):
        with pytest.raises(
            ArgumentTypeError, match=r"X.*'1\.5'|X\[3\] must hold numbers, got text"
        ):
            cls(**SMALL).fit(wrong, KIND)


def held(rows):
    """An array of one axis that holds the rows as objects, as a ragged one does."""
    array = np.empty(len(rows), dtype=object)
    array[:] = rows
    return array


CONTAINERS = {
    "list of arrays": list,
    "tuple of arrays": tuple,
    "list of tensors": lambda table: [torch.tensor(row) for row in table],
    "list of columns": lambda table: [row[:, None] for row in table],
    "list of pandas' series": lambda table: [pd.Series(row) for row in table],
    "list of frames": lambda table: [pd.DataFrame({"a": row}) for row in table],
    "objects that are arrays": lambda table: held(list(table)),
    "objects that are lists": lambda table: held(table.tolist()),
    "objects that are columns": lambda table: held([row[:, None] for row in table]),
    "objects that are pandas' series": lambda table: held([pd.Series(row) for row in table]),
    "three axes": lambda table: table[:, :, None],
    "read-only": lambda table: np.broadcast_to(table, table.shape),
    "columns first": np.asfortranarray,
}


@pytest.mark.parametrize("cls", [RecurrentClassifier, RecurrentRegressor])
@pytest.mark.parametrize("form", CONTAINERS)
def test_series_in_any_container_give_the_same_numbers(form, cls):
    table = np.tile(WAVE, (12, 1)) + np.arange(12)[:, None]
    expected = cls(**SMALL).fit(table, KIND).predict(table)
    X = CONTAINERS[form](table)
    model = cls(**SMALL).fit(X, KIND)
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-9)
    np.testing.assert_allclose(model.predict(X[:1]), expected[:1], rtol=1e-9)


def test_targets_of_a_regressor_keep_the_rule():
    table = np.tile(WAVE, (12, 1)) + np.arange(12)[:, None]
    expected = RecurrentRegressor(**SMALL).fit(table, KIND).predict(table)
    for y in (KIND.astype(object), [bool(k) for k in KIND], pd.Series(KIND.astype(object))):
        same = RecurrentRegressor(**SMALL).fit(table, y).predict(table)
        np.testing.assert_array_equal(same, expected)
    for y in (KIND.astype(str).astype(object), pd.Series(KIND.astype(str)).astype("category")):
        with pytest.raises(ArgumentTypeError, match="y must"):
            RecurrentRegressor(**SMALL).fit(table, y)


def test_inputs_of_many_series_keep_the_rule():
    table = pd.DataFrame({"unique_id": "a", "ds": np.arange(N), "y": WAVE, "open": WAVE > 0})
    later = pd.DataFrame({"unique_id": "a", "ds": [N, N + 1], "open": [True, False]})
    forecaster = PanelForecaster(2, 1, known=("open",))
    expected = forecaster.fit(table.astype({"open": float})).predict(X=later)
    for kind in (bool, object, "boolean"):
        answer = forecaster.fit(table.astype({"open": kind})).predict(
            X=later.astype({"open": kind})
        )
        pd.testing.assert_frame_equal(answer, expected)
    for bad in ("str", "category"):
        with pytest.raises(ArgumentTypeError, match="column 'open' of y must hold numbers"):
            forecaster.fit(table.astype({"open": str}).astype({"open": bad}))
    with pytest.raises(ArgumentTypeError, match=r"each value of column 'y' of y .*'3\.5' in row 2"):
        forecaster.fit(table.astype({"y": object}).replace({"y": {WAVE[2]: "3.5"}}))
