"""Means of forecasts of a short series: their parts, weights, pieces, files and streams."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import linrnn
from linrnn import contest, recipes
from linrnn.cli import main
from linrnn.contest import _windows
from linrnn.errors import ArgumentError, ShapeError
from linrnn.estimators import RecurrentForecaster
from linrnn.estimators._window_ridge import PENALTIES, fit_windows
from linrnn.estimators.mean_forecast import back_tested, fit_means
from linrnn.frozen import MeanModel, SeriesModel, WindowModel
from linrnn.streaming import Session
from linrnn.tasks.forecast import Forecast, ForecastOptions

F64 = torch.float64


def cycles(n=160, seed=0):
    """Counts that come back to a mean, in cycles of about ten steps."""
    rng, y = np.random.default_rng(seed), np.zeros(n)
    for t in range(2, n):
        y[t] = 1.5 * y[t - 1] - 0.9 * y[t - 2] + 0.4 * rng.standard_normal()
    return np.exp(y / 2)[:, None]


def means_of(values, length=8, n_train=None, floor=0.0, **options):
    n_train = len(values) - 16 if n_train is None else n_train
    forecaster = RecurrentForecaster(
        4, validation=len(values) - n_train, n_modes=32, layout="time_channels", **options
    )
    tested = back_tested(forecaster, values)
    floors = np.full(values.shape[1], floor)
    return tested, fit_means(tested, values, n_train=n_train, length=length, floor=floors)


def test_a_window_model_is_its_equation_in_pieces_too():
    torch.manual_seed(0)
    weight, bias = torch.randn(2, 5, 3, dtype=F64), torch.randn(2, 3, dtype=F64)
    model, x = WindowModel(weight, bias).eval(), torch.randn(1, 20, 2, dtype=F64)
    expected = [(x[0, -5:, c] @ weight[c] + bias[c]).tolist() for c in range(2)]
    y = model(x)[0].detach()
    torch.testing.assert_close(y.reshape(3, 2).T, torch.tensor(expected, dtype=F64))
    session = Session(model)
    session.feed(x[0, :3])
    torch.testing.assert_close(session.feed(x[0, 3:])[None], y)
    short = torch.cat([x[:, :1].expand(-1, 3, -1), x[:, :2]], 1)
    torch.testing.assert_close(model(x[:, :2])[0], model(short)[0])
    twin = WindowModel.of_weights(model.state_dict())
    assert torch.equal(twin(x)[0], model(x)[0])


def test_windows_are_a_ridge_of_each_channel():
    values = np.concatenate([cycles(), 5 - 2 * cycles(seed=1)], 1)
    ridge = fit_windows(values, 6, 3)
    x = np.stack([values[t : t + 6, 1] for t in range(152)])
    y = np.stack([values[t + 6 : t + 9, 1] for t in range(152)])
    unit = values[:, 1].std() ** 2
    gram = (x - x.mean(0)).T @ (x - x.mean(0))
    distances = [
        np.abs(
            np.linalg.solve(gram + p * 152 * unit * np.eye(6), (x - x.mean(0)).T @ (y - y.mean(0)))
            - ridge.weight[1]
        ).max()
        for p in PENALTIES
    ]
    assert min(distances) < 1e-9, "one of the penalties"
    origins = np.array([50, 90])
    expected = values[45:51, 1] @ ridge.weight[1] + ridge.bias[1]
    np.testing.assert_allclose(ridge.forecasts(values, origins)[0, 1], expected)
    assert fit_windows(values[:20], 6, 3) is None


def test_a_mean_has_its_parts_and_is_read_from_its_weights():
    values = cycles()
    tested, means = means_of(values)
    model = means.every.eval()
    assert model.roots.tolist() == [False, True, False, True]
    weight = model.head.weight.detach()
    torch.testing.assert_close(weight[:2].sum(), weight[2:].sum())
    assert weight.sum() == pytest.approx(1)
    x = torch.tensor(values)[None]
    y = model(x)[0][0].detach()
    parts = [
        part(x.sqrt() if root else x)[0][0].detach()
        for part, root in zip(model.parts, model.roots, strict=True)
    ]
    expected = sum(
        w * (p.clamp_min(0) ** 2 if root else p)
        for w, p, root in zip(weight, parts, model.roots, strict=True)
    )
    torch.testing.assert_close(y, expected)
    np.testing.assert_allclose(parts[0], tested.forecaster.predict()[:, 0], atol=1e-8)
    session = Session(model)
    session.feed(x[0, :100])
    torch.testing.assert_close(session.feed(x[0, 100:]), y)
    twin = MeanModel.of_weights(model.state_dict())
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(x)[0][0], y)
    assert MeanModel.is_of(model.state_dict())
    assert not MeanModel.is_of(model.parts[0].state_dict())
    assert model.reach >= 8
    assert model.tails is not None
    assert means.judged.tails is None


def test_the_mean_of_training_reads_nothing_later():
    values = cycles()
    other = values.copy()
    other[-16:] = values[-16:] + 0.1
    one, two = (means_of(v)[1].judged for v in (values, other))
    assert torch.equal(one.parts[2].head.weight, two.parts[2].head.weight)
    assert not torch.equal(one.parts[2].head.weight, means_of(values)[1].every.parts[2].head.weight)


@pytest.mark.parametrize("power", [1, 1e6, 1e-6])
def test_weights_do_not_depend_on_the_unit(power):
    weights = [means_of(v)[1].every.head.weight.detach() for v in (cycles(), power * cycles())]
    torch.testing.assert_close(*weights, atol=1e-4, rtol=1e-3)


def test_square_roots_and_windows_are_left_out_where_they_cannot_be():
    values = cycles() - 2
    assert means_of(values)[1].every.roots.tolist() == [False, False]
    assert means_of(values, length=60)[1] is None
    wide = np.tile(cycles(), 17)
    assert means_of(wide, channels="shared")[1] is None
    assert means_of(np.tile(cycles(), (10, 1)), n_train=900)[1] is None, "a long series"


def test_a_mean_is_better_than_the_bank_on_series_that_come_back():
    ratios = []
    for seed in range(6):
        values = cycles(220, seed)
        _, means = means_of(values[:180], n_train=164)
        squares = []
        for model in (means.every, means.every.parts[0]):
            y = torch.stack([model(torch.tensor(values[None, :t]))[0][0] for t in range(180, 216)])
            came = np.stack([values[t : t + 4, 0] for t in range(180, 216)])
            squares.append(np.square(y.detach().numpy() - came).mean())
        ratios.append(np.log(squares[0] / squares[1]))
    assert np.mean(ratios) < 0


def test_a_run_of_a_mean_answers_everywhere(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    values = cycles()
    (tmp_path / "s.csv").write_text("y\n" + "\n".join(f"{v:.6f}" for v in values[:, 0]) + "\n")
    line = ["--task.horizon", "4", "--task.length", "8", "--model.d-model", "4", "--out", "run"]
    assert main(["train", "forecast", "--data", "s.csv", *line, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    kinds = {entry["kind"] for entry in said["contest"]}
    assert said["mixer"] == "bank"
    assert kinds == {"bank", "mean", "plain", "trained"}
    run = linrnn.load("run")
    assert isinstance(run.model, MeanModel)
    whole = run.predict(values)
    assert np.abs(whole[0, :, 0] - values[-1]).max() < 10 * values.std()
    stream = run.stream()
    stream.predict(values[:70])
    # a window reaches less far than a stream
    np.testing.assert_allclose(stream.predict(values[70:])[:, 0], whole[0, :, 0], rtol=1e-2)
    assert main(["eval", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metric"] == pytest.approx(said["test_metric"])


def test_what_is_no_mean_is_refused():
    window = WindowModel(torch.zeros(1, 3, 2), torch.zeros(1, 2))
    one = torch.ones(1, dtype=F64)
    with pytest.raises(ShapeError, match="parts must have the same"):
        MeanModel([window], one, torch.zeros(2) > 0, one)
    with pytest.raises(ShapeError, match="must be those of a mean"):
        MeanModel.of_weights({})
    with pytest.raises(ShapeError, match="must be those of its head"):
        WindowModel.of_weights({})
    with pytest.raises(ShapeError, match="weight must have shape"):
        WindowModel(torch.zeros(3, 2), torch.zeros(2))
    mean = MeanModel([window], one, torch.zeros(1) > 0, one)
    for model in (window, mean):
        with pytest.raises(ArgumentError, match="reset and lengths must be None"):
            model(torch.zeros(1, 4, 1), reset=torch.zeros(1, 4) > 0)
    assert isinstance(means_of(cycles())[1].every.parts[0], SeriesModel)


@pytest.mark.parametrize("worse", [True, False])
def test_a_mixer_must_beat_the_better_of_bank_and_mean(worse, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("s.csv").write_text("y\n" + "\n".join(f"{v:.6f}" for v in cycles()[:, 0]) + "\n")
    options = ForecastOptions(data="s.csv", horizon=4, length=8)
    config = replace(recipes.untuned("forecast"), task_options=options)
    task, holders, scores = Forecast(options), [], []
    fit_bank, fit_mean = _windows.fit_bank, _windows.fit_mean

    def banked(series, seed):
        tested, model, of_bank = fit_bank(series, seed)
        scores.append(of_bank.double())
        return tested, model, of_bank

    def mean(series, tested):
        return fit_mean(series, tested)[0], scores[0] + (1 if worse else -0.001)

    def held(config, series, holder, scale):
        holders.append(holder)
        entry = scale.entry("lru", "trained", holder + 9, 0.0)
        return entry, False

    for name, replaced in {"fit_bank": banked, "fit_mean": mean, "race": held}.items():
        monkeypatch.setattr(_windows, name, replaced)
    outcome = contest.hold(config, task, task.datasets()).contest
    assert outcome.winner == "mean"
    assert torch.equal(holders[0], scores[0] if worse else scores[0] - 0.001)
