"""The benchmark of online learning: rules written out agree, every learner has a row."""

import importlib
from pathlib import Path

import pytest

from linrnn import learn


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("learning")


@pytest.mark.parametrize("mixer", ["lru", "mingru"])
def test_the_rule_written_out_finds_the_same_gradients(script, mixer):
    script.check_agreement(mixer)


def test_another_gradient_is_noticed(script, monkeypatch):
    traces = importlib.import_module("_traces")
    real = traces.MinGRUTraces.step
    monkeypatch.setattr(traces.MinGRUTraces, "step", lambda s, x, dy: real(s, 1.001 * x, dy))
    with pytest.raises(AssertionError):
        script.check_agreement("mingru")


@pytest.mark.slow
def test_every_learner_has_a_row(script, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(script, "STEPS", 2)
    assert script.main(["--quick", "--threads", "1", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "learning-cpu.md").read_text()
    assert text in capsys.readouterr().out + "\n"
    assert all(f"| {name} |" in text for name in learn.names())
    assert text.count("×") >= 4


def test_a_number_is_judged_by_its_floor(script):
    assert script._judged(2.9, "traces") == "met"
    assert script._judged(2.1, "chunks").startswith("NOT met")
