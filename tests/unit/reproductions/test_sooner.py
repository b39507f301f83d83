"""Who of two is sooner, on the pages of parts and of limit cycles: rows, verdicts, small runs."""

from dataclasses import replace
from math import inf

import pytest

from linrnn import learn
from linrnn.reproductions import Setting, fptt_adding, limit_cycle_copy
from linrnn.reproductions._runs.sooner import Contest, Result
from linrnn.train.model import build_model, build_task


class Said(Result):
    """What rows are told to have come to: steps and losses by label."""

    def __init__(self, steps, losses):
        contest = Contest(name="task", rows={}, rates=(), goal=0.1, baseline=1.0)
        for name, value in (("contest", contest), ("steps", steps), ("found", losses)):
            object.__setattr__(self, name, value)

    @property
    def rows(self):
        return self.steps

    def arrived(self, label):
        return dict(enumerate(self.steps[label]))

    def losses(self, label):
        return self.found[label]


def held(judged):
    return {line.claim: line.held for line in judged}


def test_claims_are_of_the_same_seed():
    result = Said({"a": [100, inf, 300], "b": [inf, inf, 300]}, {"a": {0: 0.1, 2: 0.5}, "b":
        {0: 0.2, 1: 0.1, 2: 0.4}})  # fmt: skip
    assert result.sooner("a", "b", "").held == (True, None, None)
    assert result.better("a", "b", "").held == (True, False)
    assert result.solves("b", "").held == (False, False, True)
    assert result.solves("b", "", claim=False).held == (True, True, False)
    assert result.sooner("a", "b", "").claim == "task: a solves it in fewer steps than b"


def test_parts_that_are_sooner_by_batches_may_be_later_by_updates():
    fptt, bptt = fptt_adding.FPTT, fptt_adding.BPTT
    losses = {fptt: {0: 0.1, 1: 0.1}, bptt: {0: 0.2, 1: 0.2}}
    found = held(fptt_adding.judged(Said({fptt: [100, 100], bptt: [1200, 900]}, losses)))
    assert found[f"task: {fptt} solves it in fewer steps than {bptt}"] == (True, True)
    assert found[f"task: {fptt} solves it in fewer updates than {bptt}"] == (True, False)
    assert found[f"task: {bptt} does not solve it"] == (False, False)
    assert len(found) == 5
    alone = fptt_adding.judged(Said({bptt: [inf, 900]}, {}))
    assert held(alone) == {f"task: {bptt} does not solve it": (True, False)}


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
    cycle, orthogonal = "limit cycle", "orthogonal"
    losses = {cycle: {0: 0.1, 1: 0.3}, orthogonal: {0: 0.2, 1: 0.2}}
    found = held(limit_cycle_copy.judged(Said({cycle: [100, 200], orthogonal: [200, inf]}, losses)))
    assert found[f"task: {cycle} solves it in fewer steps than {orthogonal}"] == (True, True)
    assert found[f"task: {cycle} has a smaller loss than {orthogonal}"] == (True, False)
    assert found[f"task: {cycle} solves it"] == (True, True)
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
    assert all(len(row) == len(tried.head) == rates + 2 for row in tried.rows)
    assert all(len(line.held) == 2 for line in found.verdicts)
    assert len(found.figures) == 1


def test_a_small_run_of_parts_leaves_the_whole_page(trained, tmp_path, monkeypatch):
    small(monkeypatch, fptt_adding)
    size = fptt_adding.Size(lengths={12: tuple(fptt_adding.ROWS)}, epochs=1, rates=(0.1, 0.01))
    setting = Setting(scale="cpu", seeds=(0, 1), out=tmp_path)
    found = fptt_adding.FPTTAdding(size).run(setting)
    whole(found, list(fptt_adding.ROWS), 2)
    assert trained[0] == "length-12/bptt_at_0.1-seed0"
    assert len(found.verdicts) == 7
    assert len(trained) == len(set(trained)) == 9
    assert fptt_adding.FPTTAdding(size).run(setting).tables == found.tables
    assert len(trained) == 9


def test_a_small_run_of_starts_leaves_the_whole_page(trained, tmp_path, monkeypatch):
    small(monkeypatch, limit_cycle_copy)
    size = limit_cycle_copy.Size(delays=(3,), epochs=1, rates=(0.01,))
    found = limit_cycle_copy.LimitCycleCopy(size).run(
        Setting(scale="cpu", seeds=(0, 1), out=tmp_path)
    )
    whole(found, list(limit_cycle_copy.STARTS), 1)
    assert len(found.verdicts) == 7
    assert len(trained) == 8
