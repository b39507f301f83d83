"""Laws of every entry point of the estimators: an answer that is finite, or an error of ours."""

import inspect
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from odd_data import KIND, SMALL, TABLE, WAVE, WRONG_VALUES, judge, none_breaks, series_of

from linrnn import (
    PanelForecaster,
    RecurrentClassifier,
    RecurrentDetector,
    RecurrentForecaster,
    RecurrentImputer,
    RecurrentRegressor,
    estimators,
)
from linrnn.errors import ArgumentTypeError, LinrnnError, ShapeError, UnknownArgumentError
from linrnn.nn.mode_bank import ModeBank
from linrnn.tasks._reading.files import folder_of
from linrnn.tasks._reading.series import Layout, read_series

# the shape checker refuses what is wrong before the library can
pytestmark = pytest.mark.unchecked

OF_SERIES = [RecurrentClassifier, RecurrentRegressor]


@pytest.fixture(scope="module", autouse=True)
def _little_memory():
    """Limit memory: requests for over 12 GB more than now fail as on a small machine."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (12 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def small_forecaster(**options):
    return RecurrentForecaster(**({"horizon": 3, "season": 6, "n_modes": 12} | options))


# ------------------------------------------------------------------- forecaster


def after(forecaster):
    """All that a fitted forecaster says."""
    said = [forecaster.predict(), forecaster.predict(7), forecaster.coef_, forecaster.bounded_]
    for ask in (forecaster.predict_interval, forecaster.interval_coverage):
        try:
            said.append(ask(coverage=0.3))
        except LinrnnError:
            continue
    return said


@pytest.mark.parametrize("missing", ["error", "ffill"])
def test_a_forecaster_of_any_data(missing):
    none_breaks(
        {
            name: lambda y=y: after(small_forecaster(missing=missing).fit(y))
            for name, y in series_of(WAVE).items()
        }
    )


@pytest.mark.parametrize("what", ["update", "backtest", "score", "plot"])
def test_a_fitted_forecaster_of_any_data(what):
    """And it says afterwards what it would have said, or what it learnt."""
    if what == "plot":
        pytest.importorskip("matplotlib")
    fitted = small_forecaster(missing="ffill").fit(WAVE)
    before = fitted.predict()

    def tried(y):
        found = getattr(fitted, what)(y)
        if what == "update":
            found = after(fitted)
            fitted.undo()
        return found if what in ("backtest", "score", "update") else 0.0

    for name, y in series_of(WAVE).items():
        said = judge(name, lambda y=y: tried(y))
        assert said is None, said
        np.testing.assert_array_equal(fitted.predict(), before, err_msg=name)


@pytest.mark.parametrize("name", [*inspect.signature(RecurrentForecaster).parameters])
def test_an_option_of_a_forecaster_of_any_value(name):
    two = np.stack([WAVE, np.roll(WAVE, 3)], 1)
    none_breaks(
        {
            f"{name}={value!r:.60}": lambda value=value: after(
                small_forecaster(**{name: value}).fit(two)
            )
            for value in WRONG_VALUES
        }
    )


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("predict", "horizon"),
        ("predict_quantiles", "horizon"),
        ("predict_quantiles", "quantiles"),
        ("predict_interval", "coverage"),
        ("interval_coverage", "horizon"),
        ("interval_coverage", "coverage"),
        ("backtest", "horizon"),
        ("plot", "coverage"),
    ],
)
def test_an_argument_of_a_forecast_of_any_value(method, name):
    fitted = small_forecaster().fit(np.tile(WAVE, 3))
    first = (WAVE,) if method == "backtest" else ()

    def ask(value):
        found = getattr(fitted, method)(*first, **{name: value})
        return 0.0 if method == "plot" else found

    none_breaks({f"{value!r:.60}": lambda value=value: ask(value) for value in WRONG_VALUES})


# ------------------------------------------------------------ classifier, regressor


def told(model, X, y, dt=None):
    model.fit(X, y, dt)
    said = [model.predict(X, dt)]
    if isinstance(model, RecurrentClassifier):
        said += [model.predict_proba(X, dt), model.decision_function(X, dt)]
    return said


def tables():
    """Twelve series in every form that one series has, and as arrays of two and three axes."""
    forms = {}
    for name, y in series_of(WAVE).items():
        forms[f"list of {name}"] = [y] * 12
        array = y if isinstance(y, (np.ndarray, torch.Tensor)) and y.ndim == 1 else None
        if array is not None and len(array) == 48:
            table = array.reshape(12, 4)
            forms[f"table of {name}"] = table
            forms[f"three axes of {name}"] = table[..., None]
        elif not name.startswith("list"):
            forms[name] = y
    return forms


@pytest.mark.parametrize("cls", OF_SERIES)
def test_series_of_any_form(cls):
    none_breaks({name: lambda X=X: told(cls(**SMALL), X, KIND) for name, X in tables().items()})


@pytest.mark.parametrize("cls", OF_SERIES)
def test_targets_of_any_form(cls):
    none_breaks(
        {
            name: lambda y=y: told(cls(**SMALL), TABLE, y)
            for name, y in series_of(TABLE[:, 0]).items()
        }
    )


@pytest.mark.parametrize("cls", OF_SERIES)
def test_times_of_any_form(cls):
    forms = series_of(np.abs(TABLE[0]))
    cases = {f"{name}, alone": lambda dt=dt: told(cls(**SMALL), TABLE, KIND, dt)
             for name, dt in forms.items()}  # fmt: skip
    cases |= {name: lambda dt=dt: told(cls(**SMALL), TABLE, KIND, [dt] * 12)
              for name, dt in forms.items()}  # fmt: skip
    none_breaks(cases)


@pytest.mark.parametrize("cls", OF_SERIES)
def test_new_series_of_any_form(cls):
    fitted = cls(**SMALL).fit(np.tile(WAVE, (12, 1)) * TABLE[:, :1], KIND)
    listed = cls(**SMALL).fit([WAVE[: 20 + k] for k in range(12)], KIND)
    cases = {}
    for name, X in tables().items():
        cases[f"{name}, after a table"] = lambda X=X: fitted.predict(X)
        cases[f"{name}, after a list"] = lambda X=X: listed.predict(X)
    none_breaks(cases)


@pytest.mark.parametrize(
    ("cls", "mixer", "name"),
    [
        (cls, mixer, name)
        for cls, mixer in [
            *((RecurrentClassifier, "bank"), (RecurrentClassifier, "lru")),
            (RecurrentRegressor, "bank"),
        ]
        for name in inspect.signature(cls).parameters
    ],
)
def test_an_option_of_any_value(cls, mixer, name):
    if mixer == "lru" or name == "mixer":
        pytest.importorskip("lightning")
    start = SMALL | {"mixer": mixer, "d_model": 4, "n_layers": 1, "max_steps": 1}
    huge = {"max_steps"}  # more steps take longer, and nothing else
    values = [v for v in WRONG_VALUES if not (name in huge and isinstance(v, int) and v > 2)]
    # some are read before a mixer is looked at, others by a trained one alone
    if (mixer == "lru") == (name in ("n_modes", "layout", "random_state", "n_jobs", "verbose")):
        values = values if name in ("mixer", "mixer_options") else values[:3]
    none_breaks(
        {
            f"{name}={value!r:.60}": lambda value=value: told(
                cls(**(start | {name: value})), TABLE, KIND
            )
            for value in values
        }
    )


@pytest.mark.parametrize("n_jobs", [10**6, 10**18, -(10**6), 257 * 64])
@pytest.mark.parametrize("cls", OF_SERIES)
def test_threads_beyond_all_reason_are_refused_or_bounded(cls, n_jobs):
    before = torch.get_num_threads()
    assert judge("fit", lambda: told(cls(**SMALL, n_jobs=n_jobs), TABLE, KIND)) is None
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    "options",
    [
        {"n_modes": 10**9},
        {"n_modes": 10**12},
        {"mixer": "lru", "d_model": 10**9},
        {"mixer": "lru", "d_model": 2**20, "n_layers": 4},
        {"mixer": "lru", "n_layers": 10**9},
    ],
    ids=str,
)
@pytest.mark.parametrize("cls", OF_SERIES)
def test_sizes_beyond_memory_are_refused_before_it_is_asked_for(cls, options):
    if "mixer" in options:
        pytest.importorskip("lightning")
    with pytest.raises(LinrnnError, match=r"memory|bytes"):
        cls(random_state=0, **options).fit(TABLE, KIND)


# ------------------------------------------------------------------------- layout


@pytest.mark.parametrize("cls", OF_SERIES)
def test_exchanged_axes_are_refused_and_the_option_is_named(cls):
    """aeon's layout (series, channels, time) read as one step of thirty channels, or as six."""
    one, six = TABLE[:, None], np.stack([np.roll(TABLE, k, 1) for k in range(6)], 1)
    for X in (one, six, torch.tensor(six), list(six)):
        with pytest.raises(ShapeError, match="layout='channels_time'"):
            cls(**SMALL).fit(X, KIND)
        with pytest.raises(LinrnnError, match="layout="):
            cls(**SMALL).fit(np.swapaxes(np.asarray(six), 1, 2), KIND).predict(one)
        turned = cls(**SMALL, layout="channels_time").fit(X, KIND).predict(X)
        same = np.moveaxis(np.asarray(X), 1, 2)
        np.testing.assert_array_equal(cls(**SMALL).fit(same, KIND).predict(same), turned)
        meant = cls(**SMALL, layout="time_channels").fit(X, KIND).predict(X)
        assert meant.shape == KIND.shape


