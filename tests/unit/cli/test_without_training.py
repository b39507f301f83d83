"""`linrnn train table` says what is reached without training."""

import numpy as np
import pytest

from linrnn.cli import main
from linrnn.cli._verbs.without_training import verdict

TINY = ["--model.d-model", "4", "--model.n-layers", "1", "--train.batch-size", "64"]
ALONE = ["--only", "trained"]


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_run_says_what_the_nearest_and_a_bank_reach(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    x = np.sin(np.arange(30) / (2 + y[:, None])) + rng.standard_normal((60, 30)) / 9
    np.savez(tmp_path / "x.npz", x=x, y=y)
    task = ["--task.data", "x.npz", "--task.kind", kind, "--train.epochs", "1"]
    assert main(["train", "table", *task, *TINY, *ALONE]) == 0
    out = capsys.readouterr().out
    metric, right = ("accuracy", "1") if kind == "classification" else ("mse", "")
    said = next(line for line in out.splitlines() if line.startswith("without training"))
    assert said.startswith(f"without training, test {metric}: the nearest sequence {right}")
    assert f"a frozen bank of modes {right}" in said
    assert "does better than the model" in out


@pytest.mark.parametrize(
    ("score", "higher", "says"),
    [
        (1.0, True, "b does as well as the model\n"),
        (0.9, True, "b does better than the model\n"),
        (1.1, True, ""),
        (0.5, False, "a does as well as the model\n"),
        (0.6, False, "a does better than the model\n"),
        (0.4, False, ""),
        (float("nan"), True, "b does better than the model\n"),
    ],
)
def test_a_tie_is_no_win(score, higher, says):
    assert verdict(score, {"a": 0.5, "b": 1.0}, higher_is_better=higher) == says


def test_sequences_of_several_lengths_with_gaps(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = ["who,when,a,what"]
    for i in range(20):
        lines += [
            f"s{i},{t * (1 + t % 2)},{'' if t == 2 else i % 2},{'xy'[i % 2]}"
            for t in range(3 + i % 3 * 2)
        ]
    (tmp_path / "x.csv").write_text("\n".join(lines))
    task = ["--task.data", "x.csv", "--task.id", "who", "--task.target", "what"]
    more = ["--task.missing", "mask", "--train.epochs", "1", "--mixer", "mingru"]
    assert main(["train", "table", *task, "--task.columns", "a", *more, *TINY]) == 0
    assert "without training, test accuracy: the nearest sequence 1," in capsys.readouterr().out
