"""Settings as grids of NumPy hold them: every number of every estimator is taken as Python's is."""

import inspect

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

import linrnn
from linrnn import (
    PanelForecaster,
    RecurrentClassifier,
    RecurrentDetector,
    RecurrentForecaster,
    RecurrentImputer,
    RecurrentRegressor,
    estimators,
)
from linrnn.errors import ArgumentError

pytest.importorskip("lightning")

OF_SERIES = {
    "n_modes": 20,
    "d_model": 8,
    "n_layers": 1,
    "max_steps": 4,
    "batch_size": 8,
    "learning_rate": 0.0078125,
    "validation_fraction": 0.25,
    "patience": 3,
    "n_jobs": 1,
    "random_state": 3,
}
OF_FORECASTS = {
    "horizon": 2,
    "season": 12,
    "n_modes": 16,
    "validation": 0.25,
    "every": 1,
    "random_state": 3,
}
OF_STEPS = {"false_alarms": 0.0625, "n_modes": 8, "memory": 100, "random_state": 3}
OF_PANELS = {"horizon": 2, "season": 4}
NUMBERS = {
    "PanelForecaster": OF_PANELS,
    "RecurrentDetector": OF_STEPS,
    "RecurrentImputer": {"n_modes": 8, "season": 12, "random_state": 3},
    "RecurrentClassifier": OF_SERIES | {"early": 3},
    "RecurrentRegressor": OF_SERIES,
    "RecurrentForecaster": OF_FORECASTS,
}
NO_NUMBERS = {
    "PanelForecaster": {"id", "time", "value", "known", "totals", "freq", "missing"},
    "RecurrentDetector": set(),
    "RecurrentImputer": set(),
    "RecurrentClassifier": {
        *("mixer", "mixer_options", "early_stopping", "layout", "verbose", "class_weight"),
    },
    "RecurrentRegressor": {"mixer", "mixer_options", "early_stopping", "layout", "verbose"},
    "RecurrentForecaster": {"channels", "missing", "refit", "layout"},
}
KINDS = [(np.int64, np.float64), (np.int32, np.float32), (np.uint8, np.longdouble)]


def of_numpy(values, whole, real):
    return {k: (real if isinstance(v, float) else whole)(v) for k, v in values.items()}


def waves(count=24):
    random = np.random.default_rng(0)
    kind = np.arange(count) % 2
    return np.sin(np.arange(30) / (2 + kind[:, None])) + 0.1 * random.normal(size=(count, 30)), kind


@pytest.mark.parametrize("name", estimators.__all__)
def test_every_parameter_is_a_number_or_none(name):
    known = set(inspect.signature(getattr(estimators, name)).parameters)
    assert known == set(NUMBERS[name]) | NO_NUMBERS[name]


@pytest.mark.parametrize(("whole", "real"), KINDS)
@pytest.mark.parametrize("mixer", ["bank", "lru"])
@pytest.mark.parametrize("cls", [RecurrentClassifier, RecurrentRegressor])
def test_numbers_of_a_model_of_series(cls, mixer, whole, real):
    X, y = waves()
    expected = cls(mixer=mixer, **OF_SERIES).fit(X, y).predict(X)
    given = of_numpy(OF_SERIES, whole, real)
    found = cls(mixer=mixer, early_stopping=np.True_, **given).fit(X, y).predict(X)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("whole", "real"), KINDS)
@pytest.mark.parametrize("validation", [0.25, 40])
def test_numbers_of_a_forecaster(validation, whole, real):
    y = np.sin(np.arange(200) * 2 * np.pi / 12)
    options = OF_FORECASTS | {"validation": validation}
    expected = RecurrentForecaster(**options).fit(y[:160])
    found = RecurrentForecaster(refit=np.True_, **of_numpy(options, whole, real)).fit(y[:160])
    np.testing.assert_array_equal(found.predict(whole(3)), expected.predict(3))
    several = RecurrentForecaster(**options | {"season": np.array([12, 5], whole)}).fit(y[:160])
    assert several.season_ == (5, 12)
    np.testing.assert_array_equal(
        found.predict_interval(whole(1), real(0.75)), expected.predict_interval(1, 0.75)
    )
    assert found.backtest(y[160:], whole(2)) == expected.backtest(y[160:], 2)