def test_gun_point_in_the_layout_of_aeon():
    """It was read as one step of 150 channels without a word, and 92.7 % of it came out right."""
    files = [folder_of("timeseries") / f"GunPoint_{part}.ts.gz" for part in ("TRAIN", "TEST")]
    if not all(path.exists() for path in files):
        pytest.skip(f"{files[0]} is not there")
    (X, y), (new, truth) = (
        (np.stack(part.x).swapaxes(1, 2), np.array(part.y))
        for part in (one for path in files for one in read_series(path, Layout(1, False)).values())
    )
    assert X.shape[1:] == (1, 150)
    with pytest.raises(ShapeError, match="layout='channels_time'"):
        RecurrentClassifier(random_state=0).fit(X, y)
    model = RecurrentClassifier(random_state=0, layout="channels_time").fit(X, y)
    assert model.score(new, truth) > 0.98


def test_exchanged_axes_of_a_forecaster():
    y = np.stack([np.tile(WAVE, 3), np.tile(np.roll(WAVE, 3), 3)])  # (channels, time)
    many = small_forecaster(layout="channels_time").fit(y)
    same = small_forecaster().fit(y.T)
    with pytest.raises(ShapeError, match="layout='channels_time'"):
        small_forecaster().fit(y)
    with pytest.raises(ShapeError, match="layout='channels_time'"):
        small_forecaster().fit([*y])
    np.testing.assert_array_equal(many.predict(), same.predict().T)
    many.update(y[:, :5])
    same.update(y.T[:5])
    np.testing.assert_array_equal(
        many.predict_interval(coverage=0.5), same.predict_interval(coverage=0.5).swapaxes(0, 1)
    )
    assert many.interval_coverage(coverage=0.5).shape == (2, 3)
    assert many.backtest(y) == same.backtest(y.T)


