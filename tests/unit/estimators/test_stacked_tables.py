"""Tables with series one below the other: read as several or refused, by whatever reads."""

import numpy as np
import pytest
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
from linrnn.errors import ArgumentError, LinrnnError

pd = pytest.importorskip("pandas")
# the shape checker refuses what is wrong before the library can
pytestmark = pytest.mark.unchecked

STEPS, SHOPS = 24, ("north", "south")
VALUES = np.sin(np.arange(2 * STEPS) / 3) + np.repeat([0.0, 5.0], STEPS)
INDEX = pd.date_range("2024-01-01", periods=STEPS)
USUAL = pd.DataFrame({"y": VALUES[:STEPS]}, INDEX)


def stacked():
    """Two series of one or two channels, in every form that has one below the other."""
    levels = pd.MultiIndex.from_product([SHOPS, INDEX], names=["unique_id", "ds"])
    series = pd.Series(VALUES, levels, name="y")
    numbers = pd.MultiIndex.from_product([range(2), range(STEPS)], names=["unique_id", "ds"])
    column = series.to_frame()
    long = column.reset_index()
    return {
        "series": series,
        "column": column,
        "two columns": column.assign(z=-VALUES),
        "numbered": column.set_axis(numbers),
        "times first": column.swaplevel().sort_index(),
        "numbered times first": column.set_axis(numbers).swaplevel().sort_index(),
        "without names": column.rename_axis([None, None]),
        "three levels": pd.concat({"shop": column}, names=["kind"]),
        "long": long,
        "long, numbers": column.set_axis(numbers).reset_index(),
        "long, ids as index": long.set_index("unique_id"),
        "long, times as index": long.set_index("ds"),
    }


def readers():
    """Each call that takes series, by estimator and method."""
    forecaster = RecurrentForecaster(horizon=2, season=6, n_modes=6)
    fitted = RecurrentForecaster(horizon=2, season=6, n_modes=6).fit(USUAL)
    imputer, detector = RecurrentImputer(n_modes=4), RecurrentDetector(n_modes=4)
    calls = {
        "RecurrentForecaster.fit": forecaster.fit,
        "RecurrentForecaster.update": fitted.update,
        "RecurrentForecaster.score": fitted.score,
        "RecurrentForecaster.backtest": fitted.backtest,
        "RecurrentImputer.fit": imputer.fit,
        "RecurrentImputer.transform": RecurrentImputer(n_modes=4).fit(USUAL).transform,
        "RecurrentDetector.fit": detector.fit,
        "RecurrentDetector.update": RecurrentDetector(n_modes=4).fit(USUAL).update,
        "RecurrentDetector.predict": RecurrentDetector(n_modes=4).fit(USUAL).predict,
    }
    rows, parts = np.tile(VALUES, (12, 1)), np.tile(VALUES, (12, 1))[..., None]
    for cls in (RecurrentClassifier, RecurrentRegressor):
        for form, X in (("rows", rows), ("parts", list(parts))):
            model = cls(**SMALL).fit(X, KIND)
            alone = form == "rows"
            calls |= {
                f"{cls.__name__}.fit, {form}": lambda X, cls=cls, alone=alone: cls(**SMALL).fit(
                    X if alone else [X] * 12, np.arange(len(X)) % 2 if alone else KIND
                ),
                f"{cls.__name__}.predict, {form}": lambda X, model=model, alone=alone: (
                    model.predict(X if alone else [X])
                ),
                f"{cls.__name__}.saliency, {form}": lambda X, model=model, alone=alone: (
                    model.saliency(X if alone else [X])
                ),
            }
    early = RecurrentClassifier(early=3, **SMALL).fit(parts, KIND)
    return calls | {"RecurrentClassifier.stream": lambda X: early.stream().update(X)}


def test_what_takes_one_series_refuses_several_in_one_table():
    """Read as one, the second would go on where the first ends."""
    calls = readers()
    names = {name.split(".")[0] for name in calls}
    assert names == set(estimators.__all__) - {"PanelForecaster"}
    read = []
    for form, table in stacked().items():
        for name, call in calls.items():
            try:
                call(table)
            except ArgumentError as error:
                if "several series one below the other" not in str(error):
                    read.append(f"{name} of {form}: {error}")
                continue
            except LinrnnError as error:
                read.append(f"{name} of {form}: {error}")
                continue
            read.append(f"{name} reads {form}")
    assert not read, "\n".join(read)


@pytest.mark.parametrize("form", ["two columns", "three levels", "long", "long, ids as index"])
def test_each_part_of_such_a_table_is_read(form):
    """As the error advises."""
    table = stacked()[form]
    outer = list(range(table.index.nlevels - 1))
    parts = [
        part.droplevel(outer) if outer else part.reset_index().set_index("ds")[["y"]]
        for _, part in table.groupby(level=outer or None, by=None if outer else "unique_id")
    ]
    assert RecurrentClassifier(**SMALL).fit(parts * 6, KIND).predict(parts).shape == (2,)
    for part in parts:
        assert RecurrentImputer(n_modes=4).fit_transform(part).shape == part.shape
        assert RecurrentDetector(n_modes=4).fit(part).predict(part).shape == (STEPS,)
        assert RecurrentForecaster(2, 6, n_modes=6).fit(part).predict().shape == (2, part.shape[1])


@pytest.mark.parametrize("form", stacked())
def test_a_forecaster_of_many_series_reads_them_apart(form):
    forecaster = PanelForecaster(horizon=2, season=1)
    values = forecaster.fit(stacked()[form]).predict()["y"].to_numpy()
    assert forecaster.n_series_ == 2
    assert values[:2].max() < 2
    assert values[2:].min() > 3


def test_columns_of_several_levels_are_refused_with_the_fix():
    columns = pd.MultiIndex.from_product([["shop"], SHOPS])
    table = pd.DataFrame(VALUES.reshape(2, STEPS).T, INDEX, columns)
    with pytest.raises(ArgumentError, match=r"one level of columns, got 2\..*droplevel"):
        PanelForecaster(horizon=2).fit(table)
    assert PanelForecaster(horizon=2).fit(table.droplevel(0, axis=1)).n_series_ == 2


@pytest.mark.parametrize("cls", [RecurrentClassifier, RecurrentRegressor])
def test_a_series_of_pandas_in_a_list_has_times_that_rise(cls):
    """A list of arrays of one length is read as a table, whose rows have no times."""
    rising = [pd.Series(VALUES[:STEPS], INDEX)] * 12
    model = cls(**SMALL).fit(rising, KIND)
    backward = [*rising[:11], rising[0].iloc[::-1]]
    with pytest.raises(ArgumentError, match="index of a series of X must rise"):
        cls(**SMALL).fit(backward, KIND)
    with pytest.raises(ArgumentError, match="index of a series of X must rise"):
        model.predict(backward)
