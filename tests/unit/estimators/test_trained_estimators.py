"""Estimators whose model is trained end to end."""

import os
import pickle
import signal

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from linrnn import RecurrentClassifier, RecurrentRegressor
from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.estimators import _choose

pytest.importorskip("lightning")
SMALL = {"d_model": 16, "n_layers": 1, "max_steps": 60, "learning_rate": 1e-2, "random_state": 0}


def levels(count=48, steps=20):
    """Noise around 1 or -1, and around which."""
    random = np.random.default_rng(0)
    sign = np.where(np.arange(count) % 2, 1.0, -1.0)
    return random.normal(size=(count, steps, 1)) + sign[:, None, None], sign


@pytest.mark.parametrize("mixer", ["lru", "gru"])
def test_a_mixer_is_trained(mixer):
    X, sign = levels()
    y = np.where(sign > 0, "up", "down")
    model = RecurrentClassifier(mixer=mixer, **SMALL).fit(X[:32], y[:32])
    assert model.score(X[32:], y[32:]) > 0.9
    again = pickle.loads(pickle.dumps(model))  # noqa: S301
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    same = RecurrentClassifier(mixer=mixer, **SMALL).fit(X[:32], y[:32])
    np.testing.assert_array_equal(same.predict_proba(X), model.predict_proba(X))


def test_numbers_gaps_lengths_and_times():
    X, sign = levels()
    X[np.random.default_rng(1).random(X.shape) < 0.2] = np.nan
    series = [x[: 10 + k % 11] for k, x in enumerate(X)]
    dt = [np.ones(len(x)) for x in series]
    model = RecurrentRegressor(mixer="lru", **SMALL)
    model.fit(series, 100 + 7 * sign, dt=dt)
    assert np.corrcoef(model.predict(series, dt=dt), sign)[0, 1] > 0.8
    assert abs(model.predict(series, dt=dt).mean() - 100) < 3


def test_a_held_out_part_ends_the_training_early():
    X, sign = levels()
    noise = np.random.default_rng(0).permutation(sign)  # nothing can be learned
    options = SMALL | {"max_steps": 400, "patience": 2}
    model = RecurrentClassifier(mixer="lru", **options).fit(X, noise)
    assert model.readout_.steps < 400
    whole = RecurrentClassifier(mixer="lru", early_stopping=False, **SMALL).fit(X, noise)
    assert whole.readout_.steps == 60


def test_ctrl_c_keeps_what_was_learned(monkeypatch):
    X, sign = levels()
    model = RecurrentClassifier(mixer="lru", **SMALL | {"max_steps": 100_000})
    best = pytest.importorskip("linrnn.estimators._trained")._Best
    on_end = best.on_train_batch_end

    def interrupt(self, trainer, *more):
        if trainer.global_step == 40:
            os.kill(os.getpid(), signal.SIGINT)
        on_end(self, trainer, *more)

    monkeypatch.setattr(best, "on_train_batch_end", interrupt)
    with pytest.warns(ConvergenceWarning, match="interrupted after 4. of 100000 steps"):
        model.fit(X, sign)
    assert model.predict(X).shape == sign.shape


def test_cross_validation_chooses_the_better():
    X, sign = levels(30)
    model = RecurrentClassifier(mixer="auto", n_modes=50, **SMALL).fit(X, sign)
    assert model.mixer_ == max(model.scores_, key=model.scores_.get)
    assert set(model.scores_) == set(_choose.CANDIDATES)
    assert all(0.5 < score <= 1 for score in model.scores_.values())


@pytest.mark.unchecked
def test_wrong_settings_are_named():
    X, sign = levels()
    with pytest.raises(UnknownNameError, match="no mixer named 'lruu'"):
        RecurrentClassifier(mixer="lruu", **SMALL).fit(X, sign)
    with pytest.raises(ArgumentError, match="max_steps must be an integer of at least 1, got 0"):
        RecurrentClassifier(mixer="lru", max_steps=0).fit(X, sign)