# ------------------------------------------------------------------ masks, tensors


@pytest.mark.parametrize("cls", OF_SERIES)
def test_a_masked_value_is_a_missing_one(cls):
    hidden = np.random.default_rng(0).random(TABLE.shape) < 0.2
    missing = np.where(hidden, np.nan, TABLE)
    masked = np.ma.masked_array(TABLE, hidden)
    for as_given in (lambda X: X, lambda X: X[..., None], list):
        expected = cls(**SMALL).fit(as_given(missing), KIND).predict(as_given(missing))
        found = cls(**SMALL).fit(as_given(masked), KIND).predict(as_given(masked))
        np.testing.assert_array_equal(found, expected)
    y = np.ma.masked_array(KIND, KIND > 0)
    with pytest.raises(LinrnnError, match="y must have a value for each series, got 6 masked"):
        cls(**SMALL).fit(TABLE, y)


def test_a_forecaster_reads_masks_and_tensors():
    hidden = np.arange(48) % 7 == 3
    masked = np.ma.masked_array(WAVE, hidden)
    with pytest.raises(LinrnnError, match="got NaN in 7 places, the first at step 3"):
        small_forecaster().fit(masked)
    expected = small_forecaster(missing="ffill").fit(np.where(hidden, np.nan, WAVE)).predict()
    np.testing.assert_array_equal(small_forecaster(missing="ffill").fit(masked).predict(), expected)
    given = torch.tensor(WAVE, requires_grad=True)
    np.testing.assert_array_equal(
        small_forecaster().fit(given).predict(), small_forecaster().fit(WAVE).predict()
    )


