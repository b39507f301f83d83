"""Races of recurrent cells: who is there first, and the verdicts."""

import importlib
from dataclasses import replace
from math import inf

import pytest

from linrnn.reproductions import Setting, cells_adding, cells_copy, cells_digits, cells_gaps
from linrnn.reproductions._page.verdict import UNLEARNED
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


def race(**said):
    models = {label: cells_adding.MODELS[label] for label in said}
    said = {label: _cells.Said("x", claim) for label, claim in said.items()}
    base = cells_adding.config()
    return _cells.Race(name="a", base=base, models=models, said=said, goal=0.1, baseline=1.0)


@pytest.mark.parametrize(
    ("own", "rival", "held", "why"),
    [
        ([200, 400, 600], [inf, 600, 800], (True, True, True), ""),
        ([inf, 400, 900], [inf, 400, 800], (None, None, False), ""),
        ([200, inf, 600], [inf, inf, inf], (True, None, True), ""),
        ([inf, inf], [inf, inf], (None, None), UNLEARNED),
    ],
)
def test_who_is_later_than_the_lstm_is_not_before_it(made_runs, own, rival, held, why):
    arrived = {"LEM": dict(enumerate(own)), _cells.RIVAL: dict(enumerate(rival))}
    runs = made_runs("a", arrived, "mse", _cells.SOLVED_AT)
    (found,) = race(LEM=_cells.BEFORE, LSTM=None).claims(runs)
    assert found.claim == "LEM solves it before the LSTM"
    assert (found.held, found.why_not, found.unit) == (held, why, "steps")
    assert found.differences[0] == min(rival[0], 1_000) - min(own[0], 1_000)


def test_solving_is_a_distance_from_the_goal(made_runs):
    runs = made_runs("a", {"LSTM": {0: 0.5}, "LEM": {0: 0.5, 1: 0.5}}, "mse", test_loss=1.0)
    fails, solves = race(LSTM=_cells.FAILS, LEM=_cells.SOLVES).claims(runs)
    assert (fails.claim, fails.held) == ("LSTM does not solve it", (True,))
    assert fails.differences == pytest.approx((1.0,))  # ten times the goal
    assert (solves.held, solves.why_not) == ((False, False), UNLEARNED)
    runs = made_runs("a", {"LEM": {0: 0.5}}, "mse", validation=0.01)  # its test was not kept
    (solves,) = race(LEM=_cells.SOLVES).claims(runs)
    assert (solves.held, solves.why_not) == ((True,), "")


@pytest.mark.parametrize("entry", [cells_adding.CellsAdding, cells_copy.CellsCopy])
def test_nothing_is_judged_that_nobody_said(made_runs, entry):
    module = importlib.import_module(entry.__module__)
    (name,) = {"adding", "copy"} & {entry.__name__.removeprefix("Cells").lower()}
    runs = made_runs(name, {label: {0: 0.5} for label in module.MODELS}, "mse", test_loss=1.0)
    found = entry().claims(runs, "cpu")
    judged = {claim.claim.split(" solves")[0].split(" does")[0] for claim in found}
    silent = {label for label, said in module.SAID.items() if said == _cells.NOT_PUBLISHED}
    assert silent
    assert judged
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


def test_times_help_where_every_seed_says_so(made_runs):
    errors = {
        "CfC, times": {0: 0.1, 1: 0.2},
        "CfC, no times": {0: 0.3, 1: 0.3},
        "LSTM, times": {0: 0.05, 1: 0.3},
        "LSTM, no times": {0: 0.01, 1: 0.2},
    }
    runs = made_runs("gaps", errors, "mse")
    found = cells_gaps.CellsGaps(["CfC", "LSTM"]).claims(runs, "cpu")
    assert [judged.held for judged in found] == [
        *((True, True), (False, False), (False, True)),
    ]


def test_more_accurate_than_the_lstm_is_said_of_the_same_seeds(made_runs):
    accuracies = {
        "LEM": {0: 0.9, 1: 0.8, 2: 0.1},
        "coRNN": {0: 0.9, 1: 0.6},
        "LSTM": {0: 0.85, 1: 0.7},
    }
    found = cells_digits.CellsDigits().claims(made_runs("permuted digits", accuracies), "cpu")
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
