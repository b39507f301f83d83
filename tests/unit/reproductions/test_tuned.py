"""Learning rates by validation."""

import math
from dataclasses import replace

import pytest

from linrnn.compare import Row, tune
from linrnn.compare.tune import with_rates
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
    monkeypatch.setattr(tune, "BEYOND", 0)
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


@pytest.mark.parametrize(
    ("best", "said", "more"),
    [
        (3e-3, "0.003", 0),
        (1e-3, "0.001", 1),
        (1e-4, "0.00011", 3),
        (1e-5, "3.7e-05, an end", 3),
        (0.1, "0.11", 3),
    ],
)
def test_rates_beyond_an_end_are_tried_with_the_first_seed(best, said, more, tmp_path, monkeypatch):
    """And trained as the others are; a row with one rate has that alone."""
    base = untuned("digits")
    runs = []

    def train(of, rows, setting):
        assert all(config.optim.lr == float(label.split()[-1]) for label, config in rows.items())
        runs.append((tuple(rows), setting.seeds))
        return trained(of, rows, setting)

    def validation(row, higher_is_better):
        return -abs(math.log(float(row.label.split()[-1]) / best))

    monkeypatch.setattr(_tuned, "train", train)
    monkeypatch.setattr(_tuned, "validation", validation)
    candidates = {"a": with_rates(base, (1e-3, 3e-3, 1e-2)), "b": with_rates(base, [0.5])}
    page = tuned("x", candidates, Setting(scale="cpu", seeds=(0, 1), out=tmp_path))
    assert [row[-1] for row in page.tried.rows] == [said, "0.5"]
    assert {len(row) for row in page.tried.rows} == {len(page.tried.head)} == {5 + more}
    assert [seeds for _, seeds in runs] == [(0,)] * (1 + more) + [(0, 1)]
    assert all(len(rows) == 1 for rows, _ in runs[1:-1])
    assert list(page.first["a"]) == sorted(page.first["a"])
    assert len(page.first["a"]) == 3 + more


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