@pytest.mark.parametrize("cls", OF_SERIES)
@pytest.mark.parametrize(
    ("X", "y", "dt", "text"),
    [
        (TABLE.astype("datetime64[D]"), KIND, None, "must hold numbers, got dates"),
        (TABLE[..., None].astype("datetime64[D]"), KIND, None, "must hold numbers, got dates"),
        (TABLE.astype(str), KIND, None, "must hold numbers, got text"),
        (TABLE, KIND, 1.0, "dt must have a row of numbers for each series, got 1.0"),
        (TABLE, KIND, [["a"] * 30] * 12, r"dt\[0\] must hold numbers"),
        ([[10**400] * 5] * 12, KIND, None, "must be finite in float64"),
    ],
)
def test_what_is_no_number_is_named(cls, X, y, dt, text):
    with pytest.raises(LinrnnError, match=text):
        cls(**SMALL).fit(X, y, dt)
    with pytest.raises(LinrnnError, match="mixer_options must be a dictionary"):
        cls(**SMALL, mixer_options="x").fit(TABLE, KIND)
    with pytest.raises(LinrnnError, match="n_jobs must be None, an integer"):
        cls(**SMALL, n_jobs=1.5).fit(TABLE, KIND)


def test_a_regressor_names_text_among_its_targets():
    with pytest.raises(LinrnnError, match="y must hold numbers, got text"):
        RecurrentRegressor(**SMALL).fit(TABLE, KIND.astype(str))
    with pytest.raises(LinrnnError, match="y must hold numbers, got dates"):
        RecurrentRegressor(**SMALL).fit(TABLE, KIND.astype("datetime64[D]"))


def test_errors_of_a_forecaster_say_what_to_do():
    with pytest.raises(LinrnnError, match=r"got series of 24 to 48 steps\. .* numpy.stack"):
        small_forecaster().fit([WAVE, WAVE[:24]])
    with pytest.raises(LinrnnError, match="horizon must be at most 20 for a series of 48 steps"):
        small_forecaster(horizon=40).fit(WAVE)
    assert small_forecaster(horizon=20).fit(WAVE).predict().shape == (20,)
    with pytest.raises(LinrnnError, match=r"at most 10 .* or another validation"):
        small_forecaster(horizon=40, validation=10).fit(WAVE)
    assert small_forecaster(horizon=10, validation=10).fit(WAVE).predict().shape == (10,)
    with pytest.raises(LinrnnError, match="y must have at least 10 steps"):
        small_forecaster(horizon=1).fit(WAVE[:5])


@pytest.mark.parametrize(
    ("order", "text"),
    [
        ([0, 1, 2, 3, 3, 4], r"2024-01-04 .* twice, at steps 3 and 4\. .*duplicated"),
        ([0, 1, 2, 4, 5, 6], r"a gap from .*2024-01-03.* to .*2024-01-05.* at step 3, .*asfreq"),
        ([0, 1, 3, 2, 4, 5], r"2024-01-03.* at step 3 after .*2024-01-04.*sort_index"),
    ],
    ids=["twice", "gap", "order"],
)
def test_a_gap_and_a_time_twice_are_told_apart(order, text):
    pd = pytest.importorskip("pandas")
    days = pd.date_range("2024-01-01", periods=60, freq="D")
    index = days[order].append(days[8 : 8 + 42])
    with pytest.raises(LinrnnError, match=text):
        small_forecaster().fit(pd.Series(WAVE, index))


# ----------------------------------------------------------------------- detector


def small_detector(**options):
    return RecurrentDetector(**({"n_modes": 4, "memory": 30, "random_state": 0} | options))


def columns(y):
    """A series as (time, channels), where it is an array."""
    return y[:, None] if isinstance(y, (np.ndarray, torch.Tensor)) and y.ndim == 1 else y


