"""Reproductions that train: rows, printed numbers, what was changed, failures, going on."""

import math
from dataclasses import replace

import pytest

from linrnn import recipes
from linrnn.compare import Row
from linrnn.compare.run_table import Run
from linrnn.recipes import LRU_TABLE
from linrnn.reproductions import Setting, lru_appendix_e2, lru_table_1, lru_table_5, lru_table_8
from linrnn.reproductions import minrnn_table_1 as depths
from linrnn.reproductions import minrnn_table_2 as kinds
from linrnn.reproductions._page.beside import comparable, findings, rank_correlation, table
from linrnn.reproductions._page.quoted import FAILS, Quoted
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._runs import lru_columns as lru
from linrnn.reproductions._runs import selective_copying as copying
from linrnn.reproductions._runs.trained import Column, Outcome, changes, train, with_mixer
from linrnn.reproductions.lru_appendix_e2 import LRUAppendixE2, Size
from linrnn.tasks.scifar import SCIFAROptions
from linrnn.tasks.selective_copy import SelectiveCopyOptions
from linrnn.train import ModelConfig, TrainConfig
from linrnn.train.model import build_model, build_task


def tiny(config, **task_options):
    """A configuration that trains in a second."""
    return replace(
        config,
        task_options=replace(config.task_options, **task_options),
        mixer_options={k: 4 for k in config.mixer_options if k == "d_state"},
        model=replace(config.model, d_model=4, n_layers=1),
        train=TrainConfig(epochs=1, batch_size=32, threads=1),
    )


def short_listops():
    column = lru.published("listops")
    sizes = {"train_size": 64, "validation_size": 16, "test_size": 16}
    return replace(column, config=tiny(column.config, min_length=4, max_length=20, **sizes))


def short_copying(mixer="mingru"):
    column = copying.column("paper")
    sizes = {"train_size": 64, "validation_size": 16, "test_size": 16}
    config = tiny(column.config, length=16, n_tokens=2, **sizes)
    return replace(column, config=with_mixer(config, mixer))


def setting(out, seeds=(0,)):
    said = []
    return Setting(scale="cpu", seeds=seeds, out=out, say=said.append), said


def cells(table, heading):
    column = next(i for i, head in enumerate(table.head) if head.startswith(heading))
    return {row[0]: row[column] for row in table.rows}


def outcome(means, errors=0.0, column=None, labels=None):
    """An outcome as if it had been trained, with two seeds about each mean."""
    rows = [
        Row(
            label=label,
            metric="accuracy",
            values=(mean - errors, mean + errors),
            failures=(),
            n_parameters=1,
            n_state=1,
            seconds_per_step=1.0,
            memory=None,
            folders=(),
        )
        for label, mean in means.items()
    ]
    column = column or lru.published("listops")
    labels = tuple(labels or means)
    return Outcome(column=column, task=build_task(column.config), labels=labels, rows=tuple(rows))


def test_printed_numbers_are_those_of_the_papers():
    assert lru_table_1.PRINTED["ListOps"]["ReLU"] == Quoted(37.6, 8.0)
    assert lru_table_1.PRINTED["Text"]["linear"] == Quoted(89.1, 0.1)
    assert lru_table_1.PRINTED["PathX"]["linear"] is FAILS
    assert lru_table_8.PRINTED["Pathfinder"]["Λ exponential"] == Quoted(65.4, 9.0)
    assert lru_table_8.PRINTED["PathX"][lru_table_8.LAST] == Quoted(94.2, 0.4)
    assert lru_table_5.PRINTED["no stability, ring [0.9, 0.99]"] == Quoted(81.9, 3.8)
    assert lru_table_5.PRINTED["stable + γ, ring [0.5, 0.999]"] == Quoted(88.6, 0.0)
    assert depths.PRINTED["minGRU, 2 layers"] == Quoted(96.8, 3.2)
    assert kinds.PRINTED["H3"].value == 57.0


def test_printed_tables_hold_the_same_numbers():
    rows = {row[0]: list(row[1:]) for row in lru_table_8.LRUTable8.published[0].rows}
    assert rows["+ ring"][:2] == ["88.1 ± 0.0", "59.4 ± 0.3"]
    assert rows["S4D, reproduced"][-1] == "97.5 ± 0.0"
    assert lru_table_5.LRUTable5.published[0].rows[1][3] == "81.9 ± 3.8"
    assert lru_table_1.LRUTable1.published[0].rows[0] == [
        *("ReLU", "69.7 ± 0.2", "37.6 ± 8.0", "88.0 ± 0.1", "88.5 ± 0.1", "✗", "✗"),
    ]


@pytest.mark.parametrize("task", lru.NAMES)
def test_published_columns_are_the_published_experiment(task):
    column = lru.published(task)
    made = outcome({}, column=column, labels=["a"])
    assert changes(made) is None
    config = column.config
    size = len(build_task(config).datasets().train) if task == "listops" else None
    if size:
        steps = config.train.epochs * math.ceil(size / config.train.batch_size)
        assert steps == pytest.approx(column.steps, rel=0.02)
    rows = lru_table_8.configurations(column)
    assert len(rows) == 6
    assert {row.mixer_options["d_state"] for row in rows.values()} == {LRU_TABLE[task].d_state}


