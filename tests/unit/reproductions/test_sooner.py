"""Who of two is sooner, on the pages of parts and of limit cycles: rows, verdicts, small runs."""

import math
from dataclasses import replace
from math import inf

import pytest

from linrnn import learn
from linrnn.compare.run_table import Run
from linrnn.compare.tune import BEYOND, safe_name
from linrnn.reproductions import Setting, fptt_adding, limit_cycle_copy
from linrnn.reproductions._page.runs import SOLVED_AT, Runs
from linrnn.reproductions._runs.sooner import Contest
from linrnn.train.model import build_model, build_task

STEPS = 1_000
CONTEST = Contest(name="task", rows={}, rates=(), goal=0.1, baseline=1.0)


def part_of(steps, losses):
    """Steps until rows solved the task, and test losses, by label and seed."""
    rows = [
        Run(
            scale="cpu", part="task", row=safe_name(label), seed=seed, steps=STEPS, metric="mse",
            measures={SOLVED_AT: at}, test_loss=losses.get(label, {}).get(seed, math.nan),
        )
        for label, several in steps.items()
        for seed, at in enumerate(several)
    ]  # fmt: skip
    return Runs(tuple(rows)).part("task")


def held(judged):
    return {line.claim: line.held for line in judged}


def test_claims_are_of_the_same_seed():
    steps = {"a": [100, inf, 300], "b": [inf, inf, 300]}
    losses = {"a": {0: 0.01, 2: 0.5}, "b": {0: 0.2, 1: 0.01, 2: 0.4}}
    part = part_of(steps, losses)
    sooner = CONTEST.sooner(part, "a", "b", "")
    assert sooner.held == (True, None, None)
    assert sooner.differences == (900, 0, 0)  # who never is takes all of the steps
    assert sooner.claim == "task: a solves it in fewer steps than b"
    assert sooner.why_not == ""
    assert CONTEST.better(part, "a", "b", "").differences == pytest.approx([1.30103, -0.09691])
    assert CONTEST.solves(part, "b", "").held == (False, True, False)
    assert CONTEST.solves(part, "b", "", claim=False).held == (True, False, True)


def test_nobody_who_solves_it_decides_nothing():
    part = part_of({"a": [inf, inf], "b": [inf, inf]}, {})
    assert "nobody learned" in CONTEST.sooner(part, "a", "b", "").why_not


def test_parts_that_are_sooner_by_batches_may_be_later_by_updates():
    fptt, bptt = fptt_adding.FPTT, fptt_adding.BPTT
    losses = {fptt: {0: 0.01, 1: 0.01}, bptt: {0: 0.02, 1: 0.2}}
    part = part_of({fptt: [50, 100], bptt: [900, 900]}, losses)
    found = held(fptt_adding.judged(CONTEST, part))
    assert found[f"task: {fptt} solves it in fewer steps than {bptt}"] == (True, True)
    assert found[f"task: {fptt} solves it in fewer updates than {bptt}"] == (True, False)
    assert found[f"task: {bptt} does not solve it"] == (False, True)
    assert len(found) == 5
    alone = fptt_adding.judged(CONTEST, part_of({bptt: [inf, 900]}, losses))
    assert held(alone) == {f"task: {bptt} does not solve it": (False, True)}


def test_rows_of_adding_differ_by_the_learner_alone():
    contest = fptt_adding.contest(100, fptt_adding.Size())
    built = {label: learn.build(c.learner, c.learner_options) for label, c in contest.rows.items()}
    assert [type(rule).__name__ for rule in built.values()] == ["BPTT", "FPTT", "FPTT"]
    first, *others = contest.rows.values()
    for other in others:
        same = replace(other, learner=first.learner, learner_options=first.learner_options)
        assert same == first
    assert build_task(first).sequence_length == 100
    assert contest.baseline == build_task(first).chance