@pytest.mark.parametrize("what", ["fit", "score_samples", "predict", "update"])
def test_a_detector_of_any_data(what):
    """A detector that refuses what it is given says afterwards what it would have said."""
    fitted = small_detector().fit(WAVE[:, None])
    before = fitted.score_samples(WAVE[:, None])

    def tried(y):
        if what == "fit":
            return small_detector().fit(y).score_samples(WAVE[:, None])
        if what == "update":
            many = isinstance(y, list | tuple) or getattr(y, "ndim", 0)
            return np.array([fitted.update(row) for row in y]) if many else 0.0
        return getattr(fitted, what)(y)

    for name, y in series_of(WAVE).items():
        for given in (y, columns(y)):
            said = judge(name, lambda given=given: tried(given))
            assert said is None, said
        if what != "update":
            np.testing.assert_array_equal(fitted.score_samples(WAVE[:, None]), before)


@pytest.mark.parametrize("name", [*inspect.signature(RecurrentDetector).parameters])
def test_an_option_of_a_detector_of_any_value(name):
    none_breaks(
        {
            f"{name}={value!r:.60}": lambda value=value: (
                small_detector(**{name: value}).fit(WAVE[:, None]).score_samples(WAVE[:, None])
            )
            for value in WRONG_VALUES
        }
    )


# ---------------------------------------------------------------------- mode bank


def test_a_bank_of_any_size():
    cases = {}
    for name in ("d_input", "n_modes", "length"):
        for value in WRONG_VALUES:
            sizes = {"d_input": 1, "n_modes": 4, "length": 20} | {name: value}
            cases[f"{name}={value!r:.60}"] = lambda sizes=sizes: ModeBank(**sizes).threshold
    none_breaks(cases)


def test_a_bank_of_any_series():
    bank = ModeBank(1, 4, length=20).calibrate(torch.tensor(TABLE[..., None]).float())
    state = bank.init_state(1)
    cases = {}
    for name, y in series_of(WAVE).items():
        if not isinstance(y, (np.ndarray, torch.Tensor)):
            continue
        try:
            x = torch.as_tensor(y).reshape(1, -1, 1)
        except (TypeError, ValueError):
            continue
        real = x.detach() if x.is_floating_point() else x
        cases[f"{name}, forward"] = lambda real=real: bank(real)
        cases[f"{name}, double"] = lambda real=real: bank(real.double())
        cases[f"{name}, update"] = lambda real=real: bank.features(bank.update(real, state))
        cases[f"{name}, dt"] = lambda real=real: bank(torch.zeros(real.shape), real[..., 0])
        cases[f"{name}, calibrate"] = lambda real=real: ModeBank(1, 4, length=20).calibrate(real)(
            real
        )
    none_breaks(cases)


# ------------------------------------------------------------------- many series


def of_panel(y, **options):
    """All that a forecaster of many series says of some data."""
    fitted = PanelForecaster(**({"horizon": 2, "season": 4} | options)).fit(y)
    answers = [fitted.predict(), fitted.predict_interval(), fitted.predict_quantiles()]
    return [
        answer.select_dtypes("number") if hasattr(answer, "columns") else answer
        for answer in answers
    ]


def test_a_forecaster_of_many_series_of_any_data():
    none_breaks({name: lambda y=y: of_panel(y) for name, y in series_of(WAVE[:10]).items()})


def test_a_forecaster_of_many_series_with_any_option():
    options = [name for name in inspect.signature(PanelForecaster).parameters if name != "self"]
    none_breaks(
        {
            f"{name}={value!r:.60}": lambda name=name, value=value: of_panel(
                WAVE[:6], **{name: value}
            )
            for name in options
            for value in WRONG_VALUES
        }
    )


def test_questions_to_a_forecaster_of_many_series():
    fitted = PanelForecaster(2, 4).fit(WAVE[:6])
    asks = {
        "predict": lambda value: fitted.predict(value),
        "X": lambda value: fitted.predict(X=value),
        "coverage": lambda value: fitted.predict_interval(coverage=value),
        "quantiles": lambda value: fitted.predict_quantiles(quantiles=value),
        "static": lambda value: PanelForecaster(2, 4).fit(WAVE[:6], value).predict(),
    }
    none_breaks(
        {
            f"{name}={value!r:.60}": lambda ask=ask, value=value: ask(value)
            for name, ask in asks.items()
            for value in WRONG_VALUES
        }
    )


