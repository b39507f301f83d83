"""The benchmark of streaming steps: every mixer has a row, which says why it is not recorded."""

import importlib
from pathlib import Path

import pytest

from linrnn.compute import native
from linrnn.engine.replay import program


@pytest.mark.skipif(
    native.load()[0] is None or not program.operations(),
    reason="the native kernels are not installed, or not these",
)
def test_a_row_says_how_a_step_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    steps = importlib.import_module("steps")
    given = ["--quick", "--mixers", "lru", "attention", "--threads", "1", "--out", str(tmp_path)]
    assert steps.main(given) == 0
    text = (tmp_path / "steps-cpu.md").read_text()
    assert text in capsys.readouterr().out + "\n"
    recorded, grown = (line for line in text.splitlines() if line.startswith(("| lru", "| att")))
    assert "×" in recorded
    assert grown.split("|")[3].strip() == "-"
    assert "of another size after each step" in grown
    one = (tmp_path / "one-step-cpu.md").read_text()
    ratios = next(line for line in one.splitlines() if line.startswith("| lru")).split("|")[3:-1]
    assert all(float(ratio) > 0 for ratio in ratios)
