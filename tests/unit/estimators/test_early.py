"""Answers before the end: `predict_early` and `stream`."""

import numpy as np
import pytest
import torch

from linrnn import RecurrentClassifier
from linrnn.errors import ArgumentError, ShapeError

SIZE = {"n_modes": 150, "random_state": 0, "early": 10}


def bursts(count=120, steps=80, seed=0, at=(20, 30)):
    """Noise, in which one class has a wave from some step on and the other a slower one."""
    random = np.random.default_rng(seed)
    y = np.arange(count) % 2
    X = 0.3 * random.normal(size=(count, steps))
    t = np.arange(at[1] - at[0])
    X[:, at[0] : at[1]] += np.sin(t / np.where(y, 0.8, 3.0)[:, None])
    return X, np.array(["slow", "fast"])[y]


@pytest.fixture(scope="module")
def fitted():
    return RecurrentClassifier(**SIZE).fit(*bursts())


def test_it_answers_when_there_is_something_to_know(fitted):
    X, y = bursts(seed=1)
    early = fitted.predict_early(X)
    assert (early.labels == y).mean() > 0.93
    assert early.steps.min() > 20
    assert early.steps.mean() < 60
    assert ((early.confidence > 0.5) & (early.confidence <= 1)).all()
    full = (fitted.predict(X) == y).mean()
    assert (early.labels == y).mean() > full - 0.05


def test_who_may_lose_more_stops_earlier(fitted):
    X, _ = bursts(seed=1)
    steps = [fitted.predict_early(X, tolerance=t).steps.mean() for t in (0.0, 0.02, 0.3, 1.0)]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] == 8  # the first of ten lengths


def test_a_stream_says_what_the_whole_says(fitted):
    X, _ = bursts(seed=1)
    early = fitted.predict_early(X[:6])
    sure = fitted.predict_proba(X[:6])
    for k in range(6):
        stream, stopped = fitted.stream(), None
        for value in X[k]:
            answer = stream.update(value)
            if answer.stop and stopped is None:
                stopped = answer
        assert stopped.step == early.steps[k]
        assert stopped.label == early.labels[k]
        assert stopped.confidence == pytest.approx(early.confidence[k], rel=1e-4)
        assert answer.step == 80
        assert answer.confidence == pytest.approx(sure[k].max(), rel=1e-3)


def test_series_of_several_lengths_and_channels():
    X, y = bursts()
    ends = np.random.default_rng(0).integers(40, 81, 120)
    series = [np.stack([x[:n], -x[:n]], 1) for x, n in zip(X, ends, strict=True)]
    model = RecurrentClassifier(**SIZE).fit(series[:80], y[:80])
    early = model.predict_early(series[80:])
    assert (early.labels == y[80:]).mean() > 0.8
    assert (early.steps <= ends[80:]).all()
    stream = model.stream()
    answer = stream.update(torch.tensor(series[80]))
    assert (answer.step, len(model.classes_)) == (ends[80], 2)
    stream.update(np.array([1.0, np.nan]))


def test_three_classes_and_weights():
    X, y = bursts()
    y = np.where(np.arange(120) % 3 == 2, "none", y)
    X[y == "none"] = 0.3 * np.random.default_rng(3).normal(size=((y == "none").sum(), 80))
    model = RecurrentClassifier(**SIZE, class_weight="balanced").fit(X[:90], y[:90])
    early = model.predict_early(X[90:])
    assert (early.labels == y[90:]).mean() > 0.8


@pytest.mark.unchecked
def test_wrong_use_is_named(fitted):
    X, y = bursts(20)
    with pytest.raises(ArgumentError, match="early must be set before fit, got None"):
        RecurrentClassifier(n_modes=10).fit(X, y).predict_early(X)
    with pytest.raises(ArgumentError, match="early must be None or an integer of at least 2"):
        RecurrentClassifier(n_modes=10, early=1).fit(X, y)
    with pytest.raises(ArgumentError, match="tolerance must be a share of accuracy from 0 to 1"):
        fitted.predict_early(X, tolerance=2)
    with pytest.raises(ShapeError, match=r"values must have shape \(1,\) or \(time, 1\)"):
        fitted.stream().update(np.ones((2, 3)))
