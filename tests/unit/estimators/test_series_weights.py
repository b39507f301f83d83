"""Weights of series and classes, several targets, and fits in parts."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import Ridge

from linrnn import RecurrentClassifier, RecurrentRegressor
from linrnn.errors import ArgumentError, ShapeError, UnknownNameError
from linrnn.estimators._ridge import choose_ridge

SIZE = {"n_modes": 60, "random_state": 0}


def waves(count=60, steps=40, seed=0, noise=0.3):
    """Waves of three periods with random phases, and which it is."""
    random = np.random.default_rng(seed)
    kind = np.arange(count) % 3
    phase, t = random.uniform(0, 6.28, (count, 1)), np.arange(steps)
    x = np.sin(2 * np.pi * t / np.array([6.0, 9.0, 14.0])[kind][:, None] + phase)
    return x + noise * random.normal(size=x.shape), np.array(["a", "b", "c"])[kind]


@pytest.mark.parametrize("rows", [12, 50])
def test_a_weighted_ridge_is_that_of_scikit_learn_and_leaves_one_out(rows):
    random = np.random.default_rng(0)
    weight = random.uniform(0.2, 3, rows)
    x, y = random.normal(size=(rows, 20)), random.normal(size=(rows, 2))
    x -= np.average(x, 0, weight)
    others = [np.arange(rows) != k for k in range(rows)]
    for alpha in (1e-2, 10.0):
        ridge = choose_ridge(x, y, [alpha], importance=weight)
        whole = Ridge(alpha).fit(x, y, weight).predict(x)
        np.testing.assert_allclose(x @ ridge.coefficients + ridge.intercept, whole, rtol=1e-6)
        left = [Ridge(alpha).fit(x[o], y[o], weight[o]).predict(x[~o])[0] for o in others]
        np.testing.assert_allclose(ridge.left_out, left, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("rows", [9, 40])
def test_a_row_that_counts_twice_is_there_twice(rows):
    random = np.random.default_rng(0)
    weight = random.integers(1, 4, rows)
    x, y = random.normal(size=(rows, 15)), random.normal(size=(rows, 1))
    x -= np.average(x, 0, weight)
    ridge = choose_ridge(x, y, [0.5], importance=weight.astype(float))
    twice = choose_ridge(x.repeat(weight, 0), y.repeat(weight, 0), [0.5])
    np.testing.assert_allclose(ridge.coefficients, twice.coefficients, rtol=1e-8)
    np.testing.assert_allclose(ridge.intercept, twice.intercept, rtol=1e-12)


@pytest.mark.parametrize("kind", [RecurrentClassifier, RecurrentRegressor])
def test_a_series_without_weight_is_as_if_left_out(kind):
    X, y = waves()
    y = y if kind is RecurrentClassifier else X[:, -1]
    weight = (np.arange(60) < 45).astype(float)
    alone = kind(**SIZE).fit(X[:45], y[:45]).predict(X)
    least = kind(**SIZE).fit(X, y, sample_weight=weight).predict(X)
    even = kind(**SIZE).fit(X[:45], y[:45], sample_weight=7.0).predict(X)
    for answers in (least, even):  # sums of more rows are rounded elsewhere
        if kind is RecurrentClassifier:
            np.testing.assert_array_equal(answers, alone)
        else:
            np.testing.assert_allclose(answers, alone, rtol=1e-9)


def test_weights_and_class_weights_move_the_answers():
    X, y = waves(noise=1.5)
    plain = RecurrentClassifier(**SIZE).fit(X, y)
    heavy = RecurrentClassifier(**SIZE, class_weight={"c": 20}).fit(X, y)
    same = RecurrentClassifier(**SIZE).fit(X, y, sample_weight=np.where(y == "c", 20.0, 1.0))
    new = waves(seed=1, noise=1.5)[0]
    assert (heavy.predict(new) == "c").sum() > (plain.predict(new) == "c").sum()
    np.testing.assert_allclose(heavy.predict_proba(new), same.predict_proba(new))


def test_balanced_classes_raise_the_recall_of_a_rare_one():
    X, y = waves(240, noise=2.0)
    often = (y == "a") | (np.arange(240) % 12 == 1)
    X, y = X[often], y[often] == "b"
    new, truth = waves(240, seed=1, noise=2.0)
    new, truth = new[truth != "c"], truth[truth != "c"] == "b"
    recall = [
        RecurrentClassifier(**SIZE, class_weight=w).fit(X, y).predict(new)[truth].mean()
        for w in (None, "balanced")
    ]
    assert recall[1] > recall[0] + 0.1


def test_a_trained_mixer_heeds_weights():
    pytest.importorskip("lightning")
    random = np.random.default_rng(0)
    X = random.normal(size=(60, 8))
    y = np.arange(60) % 2  # nothing to learn but the shares
    model = RecurrentClassifier(
        mixer="mingru",
        d_model=8,
        n_layers=1,
        max_steps=60,
        learning_rate=0.03,
        early_stopping=False,
        random_state=0,
    )
    share = [
        clone(model).fit(X, y, sample_weight=w).predict_proba(random.normal(size=(50, 8)))[:, 1]
        for w in (None, np.where(y == 1, 19.0, 1.0))
    ]
    assert share[1].mean() > share[0].mean() + 0.2


def test_several_numbers_of_a_series_and_their_scales():
    random = np.random.default_rng(0)
    period = random.uniform(5, 20, 80)
    X = np.sin(2 * np.pi * np.arange(60) / period[:, None])
    both = np.stack([period, 1e9 * period**2], 1)
    model = RecurrentRegressor(n_modes=200, random_state=0).fit(X[:50], both[:50])
    assert model.predict(X).shape == (80, 2)
    assert model.score(X[50:], both[50:]) > 0.9
    units = RecurrentRegressor(n_modes=200, random_state=0).fit(X[:50], both[:50] * [2.0, 1e-9])
    np.testing.assert_allclose(units.predict(X), model.predict(X) * [2.0, 1e-9], rtol=1e-6)
    column = RecurrentRegressor(n_modes=200, random_state=0).fit(X[:50], both[:50, :1])
    alone = RecurrentRegressor(n_modes=200, random_state=0).fit(X[:50], both[:50, 0])
    np.testing.assert_allclose(column.predict(X)[:, 0], alone.predict(X), rtol=1e-6)


def test_several_numbers_of_a_trained_mixer():
    pytest.importorskip("lightning")
    X = np.random.default_rng(0).normal(size=(40, 6))
    y = np.stack([X[:, -1], 100 + 10 * X[:, -1]], 1)
    model = RecurrentRegressor(
        mixer="mingru",
        d_model=8,
        n_layers=1,
        max_steps=160,
        learning_rate=0.03,
        early_stopping=False,
        random_state=0,
    ).fit(X, y)
    assert model.predict(X).shape == (40, 2)
    assert model.score(X, y) > 0.5


def test_parts_give_what_all_at_once_gives():
    """The first part alone draws the bank, so it is the same in both."""
    X, y = waves(90)
    whole = RecurrentClassifier(**SIZE).partial_fit(X[:40], y[:40], classes=["a", "b", "c"])
    parts = clone(whole).partial_fit(X[:40], y[:40], classes=["a", "b", "c"])
    whole.partial_fit(X[40:], y[40:])
    for part in np.array_split(np.arange(40, 90), 7):
        parts.partial_fit(X[part], y[part])
    new = waves(seed=1)[0]
    np.testing.assert_allclose(parts.predict_proba(new), whole.predict_proba(new), rtol=1e-6)


def test_one_part_is_one_fit():
    X, y = waves()
    part = RecurrentClassifier(**SIZE).partial_fit(X, y, classes=["a", "b", "c"])
    whole = RecurrentClassifier(**SIZE).fit(X, y)
    np.testing.assert_allclose(part.predict_proba(X), whole.predict_proba(X), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_parts_are_summed_once_they_outnumber_the_features(weighted):
    """3 modes have 18 features: from 40 series on only sums are there."""
    X, y = waves(120)
    weight = np.random.default_rng(0).uniform(0.5, 2, 120) if weighted else np.ones(120)
    model = RecurrentClassifier(n_modes=3, random_state=0)
    model.partial_fit(X[:60], y[:60], classes=["a", "b", "c"], sample_weight=weight[:60])
    held = model.sums_
    assert held.features == []
    model.partial_fit(X[60:], y[60:], sample_weight=weight[60:])
    readout = model.readout_
    features = readout.describe(model._read_new(X, None))
    ends = np.arange(18) >= 15
    x = (features - np.average(features, 0, weight)) / features.std(0)
    x = x * np.where(ends, readout.end_weight, 1.0)
    codes = np.searchsorted(["a", "b", "c"], y)
    targets = np.where(codes[:, None] == np.arange(3), 1.0, -1.0)
    ridge = Ridge(readout.penalty).fit(x, targets, weight / weight.mean())
    np.testing.assert_allclose(model.decision_function(X), ridge.predict(x), rtol=1e-5, atol=1e-7)


def test_a_part_may_lack_classes_and_an_error_changes_nothing():
    X, y = waves()
    model = RecurrentClassifier(**SIZE).partial_fit(X[:30], y[:30], classes=["a", "b", "c", "d"])
    before = model.predict_proba(X)
    with pytest.raises(UnknownNameError, match="partial_fit class named 'e'"):
        model.partial_fit(X[30:31], ["e"])
    np.testing.assert_array_equal(model.predict_proba(X), before)
    model.partial_fit(X[30:31], y[30:31])
    assert (model.predict_proba(X) != before).any()


@pytest.mark.unchecked
def test_wrong_weights_and_parts_are_named():
    X, y = waves()
    model = RecurrentClassifier(**SIZE)
    with pytest.raises(ShapeError, match="one number for each of the 60 series, got shape"):
        model.fit(X, y, sample_weight=[1.0, 2.0])
    with pytest.raises(ArgumentError, match=r"must be finite and at least 0, got -1\.0"):
        model.fit(X, y, sample_weight=np.full(60, -1.0))
    with pytest.raises(ArgumentError, match="above 0 for at least 2 series"):
        model.fit(X, y, sample_weight=np.zeros(60))
    with pytest.raises(ArgumentError, match="class_weight must be None, 'balanced' or"):
        clone(model).set_params(class_weight="even").fit(X, y)
    with pytest.raises(ArgumentError, match="classes must have all labels that will come"):
        clone(model).partial_fit(X, y)
    with pytest.raises(ArgumentError, match="must not follow fit, which keeps no series"):
        clone(model).fit(X, y).partial_fit(X, y)
    with pytest.raises(ArgumentError, match="mixer must be 'bank', got 'lru'"):
        clone(model).set_params(mixer="lru").partial_fit(X, y, classes=["a", "b", "c"])
    model.partial_fit(X, y, classes=["a", "b", "c"])
    with pytest.raises(ArgumentError, match="classes must be those of the first call"):
        model.partial_fit(X, y, classes=["a", "b"])
    with pytest.raises(ValueError, match="X has 39 features"):
        model.partial_fit(X[:, 1:], y)
