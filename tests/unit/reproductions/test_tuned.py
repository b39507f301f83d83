"""Learning rates by validation."""

from dataclasses import replace

import pytest

from linrnn.compare import Row
from linrnn.recipes import untuned
from linrnn.reproductions import Setting
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.verdict import EDGE
from linrnn.reproductions._runs import tuned as _tuned
from linrnn.reproductions._runs.trained import Column, Outcome
from linrnn.reproductions._runs.tuned import tuned
from linrnn.train.model import build_task


def row(label, *values):
    return Row(
        label=label, metric="accuracy", values=values, failures=(), folders=(),
        n_parameters=1, n_state=1, memory=None, seconds_per_step=1.0,
    )  # fmt: skip


def trained(of, rows, setting):
    """Results of `train`, as if every run had the same loss."""
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
    assert found.outcome.rates == {"a": taken}
    assert [r.label for r in found.outcome.rows] == ["a"]
    (cells,) = found.tried.rows
    assert (cells[0], cells[-1], len(cells)) == ("a", f"{taken:g}, an end", len(found.tried.head))


def test_a_rate_whose_run_failed_is_shown_as_that(tmp_path, monkeypatch):
    base = untuned("digits")
    monkeypatch.setattr(_tuned, "train", trained)
    setting = Setting(scale="cpu", seeds=(0,), out=tmp_path)  # where no run of the rows has ended
    assert tuned("x", {"a": {1e-3: base}}, setting).tried.rows == [
        ["a", "failed at 0.001", "0.001"]
    ]


def test_missing_data_is_an_outcome_without_rows(tmp_path, monkeypatch):
    base = untuned("digits")

    def train(of, rows, setting):
        return replace(trained(of, rows, setting), rows=(), problem="no files")

    monkeypatch.setattr(_tuned, "train", train)
    found = tuned("x", {"a": {1e-3: base}}, Setting(scale="cpu", seeds=(0,), out=tmp_path))
    assert found.outcome.problem == "no files"
    assert (found.outcome.labels, found.outcome.rows, dict(found.outcome.rates)) == (("a",), (), {})
    assert found.tried.rows == [["a", "not run"]]


@pytest.mark.parametrize(("best", "said"), [(1e-3, "0.001, an end"), (3e-3, "0.003")])
def test_a_rate_at_an_end_of_what_was_tried_is_called_that(best, said, tmp_path, monkeypatch):
    """And a row with fewer rates has its own ends."""
    base = untuned("digits")

    def validation(row, higher_is_better):
        return -abs(float(row.label.split()[-1]) - best)

    monkeypatch.setattr(_tuned, "train", trained)
    monkeypatch.setattr(_tuned, "validation", validation)
    candidates = {"a": dict.fromkeys((1e-3, 3e-3, 1e-2), base), "b": {best: base}}
    found = tuned("x", candidates, Setting(scale="cpu", seeds=(0,), out=tmp_path))
    assert [row[-1] for row in found.tried.rows] == [said, f"{best:g}"]
    assert {len(row) for row in found.tried.rows} == {len(found.tried.head)} == {5}


@pytest.mark.parametrize("taken", [1e-3, 1e-2, 1e-1])
def test_of_rates_with_one_validation_that_which_all_seeds_have_is_read(taken, made_runs):
    """As a page has chosen it, whatever the order of its folders."""
    runs = []
    for lr in (1e-3, 1e-2, 1e-1):
        seeds = range(5) if lr == taken else range(1)
        runs += made_runs("x", {"a": dict.fromkeys(seeds, lr)}, lr=lr, validation=1.0).rows
    part = Runs(tuple(runs)).part("x")
    assert part.values("a") == dict.fromkeys(range(5), taken)
    assert part.why_not("a") == ("" if taken == 1e-2 else EDGE)