def test_every_row_at_the_scale_cpu_is_a_model():
    found = [lru.small("scifar", lru_table_5.CPU)]
    found += [lru.small(t, s) for m in (lru_table_1, lru_table_8) for t, s in m.CPU.items()]
    rows = [*kinds.models("cpu").values(), copying.column("cpu").config]
    rows += [with_mixer(c.config, "linear_rnn") for c in found]
    rows += [row for c in found for row in lru_table_8.configurations(c).values()]
    for config in rows:
        small = replace(config, model=replace(config.model, d_model=4, n_layers=1))
        assert build_model(small, build_task(config))
        assert config.train.threads == 1


def test_what_was_changed_is_listed_by_itself():
    column = lru.small("scifar", replace(lru_table_5.CPU, d_model=7))
    listed = changes(outcome({"a": 0.5}, column=column))
    rows = {row[0]: row[1:] for row in listed.rows}
    assert rows["model.d_model"] == ["512", "7"]
    assert rows["task.train_images"] == ["0", "9,000"]
    assert "optim.weight_decay" not in rows
    assert not any(name.startswith("train.threads") for name in rows)


def test_conclusions_follow_from_what_was_changed():
    assert "ListOps: the numbers, within" in comparable([outcome({"a": 0.5})])
    scaled = outcome({"a": 0.5}, column=lru.small("scifar", lru_table_5.CPU))
    text = comparable([scaled])
    assert "sCIFAR: the order of the rows, and nothing else" in text
    assert "the numbers, within" not in text
    assert "PathX" not in text
    assert "ListOps: nothing" in comparable([outcome({}, labels=["a"])])


def test_orders_are_compared():
    printed = {"a": Quoted(50.0, 1.0), "b": Quoted(70.0, 1.0), "c": FAILS}
    found = findings([outcome({"a": 0.3, "b": 0.2, "c": 0.9})], {"ListOps": printed})
    said = (
        "ListOps: best first: published b > a (> where no errors overlap); "
        "ours a, b (> where better with every seed)."
    )
    assert said in found.notes
    assert found.complete
    tied = findings([outcome({"a": 0.3, "b": 0.3})], {"ListOps": printed})
    assert any("ours a, b (" in note for note in tied.notes)
    many = {str(i): Quoted(float(i)) for i in range(12)}
    found = findings([outcome({str(i): i / 100 for i in range(12)})], {"ListOps": many})
    assert any("rank correlation of the 12 published means and ours 1.00" in n for n in found.notes)
    assert math.isnan(rank_correlation([1, 1], [1, 2]))


def test_dense_recurrences_are_trained_once(runs_here, tmp_path):
    where, said = setting(tmp_path)
    what = lru_table_1.LRUTable1([short_listops()])
    found = what.run(where)
    first = found.tables[0]
    assert [row[0] for row in first.rows] == ["ReLU", "tanh", "linear"]
    assert cells(first, "published")["tanh"] == "43.9 ± 0.1"
    assert all(0 <= float(v) <= 100 for v in cells(first, "ours").values())
    assert set(cells(first, "steps").values()) == {"2"}
    assert cells(found.tables[1], "ours")["optimiser steps"] == "2"
    assert "their order may be chance" in found.comparable
    assert len(runs_here) == 3
    assert said[-1].startswith("ListOps 3/3: linear seed 0: test accuracy")
    assert what.run(where).tables == found.tables
    assert len(runs_here) == 3
    assert set(found.figures) == {"listops"}


def test_a_row_that_fails_says_so(runs_here, tmp_path):
    good, bad = short_copying().config, replace(short_copying().config, mixer_options={})
    bad = replace(bad, mixer_options={"expansion": -1.0})
    column = short_copying()
    what = kinds.MinRNNTable2(column, {"minLSTM": bad, "minGRU": good})
    found = what.run(setting(tmp_path)[0])
    assert cells(found.tables[0], "ours")["minLSTM"] == "failed"
    assert cells(found.tables[0], "seeds") == {"minLSTM": "0, 1 failed", "minGRU": "1"}
    assert any("minLSTM failed: " in note and "expansion" in note for note in found.notes)
    assert len(found.figures["selective-copying"].axes) == 2


def test_missing_data_leaves_rows_that_were_not_run(runs_here, tmp_path):
    column = lru.small("scifar", replace(lru_table_5.CPU, task_options=SCIFAROptions(data="none")))
    where, said = setting(tmp_path)
    found = lru_table_5.LRUTable5(column, rings=[(0.0, 0.9)]).run(where)
    assert not runs_here
    assert set(cells(found.tables[0], "ours").values()) == {"not run"}
    assert cells(found.tables[0], "published")["stable, ring [0, 0.9]"] == "86.2 ± 0.2"
    assert found.comparable == "sCIFAR: nothing, since no run finished."
    assert "scifar: the data file" in said[0]
    assert not found.complete
    assert not list(tmp_path.iterdir())


