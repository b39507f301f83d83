"""Races of recurrent cells: who is there first, and the verdicts."""

from dataclasses import replace
from math import inf

import pytest

from linrnn.reproductions import Setting, cells_adding, cells_copy, cells_digits, cells_gaps
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs import cells as _cells
from linrnn.train import TrainConfig
from linrnn.train.folder import RunFolder
from linrnn.train.model import build_model, build_task


def tiny(base, **options):
    sizes = {"train_size": 64, "validation_size": 16, "test_size": 16}
    return replace(
        base,
        task_options=replace(base.task_options, **sizes, **options),
        model=replace(base.model, d_model=8),
        train=TrainConfig(epochs=2, batch_size=32, threads=1),
    )


def cells(table, heading):
    column = next(i for i, head in enumerate(table.head) if head.startswith(heading))
    return {row[0]: row[column] for row in table.rows}


@pytest.mark.parametrize("entry", [cells_adding, cells_copy])
def test_every_model_of_a_race_is_one_and_the_lstm_runs(entry):
    assert _cells.RIVAL in entry.MODELS
    task = build_task(entry.config())
    for label, model in entry.MODELS.items():
        config = model.of(entry.config())
        assert build_model(config, task), label
        assert config.train.threads == 1
        assert config.optim.lr == model.lr


def test_what_a_race_is_about():
    assert build_task(cells_adding.config()).sequence_length == 2000
    copy = build_task(cells_copy.config())
    assert copy.sequence_length == 520
    assert round(cells_copy.BASELINE, 5) == 0.03999
    assert copy.options.markers == "one"


@pytest.mark.parametrize(
    ("own", "rival", "held"),
    [
        ([200, 400, 600], [inf, 600, 800], (True, True, True)),
        ([inf, 400, 900], [inf, 400, 800], (None, None, False)),
        ([200, inf, 600], [inf, inf, inf], (True, None, True)),
    ],
)
def test_who_is_later_than_the_lstm_is_not_before_it(own, rival, held):
    arrived = {"LEM": dict(enumerate(own)), _cells.RIVAL: dict(enumerate(rival))}
    said = {"LEM": _cells.Said("x", _cells.BEFORE), _cells.RIVAL: _cells.Said("y")}
    claim = "LEM solves it before the LSTM"
    assert _cells.judged(arrived, said) == [Judged(claim, "x", held)]
    said["LEM"] = _cells.Said("x", _cells.SOLVES)
    assert _cells.judged(arrived, said)[0].held == tuple(at < inf for at in own)


def test_the_lstm_is_claimed_to_fail():
    arrived = {_cells.RIVAL: {0: inf, 2: 2}}  # the run of seed 1 failed, which says nothing
    said = {_cells.RIVAL: _cells.Said("stays at the baseline", _cells.FAILS)}
    (judged,) = _cells.judged(arrived, said)
    assert judged == Judged("LSTM does not solve it", "stays at the baseline", (True, False))


@pytest.mark.parametrize("entry", [cells_adding, cells_copy])
def test_nothing_is_judged_that_nobody_said(entry):
    arrived = {label: {0: inf} for label in entry.MODELS}
    judged = {found.claim.split(" solves")[0].split(" does")[0] for found in
              _cells.judged(arrived, entry.SAID)}  # fmt: skip
    silent = {label for label, said in entry.SAID.items() if said == _cells.NOT_PUBLISHED}
    assert silent
    assert not silent & judged


@pytest.mark.parametrize("entry", [cells_adding, cells_copy])
def test_something_is_said_of_every_model(entry):
    assert set(entry.SAID) == set(entry.MODELS)


def test_a_race_is_run_and_not_run_again(trained, tmp_path):
    base = tiny(cells_adding.config(), length=8)
    what = cells_adding.CellsAdding(["LEM", "LSTM"], base)
    setting = Setting(scale="cpu", seeds=(0, 1), out=tmp_path)
    found = what.run(setting)
    assert trained == [f"adding/{m}-seed{seed}" for seed in (0, 1) for m in ("LEM", "LSTM")]
    (results,) = found.tables
    assert [judged.claim for judged in found.verdicts] == ["LEM solves it"]
    assert set(cells(results, "steps").values()) == {"4"}
    assert cells(results, "solved")["LSTM"].count(",") == 1
    assert set(found.figures) == {"curves-adding"}
    folder = tmp_path / "runs" / trained[0]
    assert [_cells.solved_at(folder, goal) for goal in (1e9, 0.0)] == [2, inf]
    assert what.run(setting).tables == found.tables
    assert len(trained) == 4


def test_a_loss_is_beside_that_of_an_answer_without_memory(trained, tmp_path):
    what = cells_copy.CellsCopy(["LSTM"], tiny(cells_copy.config(), length=4))
    results = what.run(Setting(scale="cpu", seeds=(0,), out=tmp_path)).tables[0]
    (folder,) = tmp_path.glob("runs/*/LSTM-seed0")
    loss = RunFolder(folder).read_result().test_loss / cells_copy.BASELINE
    assert float(cells(results, "test loss")["LSTM"]) == pytest.approx(loss, rel=0.01)


def test_times_help_where_every_seed_says_so():
    errors = {
        "CfC, times": {0: 0.1, 1: 0.2},
        "CfC, no times": {0: 0.3, 1: 0.3},
        "LSTM, times": {0: 0.05, 1: 0.3},
        "LSTM, no times": {0: 0.01, 1: 0.2},
    }
    assert [judged.held for judged in cells_gaps.judged(errors, ["CfC", "LSTM"])] == [
        *((True, True), (False, False), (False, True)),
    ]


def test_more_accurate_than_the_lstm_is_said_of_the_same_seeds():
    accuracies = {
        "LEM": {0: 0.9, 1: 0.8, 2: 0.1},
        "coRNN": {0: 0.9, 1: 0.6},
        "LSTM": {0: 0.85, 1: 0.7},
    }
    found = cells_digits.judged(accuracies)
    assert [judged.held for judged in found] == [(True, True), (True, False)]
    assert found[0].published == "96.6 against 95.1"


def test_layers_with_and_without_times_are_trained(trained, tmp_path):
    base = tiny(cells_gaps.config(), length=7)
    found = cells_gaps.CellsGaps(["CfC", "LSTM"], base).run(
        Setting(scale="cpu", seeds=(0,), out=tmp_path)
    )
    (results,) = found.tables
    assert len(found.verdicts) == 3
    assert set(cells(results, "seeds").values()) == {"1"}
    parameters = cells(results, "parameters")
    assert parameters["CfC, times"] == parameters["CfC, no times"]
    assert parameters["LSTM, times"] != parameters["LSTM, no times"]


def test_digits_are_permuted_and_trained(trained, tmp_path):
    base = cells_digits.config()
    assert base.task_options.order == "permuted"
    base = replace(
        base,
        model=replace(base.model, d_model=4),
        train=TrainConfig(epochs=1, batch_size=629, threads=1),
    )
    found = cells_digits.CellsDigits(["LEM", "LSTM"], base).run(
        Setting(scale="cpu", seeds=(0,), out=tmp_path)
    )
    (results,) = found.tables
    assert [judged.claim for judged in found.verdicts] == ["LEM is better than the LSTM"]
    assert set(cells(results, "steps").values()) == {"2"}
