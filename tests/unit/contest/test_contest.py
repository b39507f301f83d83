"""`linrnn train` on data of one's own leaves what answers best, and the folder is used as any."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import linrnn
from linrnn import contest, recipes, train
from linrnn.cli import main
from linrnn.errors import ArgumentError, RunFolderError, UnknownNameError
from linrnn.tasks.forecast import ForecastOptions
from linrnn.tasks.table import TableOptions

TINY = ["--model.d-model", "4", "--model.n-layers", "1"]


def run_folder(capsys):
    """The folder of a run that was trained with --json."""
    said = json.loads(capsys.readouterr().out)
    return said, said["folder"]


@pytest.fixture
def waves(tmp_path, monkeypatch):
    """A file of sequences in two classes that a bank tells apart without an error."""
    monkeypatch.chdir(tmp_path)
    rng, y = np.random.default_rng(0), np.arange(60) % 2
    x = np.sin(np.arange(40) / (2 + y[:, None])) + rng.standard_normal((60, 40)) / 9
    np.savez("x.npz", x=x, y=np.array(["fast", "slow"])[y])
    return x


@pytest.fixture
def series(tmp_path, monkeypatch):
    """A file with a series of two columns and a season."""
    monkeypatch.chdir(tmp_path)
    t, noise = np.arange(300), np.random.default_rng(0).standard_normal(300) / 20
    rows = [f"{i},{v:.5f},{3 * v + 7:.5f}" for i, v in enumerate(np.sin(t / 2) + noise)]
    (tmp_path / "s.csv").write_text("when,a,b\n" + "\n".join(rows) + "\n")


def test_a_bank_wins_and_its_folder_answers(waves, capsys, tmp_path):
    assert main(["train", "table", "--data", "x.npz", "--json", *TINY]) == 0
    said, folder = run_folder(capsys)
    assert said["mixer"] == "bank"
    assert said["test_metric"] == 1
    assert said["steps"] == 0
    assert folder == "runs/table-bank-1"
    kinds = {entry["kind"]: entry for entry in said["contest"]}
    assert kinds.keys() == {"bank", "linear", "plain", "trained"}
    assert kinds["trained"]["remark"] == "not trained: even a perfect score would not win"
    with open(f"{folder}/contest.csv") as file:
        assert [row["who"] for row in csv.DictReader(file) if row["won"] == "1"] == [
            "a frozen bank of modes"
        ]
    loaded = linrnn.load(folder)
    labels = loaded.predict(waves)
    assert labels.tolist() == ["fast", "slow"] * 30
    assert loaded.predict([waves[0], waves[1, :30]]).tolist() == ["fast", "slow"]
    np.savez("new.npz", x=waves)
    assert [one.label for one in train.predict(folder, "new.npz")] == labels.tolist()
    stream = loaded.stream()
    stream.predict(waves[1, :17, None])
    assert stream.predict(waves[1, 17:, None]) == "slow"
    stream.session.save(tmp_path / "state")
    loaded.stream().session.load(tmp_path / "state")
    score, config = train.evaluate(folder)
    assert (score.metric, config.mixer) == (1.0, "bank")
    assert train.resume(folder) == train.resume(folder)


def test_what_needs_layers_says_so(waves, capsys):
    assert main(["train", "table", "--data", "x.npz", "--only", "bank", "--out", "run"]) == 0
    out = capsys.readouterr().out
    assert "chosen" in out
    assert "lru" not in out
    for verb in (["export", "run", "x.onnx"], ["distill", "run"], ["eval", "run", "--lyapunov"]):
        assert main(verb) == 2
        assert "got a frozen bank" in capsys.readouterr().err
    with pytest.raises(ArgumentError, match="got a frozen bank"):
        linrnn.load("run", weights="int8")
    with pytest.raises(RunFolderError, match="new or empty"):
        contest.run(recipes.untuned("table"), out="run")


def test_a_run_that_was_killed_before_its_test_is_finished(waves, capsys):
    assert main(["train", "table", "--data", "x.npz", "--only", "bank", "--out", "run"]) == 0
    first = train.resume("run")
    train.folder.RunFolder(first.folder).result.unlink()
    assert train.resume("run") == first


def test_only_trained_has_a_budget_that_fits(waves, capsys):
    few = ["--train.epochs", "1", "--train.batch-size", "64"]
    line = ["train", "table", "--data", "x.npz", "--only", "trained", *TINY]
    assert main([*line, *few]) == 0
    out = capsys.readouterr().out
    assert "1 epoch of 1 step" in out
    assert out.index("does better than the model") < out.index(" parameters |"), "said first"
    small = contest.fitted_budget(recipes.untuned("table"), 42).train
    assert (small.batch_size, small.epochs) == (8, 50)
    large = contest.fitted_budget(recipes.untuned("table"), 42_000).train
    assert (large.batch_size, large.epochs) == (64, 20)


def test_a_closed_form_forecasts(series, capsys):
    data = ["--data", "s.csv", "--task.time", "when", "--task.horizon", "6", "--task.length", "20"]
    assert main(["train", "forecast", *data, "--only", "bank", "--out", "run", "--json"]) == 0
    said, folder = run_folder(capsys)
    assert said["mixer"] == "bank"
    assert said["test_metric"] < 0.05
    score, _ = train.evaluate(folder)
    assert score.metric == pytest.approx(said["test_metric"])
    assert main(["predict", folder, "s.csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["time"] for row in rows] == [str(300 + h) for h in range(6)]
    truth = np.sin((300 + np.arange(6)) / 2)
    a, b = (np.array([float(row[name]) for row in rows]) for name in "ab")
    assert np.abs(a - truth).max() < 0.3
    assert np.abs(b - 3 * truth - 7).max() < 0.9
    values = np.loadtxt("s.csv", delimiter=",", skiprows=1)[:, 1:]
    np.testing.assert_allclose(linrnn.load(folder).predict(values)[0, :, 0], a, rtol=1e-4)
    short = linrnn.load(folder).predict(values[-25:])
    assert short.shape == (1, 6, 2), "fewer steps than it could read are enough"
    stream = linrnn.load(folder).stream()
    np.testing.assert_allclose(stream.predict(values)[:, 0], a, atol=0.05)


def test_gaps_in_a_series_and_in_a_table(series, waves, capsys):
    lines = Path("s.csv").read_text().splitlines()
    lines[50] = "49,,7"
    Path("g.csv").write_text("\n".join(lines))
    data = ["--data", "g.csv", "--task.horizon", "4", "--task.length", "10"]
    more = ["--task.columns", "a", "b", "--task.missing", "mask", "--only", "bank", "--json"]
    assert main(["train", "forecast", *data, *more]) == 0
    assert run_folder(capsys)[0]["test_metric"] < 0.05
    x = waves.copy()
    x[:, 3] = np.nan
    np.savez("g.npz", x=x, y=np.arange(60) % 2)
    line = ["train", "table", "--data", "g.npz", "--task.missing", "mask", "--only", "bank"]
    assert main([*line, "--json"]) == 0
    said, folder = run_folder(capsys)
    assert said["test_metric"] > 0.9
    assert linrnn.load(folder).predict(x)[:4].tolist() == ["0", "1", "0", "1"]


def test_numbers_are_answered_too(waves, capsys):
    np.savez("n.npz", x=waves, y=5 + 100.0 * (np.arange(60) % 2))
    line = ["train", "table", "--data", "n.npz", "--task.kind", "regression", "--only", "bank"]
    assert main([*line, "--json"]) == 0
    said, folder = run_folder(capsys)
    assert said["metric"] == "mse"
    assert said["test_metric"] < 0.2
    np.testing.assert_allclose(linrnn.load(folder).predict(waves)[:2, 0], [5, 105], atol=20)


@pytest.mark.parametrize("only", ["--only=both", "--only"])
def test_only_is_one_of_three(only, waves, capsys):
    assert main(["train", "table", "--data", "x.npz", only]) == 2
    assert "--only" in capsys.readouterr().err


def test_a_bank_is_no_mixer_that_is_trained(waves, capsys):
    line = ["train", "table", "--data", "x.npz", "--only", "bank", "--mixer", "gru"]
    assert main(line) == 2
    assert "--mixer must be left out" in capsys.readouterr().err
    options = TableOptions(data="x.npz")
    with pytest.raises(ArgumentError, match="trained by gradients"):
        train.run(train.Config(task="table", mixer="bank", task_options=options))


@pytest.mark.unchecked
def test_another_competitor_is_refused():
    with pytest.raises(UnknownNameError):
        contest.run(recipes.untuned("table"), only="best")
    with pytest.raises(ArgumentError, match="only must be 'trained' here"):
        contest.run(recipes.untuned("induction_heads"), only="bank")


def test_python_holds_the_same_contest(series):
    config = train.Config(
        task="forecast",
        task_options=ForecastOptions(data="s.csv", columns=("a",), horizon=3, length=12),
        model=train.ModelConfig(d_model=4, n_layers=1, pool="last"),
        train=train.TrainConfig(batch_size=4096),
    )
    told = []
    result = contest.run(config, out="run", fit_budget=False, say=told.append)
    assert (result.mixer, told[0].winner) == ("bank", "mean")
    by_name = {entry.name: entry for entry in told[0].entries}
    assert {"a frozen bank of modes", "lru", "the last value"} <= by_name.keys()
    assert by_name["the mean of bank and ridges"].score == result.validation_metric
    with open("run/contest.csv") as file:
        won = [row["who"] for row in csv.DictReader(file) if row["won"] == "1"]
    assert won == ["the mean of bank and ridges"]