@pytest.mark.parametrize("name", [*inspect.signature(RecurrentImputer).parameters])
def test_no_option_of_an_imputer_breaks_it(name):
    gaps = WAVE[:40, None].copy()
    gaps[10:13] = np.nan
    none_breaks(
        {
            f"{name}={value!r:.60}": lambda value=value: RecurrentImputer(
                **{"n_modes": 4, "random_state": 0} | {name: value}
            ).fit_transform(gaps)
            for value in WRONG_VALUES
        }
    )


def test_every_estimator_is_under_these_laws():
    of_steps = (RecurrentForecaster, RecurrentDetector, RecurrentImputer, PanelForecaster)
    assert {cls.__name__ for cls in (*OF_SERIES, *of_steps)} == set(estimators.__all__)


# ------------------------------------------------------------------- constructors


@pytest.mark.parametrize("name", estimators.__all__)
def test_a_constructor_names_what_it_does_not_know(name):
    """For every argument: a slip in its name suggests it; more by position than there are."""
    kind = getattr(estimators, name)
    for known in inspect.signature(kind).parameters:
        slip = known + "x"
        with pytest.raises(UnknownArgumentError, match=rf"{name} named '{slip}'.*'{known}'") as one:
            kind(**{slip: 1})
        assert isinstance(one.value, TypeError)
    with pytest.raises(ArgumentTypeError, match=name):
        kind(*range(40))
    assert kind().get_params() == kind(**kind().get_params()).get_params()


# ------------------------------------------------------------------- rows in time


def _table(index):
    pandas = pytest.importorskip("pandas")
    values = np.sin(np.arange(len(index))[:, None] / np.array([3.0, 5.0]))
    return pandas.DataFrame(values, columns=["a", "b"], index=index)


def _indexes(n):
    """Times of every kind that pandas has."""
    pandas = pytest.importorskip("pandas")
    days = pandas.date_range("2024-01-01", periods=n)
    return {
        "dates": days,
        "zones": days.tz_localize("UTC"),
        "periods": days.to_period("D"),
        "differences": pandas.timedelta_range("0s", periods=n, freq="s"),
        "objects": pandas.Index(days.date, dtype=object),
    }


def _readers(table):
    """Each call that reads a table whose rows are steps, by name."""
    parts = [table.iloc[k : k + 20] for k in range(0, 60, 20)]
    kinds = [0, 1, 0]
    imputer, detector = RecurrentImputer(n_modes=6).fit(table), RecurrentDetector(n_modes=6)
    classifier = RecurrentClassifier(n_modes=6).fit(parts, kinds)
    return {
        "RecurrentImputer.fit": RecurrentImputer(n_modes=6).fit,
        "RecurrentImputer.transform": imputer.transform,
        "RecurrentDetector.fit": RecurrentDetector(n_modes=6).fit,
        "RecurrentDetector.predict": detector.fit(table).predict,
        "RecurrentClassifier.fit": lambda bad: RecurrentClassifier(n_modes=6).fit(
            [*parts[1:], bad], kinds
        ),
        "RecurrentClassifier.predict": lambda bad: classifier.predict([bad]),
        "RecurrentForecaster.fit": small_forecaster().fit,
        "RecurrentForecaster.backtest": small_forecaster().fit(table).backtest,
    }


@pytest.mark.parametrize("kind", ["dates", "zones", "periods", "differences", "objects"])
def test_times_that_do_not_rise_are_refused_by_whatever_reads_rows_as_steps(kind):
    """One that reads them as they come would learn from a past that never was."""
    pytest.importorskip("pandas")
    table = _table(_indexes(60)["dates"])
    index = _indexes(120)[kind]
    backward, twice = np.r_[60:67, 68, 67, 69:120], np.r_[60:69, 68:119]
    uneven = np.r_[60:80, 90:120]
    accepted = []
    for name, call in _readers(table).items():
        for rows in (backward, twice):
            with pytest.raises(LinrnnError, match=r"index of .* must .*, got "):
                call(_table(index).iloc[rows])
        if not name.startswith("RecurrentForecaster"):
            call(_table(index).iloc[uneven])  # rows may be missing
            accepted.append(name)
    assert len(accepted) == 6
