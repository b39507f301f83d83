"""Learning rates by validation."""

from dataclasses import replace

import pytest

from linrnn.compare import Row
from linrnn.recipes import untuned
from linrnn.reproductions import Setting, _tuned
from linrnn.reproductions._trained import Column, Outcome
from linrnn.reproductions._tuned import tuned
from linrnn.train._model import build_task


def row(label, *values):
    return Row(
        label=label, metric="accuracy", values=values, failures=(), folders=(),
        n_parameters=1, n_state=1, memory=None, seconds_per_step=1.0,
    )  # fmt: skip


def trained(of, rows, setting):
    """What `train` returns, as if every run had come to the same."""
    config = next(iter(rows.values()))
    column = Column(name=of, config=config, paper=config, steps=0)
    found = tuple(row(label, *[0.5] * len(setting.seeds)) for label in rows)
    return Outcome(column=column, task=build_task(config), labels=tuple(rows), rows=found)


@pytest.mark.parametrize(("task", "taken"), [("digits", 1e-2), ("mackey_glass", 1e-3)])
def test_the_rate_that_is_best_on_validation_is_trained_with_all_seeds(
    task, taken, tmp_path, monkeypatch
):
    """The largest accuracy, or the smallest error."""
    base = untuned(task)
    asked = []

    def train(of, rows, setting):
        asked.append((tuple(rows), setting.seeds))
        return trained(of, rows, setting)

    monkeypatch.setattr(_tuned, "train", train)
    monkeypatch.setattr(_tuned, "validation", lambda row, _: float(row.label.split()[-1]))
    rates = {1e-3: base, 1e-2: base}
    found = tuned("x", {"a": rates}, Setting(scale="cpu", seeds=(7, 8), out=tmp_path))
    assert asked == [(("a at 0.001", "a at 0.01"), (7,)), ((f"a at {taken:g}",), (7, 8))]
    assert found.rates == {"a": taken}
    assert [r.label for r in found.outcome.rows] == ["a"]
    assert found.tried.rows[0][0] == "a"
    assert len(found.tried.rows[0]) == len(found.tried.head) == 3


def test_a_rate_whose_run_failed_is_shown_as_that(tmp_path, monkeypatch):
    base = untuned("digits")
    monkeypatch.setattr(_tuned, "train", trained)
    setting = Setting(scale="cpu", seeds=(0,), out=tmp_path)  # where no run of the rows has ended
    assert tuned("x", {"a": {1e-3: base}}, setting).tried.rows == [["a", "failed at 0.001"]]


def test_missing_data_is_an_outcome_without_rows(tmp_path, monkeypatch):
    base = untuned("digits")

    def train(of, rows, setting):
        return replace(trained(of, rows, setting), rows=(), problem="no files")

    monkeypatch.setattr(_tuned, "train", train)
    found = tuned("x", {"a": {1e-3: base}}, Setting(scale="cpu", seeds=(0,), out=tmp_path))
    assert found.outcome.problem == "no files"
    assert (found.outcome.labels, found.outcome.rows, dict(found.rates)) == (("a",), (), {})
    assert found.tried.rows == [["a", "not run"]]
