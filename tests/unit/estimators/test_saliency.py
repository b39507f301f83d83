"""Which part of a series decided: what an answer loses when that part is hidden."""

import numpy as np
import pytest

from linrnn import RecurrentClassifier, RecurrentRegressor
from linrnn.errors import ArgumentError

SIZE = {"n_modes": 400, "random_state": 0}
LENGTH = 20


def planted(count=120, steps=100, seed=0):
    """Noise in two channels; in the second one wave of two frequencies, somewhere, and where."""
    random = np.random.default_rng(seed)
    X = 0.3 * random.normal(size=(count, steps, 2))
    y, place = np.arange(count) % 2, random.integers(5, steps - LENGTH - 5, count)
    for row, kind, first in zip(X, y, place, strict=True):
        row[first : first + LENGTH, 1] += 1.5 * np.sin(np.arange(LENGTH) * (0.8, 1.6)[kind])
    return X, y, place


def test_it_finds_the_channel_and_the_steps_that_tell_classes_apart():
    X, y, place = planted()
    model = RecurrentClassifier(**SIZE).fit(X[:80], y[:80])
    assert model.score(X[80:], y[80:]) > 0.9
    lost = model.saliency(X[80:])
    assert lost.shape == X[80:].shape
    assert lost[..., 1].max(1).mean() > 3 * lost[..., 0].max(1).mean()
    first = lost[..., 1].argmax(1)
    assert np.mean((first >= place[80:] - 3) & (first < place[80:] + LENGTH + 3)) > 0.9


def test_a_window_as_long_as_the_series_hides_it_all():
    X, y, _ = planted(40, 60)
    model = RecurrentClassifier(**SIZE).fit(X[..., 1], y)
    lost = model.saliency(X[:5, :, 1], window=60)
    sure = np.log(model.predict_proba(X[:5, :, 1]).max(1))
    none = model.predict_proba(np.full((1, 60), np.nan))[0]
    told = np.searchsorted(model.classes_, model.predict(X[:5, :, 1]))
    odds = sure - np.log1p(-np.exp(sure)) - np.log(none[told] / (1 - none[told]))
    np.testing.assert_allclose(lost, np.repeat(odds[:, None], 60, 1), rtol=1e-4)


def test_numbers_have_the_shape_of_the_series():
    X, y, _ = planted(30, 50)
    model = RecurrentClassifier(**SIZE).fit(X, y)
    several = [row[: 30 + k] for k, row in enumerate(X[:4])]
    assert [one.shape for one in model.saliency(several)] == [row.shape for row in several]
    turned = RecurrentClassifier(layout="channels_time", **SIZE).fit(X.swapaxes(1, 2), y)
    np.testing.assert_allclose(
        turned.saliency(X[:3].swapaxes(1, 2)), model.saliency(X[:3]).swapaxes(1, 2), atol=1e-6
    )
    table = RecurrentClassifier(**SIZE).fit(X[..., 1], y)
    assert table.saliency(X[:3, :, 1]).shape == (3, 50)
    regressor = RecurrentRegressor(**SIZE).fit(X, np.stack([y, -y], 1).astype(float))
    lost = regressor.saliency(X[:3])
    assert lost.shape == (3, 50, 2, 2)
    np.testing.assert_allclose(lost[..., 0], -lost[..., 1], atol=1e-6)


def test_a_step_behind_the_end_decides_nothing_and_a_trained_mixer_is_explained_too():
    X, y, _ = planted(30, 50)
    model = RecurrentClassifier(mixer="mingru", d_model=8, n_layers=1, max_steps=5, random_state=0)
    model.fit([*X[:29], X[29, :20]], y)
    first, second = model.saliency([X[0], X[1, :20]])
    assert first.shape == (50, 2)
    assert second.shape == (20, 2)
    assert np.abs(first).max() > 0


def test_a_figure_shows_a_panel_for_each_channel():
    pytest.importorskip("matplotlib")
    X, y, _ = planted(30, 50)
    model = RecurrentClassifier(**SIZE).fit(X, y)
    figure = model.plot_saliency(X[0])
    assert [axes.get_ylabel() for axes in figure.axes[:2]] == ["channel 0", "channel 1"]
    assert figure.axes[0].get_title() == f"answer: {model.predict(X[:1])[0]}"
    table = RecurrentClassifier(**SIZE).fit(X[..., 1], y)
    assert len(table.plot_saliency(X[0, :, 1]).axes) == 2  # and the scale


@pytest.mark.unchecked
def test_a_window_must_fit_into_the_series():
    X, y, _ = planted(30, 50)
    model = RecurrentClassifier(**SIZE).fit(X, y)
    with pytest.raises(ArgumentError, match=r"saliency: window must be at most 50, .* got 51"):
        model.saliency(X, window=51)
    with pytest.raises(ArgumentError, match=r"saliency: window must be an integer"):
        model.saliency(X, window=0)