@pytest.mark.parametrize(("whole", "real"), KINDS)
def test_numbers_of_a_forecaster_of_panels(whole, real):
    y = np.cos(np.arange(20) ** 2)
    expected = PanelForecaster(**OF_PANELS).fit(y)
    found = PanelForecaster(**of_numpy(OF_PANELS, whole, real)).fit(y)
    np.testing.assert_array_equal(found.predict(whole(1)), expected.predict(1))
    np.testing.assert_array_equal(
        found.predict_interval(whole(1), real(0.75)), expected.predict_interval(1, 0.75)
    )
    np.testing.assert_array_equal(
        found.predict_quantiles(1, np.array([0.25, 0.5], real)),
        expected.predict_quantiles(1, (0.25, 0.5)),
    )


def test_a_grid_of_numpy_is_searched():
    X, y = waves()
    grid = {"n_modes": np.array([5, 20]), "validation_fraction": np.linspace(0.2, 0.3, 2)}
    search = GridSearchCV(RecurrentClassifier(random_state=0), grid, error_score="raise", cv=2)
    assert search.fit(X, y).best_params_["n_modes"] in (5, 20)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "fraction", [0, 0.0, 1, 1.0, 1.5, -0.1, np.float32(0), np.nan, "0.2", True]
)
def test_a_validation_fraction_that_is_none_is_refused(fraction):
    X, y = waves()
    model = RecurrentClassifier(mixer="lru", validation_fraction=fraction)
    with pytest.raises(ArgumentError, match="validation_fraction must be a number between 0 and 1"):
        model.fit(X, y)


def test_a_part_is_held_out_of_few_series_too():
    X, y = waves(4)
    options = OF_SERIES | {"validation_fraction": 0.9, "max_steps": 400, "patience": 1}
    options |= {"learning_rate": 1e-9}  # nothing gets better for long
    assert RecurrentRegressor(mixer="lru", **options).fit(X, y).readout_.steps < 400


@pytest.mark.unchecked
def test_layers_say_what_to_pass_in_the_place_of_numpys_numbers():
    with pytest.raises(ArgumentError, match=r"hidden_size must be .* Pass int\(hidden_size\)"):
        linrnn.RNN("lru", 4, np.int64(8))
    with pytest.raises(ArgumentError, match=r"got 0\.$"):
        linrnn.RNN("lru", 4, 0)


@pytest.mark.parametrize(("whole", "real"), KINDS)
def test_numbers_of_a_detector(whole, real):
    series = np.sin(np.arange(120) / 3)[:, None]
    expected = RecurrentDetector(**OF_STEPS).fit(series).score_samples(series)
    detector = RecurrentDetector(**of_numpy(OF_STEPS, whole, real)).fit(series)
    np.testing.assert_array_equal(detector.score_samples(series), expected)


@pytest.mark.parametrize(("whole", "real"), KINDS)
def test_numbers_of_early_answers(whole, real):
    X, y = waves()
    sizes = {"n_modes": 8, "random_state": 3, "early": 3}
    expected = RecurrentClassifier(**sizes).fit(X, y).predict_early(X)
    found = RecurrentClassifier(**of_numpy(sizes, whole, real)).fit(X, y).predict_early(X)
    np.testing.assert_array_equal(found.steps, expected.steps)


@pytest.mark.parametrize(("whole", "real"), KINDS)
def test_numbers_of_an_imputer(whole, real):
    gaps = np.sin(np.arange(200) * 2 * np.pi / 12)[:, None]
    gaps[50:55] = np.nan
    options = NUMBERS["RecurrentImputer"]
    expected = RecurrentImputer(**options).fit_transform(gaps)
    found = RecurrentImputer(**of_numpy(options, whole, real)).fit_transform(gaps)
    np.testing.assert_array_equal(found, expected)
