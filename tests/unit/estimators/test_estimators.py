"""`RecurrentClassifier` and `RecurrentRegressor`, as users of scikit-learn use them."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from linrnn import RecurrentClassifier, RecurrentRegressor
from linrnn.errors import ArgumentError, DataError, ShapeError, UnknownNameError
from linrnn.estimators._bank import standardise
from linrnn.estimators._ridge import choose_ridge
from linrnn.nn.mode_bank import ModeBank

SIZE = {"n_modes": 150, "random_state": 0}


def waves(count=40, steps=50, seed=0):
    """Waves of three periods with random phases, and which it is."""
    random = np.random.default_rng(seed)
    kind = np.arange(count) % 3
    phase, t = random.uniform(0, 6.28, (count, 1)), np.arange(steps)
    x = np.sin(2 * np.pi * t / np.array([6.0, 9.0, 14.0])[kind][:, None] + phase)
    return x + 0.1 * random.normal(size=x.shape), np.array(["a", "b", "c"])[kind]


def test_it_learns_classes_and_says_how_sure_it_is():
    X, y = waves(90)
    model = RecurrentClassifier(**SIZE).fit(X[:45], y[:45])
    assert model.score(X[45:], y[45:]) > 0.95
    sure = model.predict_proba(X[45:])
    assert sure.shape == (45, 3)
    np.testing.assert_allclose(sure.sum(1), 1)
    assert (model.classes_[sure.argmax(1)] == model.predict(X[45:])).all()
    assert (model.n_features_in_, model.n_channels_in_) == (50, 1)


def test_probabilities_fit_what_comes_true():
    """Labels that are wrong in every fifth case cannot be known with certainty."""
    X, y = waves(240)
    noisy = np.where(np.arange(240) % 5 == 4, np.roll(y, 1), y)
    model = RecurrentClassifier(**SIZE).fit(X[:120], noisy[:120])
    sure = model.predict_proba(X[120:]).max(1).mean()
    assert abs(sure - model.score(X[120:], noisy[120:])) < 0.1


def test_it_learns_numbers():
    period = np.random.default_rng(0).uniform(5, 20, 80)
    X = np.sin(2 * np.pi * np.arange(60) / period[:, None])
    model = RecurrentRegressor(**SIZE).fit(X[:50], period[:50])
    assert model.score(X[50:], period[50:]) > 0.9


def test_what_the_last_values_alone_say_is_heard():
    X = np.random.default_rng(0).normal(size=(160, 60))
    y = X[:, -2:].sum(1)
    assert RecurrentRegressor(**SIZE).fit(X[:120], y[:120]).score(X[120:], y[120:]) > 0.8


def test_all_ways_to_give_series_are_one():
    X, y = waves()
    table = RecurrentClassifier(**SIZE).fit(X, y).decision_function(X)
    forms = (
        X[:, :, None],
        torch.tensor(X)[..., None],
        list(X),
        [x[:, None] for x in X],
        X.tolist(),
    )
    for given in forms:
        found = RecurrentClassifier(**SIZE).fit(given, y).decision_function(given)
        np.testing.assert_array_equal(found, table)
    other = RecurrentClassifier(**SIZE, layout="channels_time")
    np.testing.assert_array_equal(other.fit(X[:, None], y).decision_function(X[:, None]), table)


def test_several_channels_of_several_lengths():
    X, y = waves(60)
    random = np.random.default_rng(1)
    ends = random.integers(25, 51, 60)
    series = [np.stack([random.normal(size=n), x[:n]], 1) for x, n in zip(X, ends, strict=True)]
    model = RecurrentClassifier(**SIZE).fit(series[:40], y[:40])
    assert model.score(series[40:], y[40:]) > 0.7
    assert (model.n_features_in_, model.n_channels_in_) == (2, 2)
    alone = np.concatenate([model.decision_function([x]) for x in series[40:]])
    np.testing.assert_allclose(alone, model.decision_function(series[40:]), rtol=1e-5, atol=1e-6)


def test_missing_values_and_times():
    X, y = waves(90)
    random = np.random.default_rng(0)
    X[random.random(X.shape) < 0.2] = np.nan
    gaps = RecurrentClassifier(**SIZE).fit(X[:60], y[:60])
    assert gaps.score(X[60:], y[60:]) > 0.8
    kept = [np.isfinite(x) for x in X]
    series = [x[k] for x, k in zip(X, kept, strict=True)]
    dt = [np.diff(np.flatnonzero(k), prepend=-1.0) for k in kept]
    timed = RecurrentClassifier(**SIZE).fit(series[:60], y[:60], dt=dt[:60])
    assert (timed.predict(series[60:], dt=dt[60:]) == y[60:]).mean() > 0.8
    np.testing.assert_allclose(
        timed.decision_function(series[60:], dt=dt[60:]),
        timed.decision_function(X[60:]),
        rtol=1e-3,
        atol=1e-3,
    )


def test_in_pipelines_searches_and_copies():
    X, y = waves()
    pipe = make_pipeline(FunctionTransformer(np.tanh), RecurrentClassifier(**SIZE))
    search = GridSearchCV(pipe, {"recurrentclassifier__n_modes": [2, 60]}, cv=3).fit(X, y)
    assert search.best_score_ > 0.8
    assert search.predict(X).shape == y.shape
    assert cross_val_score(RecurrentClassifier(**SIZE), X[..., None], y, cv=3).mean() > 0.8
    model = RecurrentClassifier(**SIZE).fit(X, y)
    copied = pickle.loads(pickle.dumps(model))  # noqa: S301
    np.testing.assert_array_equal(copied.predict_proba(X), model.predict_proba(X))
    again = clone(model).fit(X, y)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def test_threads_change_nothing_and_are_put_back():
    X, y = waves()
    before = torch.get_num_threads()
    found = [RecurrentClassifier(**SIZE, n_jobs=n).fit(X, y).decision_function(X) for n in (1, 2)]
    np.testing.assert_allclose(*found, rtol=1e-6)
    assert torch.get_num_threads() == before


def test_an_interrupted_fit_changes_nothing(monkeypatch):
    X, y = waves()
    model = RecurrentClassifier(**SIZE).fit(X, y)
    before, attributes = model.predict_proba(X), dict(vars(model))

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(ModeBank, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[:, :30], y == "a")
    monkeypatch.undo()
    assert vars(model) == attributes
    np.testing.assert_array_equal(model.predict_proba(X), before)


@pytest.mark.parametrize("rows", [12, 50])
def test_leave_one_out_is_leaving_one_out(rows):
    random = np.random.default_rng(0)
    x = StandardScaler().fit_transform(random.normal(size=(rows, 30)))
    y = random.normal(size=(rows, 2))
    others = [np.arange(rows) != k for k in range(rows)]
    for alpha in (1e-2, 10.0):
        ridge = choose_ridge(x, y, [alpha])
        expected = [Ridge(alpha).fit(x[o], y[o]).predict(x[~o])[0] for o in others]
        np.testing.assert_allclose(ridge.left_out, expected, rtol=1e-6, atol=1e-9)
        whole = Ridge(alpha).fit(x, y).predict(x)
        np.testing.assert_allclose(x @ ridge.coefficients + ridge.intercept, whole, rtol=1e-6)


@pytest.mark.parametrize("rows", [20, 70])
def test_penalty_and_weight_are_those_that_scikit_learn_would_choose(rows):
    """`RidgeCV` with features multiplied by each weight chooses the same."""
    random = np.random.default_rng(1)
    x = StandardScaler().fit_transform(random.normal(size=(rows, 40)))
    y = x[:, 30:] @ random.normal(size=(10, 3)) + random.normal(size=(rows, 3))
    penalties, weights = np.logspace(-3, 3, 10).tolist(), (0.0, 1.0, 3.0)
    scales = {w: np.repeat([1.0, w], [30, 10]) for w in weights}
    fitted = {w: RidgeCV(penalties).fit(x * scales[w], y) for w in weights}
    best = max(fitted, key=lambda w: fitted[w].best_score_)
    ridge = choose_ridge(x, y, penalties, weights, 10)
    assert (ridge.weight, ridge.penalty) == (best, fitted[best].alpha_)
    expected = fitted[best].predict(x * scales[best])
    np.testing.assert_allclose(x @ ridge.coefficients + ridge.intercept, expected, rtol=1e-6)


def test_columns_are_standardised_as_scikit_learn_does():
    random = np.random.default_rng(0)
    x = random.normal(size=(30, 6)) * 10.0 ** np.arange(-3, 3)
    x[:, 2], x[:, 4] = 0.1, 1e6 + 1e-12 * x[:, 4]
    expected = StandardScaler().fit(x)
    found = x.copy()
    mean, scale = standardise(found)
    np.testing.assert_allclose(mean, expected.mean_, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(scale, expected.scale_, rtol=1e-9)
    np.testing.assert_allclose(found, expected.transform(x), rtol=1e-9, atol=1e-9)


@pytest.mark.unchecked
def test_wrong_input_is_named():
    X, y = waves()
    model = RecurrentClassifier(**SIZE)
    with pytest.raises(UnknownNameError, match="RecurrentClassifier layout named 'channels_tim'"):
        clone(model).set_params(layout="channels_tim").fit(X[..., None], y)
    with pytest.raises(ArgumentError, match="n_modes must be an integer of at least 1, got 0"):
        clone(model).set_params(n_modes=0).fit(X, y)
    with pytest.raises(DataError, match="y must hold at least two classes, got 1 class: a"):
        model.fit(X, ["a"] * len(X))
    with pytest.raises(DataError, match="X must be finite or NaN, got infinity"):
        model.fit(np.where(X > 0, np.inf, X)[..., None], y)
    with pytest.raises(ShapeError, match="dt must have one number for each step of each series"):
        model.fit(X, y, dt=np.ones((40, 49)))
    with pytest.raises(ShapeError, match=r"a series of X must have shape .* got \(2, 2, 2\)"):
        model.fit([np.ones((2, 2, 2)), np.ones((2, 2))], y[:2])
    with pytest.raises(ShapeError, match="all series of X must have the same channels"):
        model.fit([np.ones((5, 2)), np.ones((5, 3))], y[:2])
    model.fit(X, y)
    with pytest.raises(ShapeError, match="must have the 1 channels it was fitted to, got 2"):
        model.predict(np.ones((3, 50, 2)))
    with pytest.raises(ValueError, match="X has 49 features"):
        model.predict(X[:, 1:])


def test_no_count_of_right_answers_makes_probabilities_certain():
    X, y = waves(80)
    few = RecurrentClassifier(n_modes=100, random_state=0).fit(X[:20], y[:20])
    more = RecurrentClassifier(n_modes=100, random_state=0).fit(X, y)
    assert few.score(X[20:], y[20:]) > 0.95
    doubts = [1 - model.predict_proba(X[:20]).max(1).mean() for model in (few, more)]
    assert 1e-4 < doubts[1] < doubts[0] < 0.1