def test_depths_are_drawn(runs_here, tmp_path, monkeypatch):
    monkeypatch.setattr(depths, "MIXERS", {"minGRU": "mingru"})
    found = depths.MinRNNTable1(short_copying(), layers=(1, 2)).run(setting(tmp_path)[0])
    assert [row[0] for row in found.tables[0].rows] == ["minGRU, 1 layer", "minGRU, 2 layers"]
    one, two = (
        int(cells(found.tables[0], "parameters")[f"minGRU, {n}"].replace(",", ""))
        for n in ("1 layer", "2 layers")
    )
    assert two > one
    assert found.figures["depth"].axes[0].get_xlabel() == "depth (layers)"


def test_speed_of_learning_is_counted_in_steps(runs_here, tmp_path):
    size = Size(d_state=4, steps=4, lrs=(1e-3,), reached=1e9)
    found = LRUAppendixE2(size).run(setting(tmp_path)[0])
    speed = found.tables[0]
    assert [row[0] for row in speed.rows] == [
        *("linear at 0.001", "tanh at 0.001"),
    ]
    assert set(cells(speed, "steps to").values()) == {"1"}
    assert "which of the two learns faster" in found.comparable
    assert found.figures["curves"].axes[0].get_yscale() == "log"
    assert len(found.tables) == 2
    never = LRUAppendixE2(replace(size, reached=1e-9)).run(setting(tmp_path)[0])
    assert set(cells(never.tables[0], "steps to").values()) == {"never"}
    assert len(runs_here) == 2


def test_faster_is_the_lower_mean_decade_each_at_its_best_rate():
    def run(row, lr, seed, validation, decade):
        measures = {lru_appendix_e2.SPEED: decade}
        return Run(
            scale="cpu", part="convolution", row=row, lr=lr, seed=seed, metric="mse",
            validation=validation, measures=measures,
        )  # fmt: skip

    better = [run("linear", 0.1, n, 0.2, -1.0 - 0.1 * n) for n in range(5)]
    worse = [run("linear", lr, 0, 0.4, -9.0) for lr in (0.01, 1.0)]  # lower, but not chosen
    other = [run("tanh", lr, 0, v, -0.5) for lr, v in ((0.01, 0.3), (0.1, 0.1), (1.0, 0.3))]
    other += [run("tanh", 0.1, n, 0.1, -0.5) for n in range(1, 5)]
    (judged,) = LRUAppendixE2().claims(Runs((*better, *worse, *other)), "cpu")
    assert judged.differences == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9])
    assert (judged.scale, judged.why_not) == ("", "")


def test_published_sizes_of_selective_copying():
    assert changes(outcome({"a": 0.1}, column=copying.column("paper"))) is None
    rows = kinds.models("paper")
    assert {k: c.model.n_layers for k, c in rows.items()} == {
        **dict.fromkeys(["S4, no gate", "LRU", "H3", "Mamba"], 2),
        **dict.fromkeys(["minGRU", "minLSTM"], 3),
    }
    for config in rows.values():
        assert config.task_options == SelectiveCopyOptions(train_size=2_560_000)
        assert config.train.epochs * 2_560_000 // config.train.batch_size == copying.STEPS


def test_selective_copying_is_scaled_down_alike_for_all():
    small, recipe = kinds.models("cpu"), recipes.load("selective_copy", "cpu").config
    assert small["minGRU"] == recipe
    assert {c.model.n_layers for k, c in small.items() if not k.startswith("min")} == {2}
    for config in small.values():
        assert config.task_options == recipe.task_options
        assert (config.optim, config.train) == (recipe.optim, recipe.train)


def test_column_of_another_mixer_keeps_the_state_size_alone():
    config = replace(recipes.load("digits").config, mixer_options={"d_state": 5, "r_min": 0.5})
    assert with_mixer(config, "tanh_rnn").mixer_options == {"d_state": 5}
    assert with_mixer(config, "lru", {"r_max": 0.9}).mixer_options == {"d_state": 5, "r_max": 0.9}


@pytest.mark.slow
def test_runs_in_processes_of_their_own(tmp_path):
    column = Column(
        name="a task",
        config=short_listops().config,
        paper=short_listops().config,
        steps=2,
    )
    rows = {
        "x": replace(with_mixer(column.config, "lru"), model=ModelConfig(d_model=4, n_layers=1))
    }
    found = train(column, rows, setting(tmp_path, seeds=(0, 1))[0])
    assert cells(table(found, {}), "seeds") == {"x": "2"}
    assert "±" in cells(table(found, {}), "ours")["x"]
    assert "may be chance" not in comparable([found])
    assert (tmp_path / "runs" / "a-task" / "compare.md").is_file()
