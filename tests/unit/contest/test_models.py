"""Frozen models answer as the estimators that they are of, in pieces, steps and files."""

import numpy as np
import pytest
import torch

from linrnn import state as states
from linrnn.errors import ArgumentError, ShapeError
from linrnn.estimators import RecurrentClassifier, RecurrentForecaster, RecurrentRegressor
from linrnn.estimators.frozen import bank_model, series_model
from linrnn.frozen import BankModel, SeriesModel
from linrnn.nn import ModeBank
from linrnn.streaming import Session


def waves(n_classes):
    rng = np.random.default_rng(0)
    y = np.arange(48) % n_classes
    return np.sin(np.arange(30) / (2 + y[:, None])) + rng.standard_normal((48, 30)), y


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_bank_has_the_probabilities_of_its_classifier(n_classes):
    X, y = waves(n_classes)
    classifier = RecurrentClassifier(n_modes=60, random_state=0).fit(X, y)
    model, x = bank_model(classifier.readout_, 1), torch.tensor(X)[..., None]
    shares = model(x)[0].softmax(-1)
    np.testing.assert_allclose(shares.detach(), classifier.predict_proba(X), atol=1e-9)
    state = model.init_state(48)
    for piece in (x[:, :7], x[:, 7:8], x[:, 8:]):
        y_in_pieces, state = model(piece, state)
    torch.testing.assert_close(y_in_pieces.softmax(-1), shares, atol=1e-6, rtol=0)
    twin = BankModel.of_weights(model.state_dict(), 1)
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(x)[0], model(x)[0])


def test_a_bank_has_the_numbers_of_its_regressor():
    X, y = waves(3)
    regressor = RecurrentRegressor(n_modes=60, random_state=0).fit(X, 7.0 * y + 3)
    model = bank_model(regressor.readout_, 1)
    answers = model(torch.tensor(X)[..., None])[0][:, 0].detach()
    np.testing.assert_allclose(answers, regressor.predict(X), atol=1e-9)
    left_out = regressor.readout_.left_out[:, 0]
    assert 0 < np.corrcoef(left_out, y)[0, 1] < np.corrcoef(regressor.predict(X), y)[0, 1]


def test_padding_and_marked_gaps_are_not_observed():
    X, y = waves(2)
    X[:, 5] = np.nan
    rows = [row[: 20 + k % 3] for k, row in enumerate(X)]
    classifier = RecurrentClassifier(n_modes=60, random_state=0).fit(rows, y)
    model = bank_model(classifier.readout_, 2)
    lengths = torch.tensor([len(row) for row in rows])
    x = torch.tensor(X)[..., None]
    marked = torch.cat([x.nan_to_num(), x.isnan().double()], -1)
    shares = model(marked, lengths=lengths)[0].softmax(-1).detach()
    np.testing.assert_allclose(shares, classifier.predict_proba(rows), atol=1e-9)


@pytest.mark.parametrize("channels", ["auto", "shared"])
def test_a_series_has_the_forecast_of_its_forecaster(channels):
    rng, t = np.random.default_rng(0), np.arange(400)
    a = np.sin(2 * np.pi * t / 12) + 0.1 * rng.standard_normal(400)
    series = np.stack([a, 30 * np.roll(a, 3) + 5], 1)
    forecaster = RecurrentForecaster(5, 12, n_modes=32, channels=channels).fit(series)
    model = series_model(forecaster, 2, 10_000)
    x = torch.tensor(series)[None]
    y, state = model(x)
    np.testing.assert_allclose(y[0].detach().reshape(5, 2), forecaster.predict(), atol=1e-8)
    session = Session(model.eval())
    session.feed(x[0, :100])
    for step in x[0, 100:110]:
        session.feed(step)
    torch.testing.assert_close(session.feed(x[0, 110:]), y[0].detach())
    assert states.batch_size(state) == 1
    twin = SeriesModel.of_weights(model.state_dict(), 2)
    assert torch.equal(twin(x)[0], y)
    assert twin.reach == model.reach
    before = series_model(forecaster, 2, 50, judged=True)
    assert before.reach == 50
    assert not torch.equal(before.head.weight, model.head.weight)


def test_no_rows_and_a_marked_series():
    t = np.arange(300.0)
    forecaster = RecurrentForecaster(4, 10, n_modes=16).fit(np.sin(t * 2 * np.pi / 10))
    model = series_model(forecaster, 2, 100)
    x = torch.tensor(np.sin(t * 2 * np.pi / 10))[None, :, None]
    marked = torch.cat([x, torch.zeros_like(x)], -1)
    expected = series_model(forecaster, 1, 100)(x)[0]
    torch.testing.assert_close(model(marked)[0], expected)
    marked[0, 50:52] = torch.tensor([9.0, 1.0])
    filled = x.clone()
    filled[0, 50:52] = x[0, 49]
    torch.testing.assert_close(model(marked)[0], series_model(forecaster, 1, 100)(filled)[0])
    assert model(marked[:0])[0].shape == (0, 4)


def test_what_does_not_fit_is_refused():
    bank = ModeBank(2, 5, length=9)
    weight, bias = torch.zeros(3, 30).double(), torch.zeros(3).double()
    with pytest.raises(ShapeError, match="d_input must be 2"):
        BankModel(bank, 3, weight, bias)
    with pytest.raises(ShapeError, match="weight must have shape"):
        BankModel(bank, 2, weight[:, 1:], bias)
    with pytest.raises(ArgumentError, match="reset must be None"):
        BankModel(bank, 2, weight, bias)(torch.zeros(1, 3, 2), reset=torch.zeros(1, 3).bool())
    with pytest.raises(ShapeError, match="weights must be those"):
        BankModel.of_weights({}, 2)
    with pytest.raises(ShapeError, match="weights must be those"):
        SeriesModel.of_weights({}, 2)