def test_rows_of_copying_differ_by_the_start_alone():
    contest = limit_cycle_copy.contest(50, limit_cycle_copy.Size())
    task = build_task(next(iter(contest.rows.values())))
    models = [build_model(config, task).mixers[0] for config in contest.rows.values()]
    radii = [(model.A.T @ model.A).trace().item() / len(model.A) for model in models]
    assert radii == pytest.approx([1.21, 1.0, 1.0, 1.0], rel=0.1)
    assert [round(model.B.std().item(), 2) for model in models[:2]] == [0.01, 0.01]
    assert task.sequence_length == 60
    assert task.options.markers == "all"
    assert task.options.vocabulary - 2 == limit_cycle_copy.SYMBOLS


def test_limit_cycles_are_judged_by_seed():
    cycle, orthogonal = limit_cycle_copy.CYCLE, limit_cycle_copy.ORTHOGONAL
    losses = {cycle: {0: 0.01, 1: 0.3}, orthogonal: {0: 0.2, 1: 0.2}}
    part = part_of({cycle: [100, 200], orthogonal: [200, inf]}, losses)
    found = held(limit_cycle_copy.judged(CONTEST, part))
    assert found[f"task: {cycle} solves it in fewer steps than {orthogonal}"] == (True, True)
    assert found[f"task: {cycle} has a smaller loss than {orthogonal}"] == (True, False)
    assert found[f"task: {cycle} solves it"] == (True, False)
    assert len(found) == 3


def small(monkeypatch, page):
    monkeypatch.setattr(page, "BATCH", 8)
    monkeypatch.setattr(page, "PER_EPOCH", 2)
    monkeypatch.setattr(page, "WIDTH", 4)


def whole(found, rows, rates):
    results, tried = found.tables
    assert [row[0] for row in results.rows] == rows
    assert all(row[1].count(",") == row[2].count(",") == 1 for row in results.rows)
    assert {row[5] for row in results.rows} == {"2"}
    assert all(len(row) == len(tried.head) for row in tried.rows)
    assert rates <= len(tried.head) - 2 <= rates + BEYOND * (rates > 1)
    assert all(len(line.held) == 2 for line in found.verdicts)
    assert len(found.figures) == 1
    assert len({run.key for run in found.runs.rows}) == len(found.runs.rows)
    assert all(SOLVED_AT in run.measures for run in found.runs.rows)


def test_a_small_run_of_parts_leaves_the_whole_page(trained, tmp_path, monkeypatch):
    small(monkeypatch, fptt_adding)
    size = fptt_adding.Size(lengths={12: tuple(fptt_adding.ROWS)}, epochs=1, rates=(0.1, 0.01))
    setting = Setting(scale="cpu", seeds=(0, 1), out=tmp_path)
    found = fptt_adding.FPTTAdding(size).run(setting)
    whole(found, list(fptt_adding.ROWS), 2)
    assert trained[0] == "length-12/bptt_at_0.1-seed0"
    assert len(found.verdicts) == 7
    n_rows, n_runs = len(fptt_adding.ROWS), len(trained)
    # two rates of each row, the second seed at one, and further rates: of two, one is an end
    assert 4 * n_rows <= n_runs == len(set(trained)) <= (3 + BEYOND) * n_rows
    assert fptt_adding.FPTTAdding(size).run(setting).tables == found.tables
    assert len(trained) == n_runs


def test_a_small_run_of_starts_leaves_the_whole_page(trained, tmp_path, monkeypatch):
    small(monkeypatch, limit_cycle_copy)
    size = limit_cycle_copy.Size(delays=(3,), epochs=1, rates=(0.01,))
    found = limit_cycle_copy.LimitCycleCopy(size).run(
        Setting(scale="cpu", seeds=(0, 1), out=tmp_path)
    )
    whole(found, list(limit_cycle_copy.STARTS), 1)
    assert len(found.verdicts) == 7
    assert len(trained) == 8
