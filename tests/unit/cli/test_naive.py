"""`linrnn train` of a forecast says what the simplest ones reach."""

import numpy as np
import pytest

from linrnn.cli import main
from linrnn.cli._verbs.naive import naive_error

TINY = ["--model.d-model", "4", "--model.n-layers", "1", "--train.batch-size", "64"]
TASK = ["--task.horizon", "6", "--task.length", "12", "--train.epochs", "1"]


@pytest.mark.parametrize("season", [1, 3, 4])
def test_naive_error_is_that_of_every_window(season):
    y = np.random.default_rng(0).standard_normal((60, 2)).cumsum(0)
    errors = [
        np.square(y[t : t + 7] - np.resize(y[t - season : t], (7, 2)))
        for t in range(40, 55 - 7 + 1)
    ]
    assert naive_error(y, (40, 55), 7, season) == pytest.approx(np.mean(errors))


@pytest.mark.parametrize(("noise", "worse"), [(0.01, True), (5.0, False)])
def test_a_run_has_them_beside_its_own(noise, worse, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    wave = np.sin(np.arange(600) * np.pi / 6) + noise * rng.standard_normal(600)
    lines = ["wave", *(f"{x:.6f}" for x in wave)]
    (tmp_path / "wave.csv").write_text("\n".join(lines))
    assert (
        main(["train", "forecast", "--task.data", "wave.csv", *TASK, *TINY, "--only=trained"]) == 0
    )
    out = capsys.readouterr().out
    assert "without a model, test mse: the last value " in out
    assert ("the value 12 steps before" in out) == worse
    assert ("the value 12 steps before does better than the model\n" in out) == worse
    assert ("than the model" in out) == worse


def test_other_tasks_have_none(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits", "--train.epochs", "1", *TINY]) == 0
    assert "without a model" not in capsys.readouterr().out
