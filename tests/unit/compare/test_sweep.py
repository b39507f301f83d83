"""Sweeps and searches of learning rates: what is tried, what is taken, runs that go on."""

import csv
import dataclasses
import io
import json
import math

import pytest

from linrnn import recipes, tasks
from linrnn.cli.sweep import parse_over
from linrnn.compare import Entry, Row, Setting, compare, sweep
from linrnn.compare._runs import seconds_left
from linrnn.compare._sweep import combinations, named, with_options
from linrnn.compare._sweep_report import _csv, _panels, best, markdown, ranked
from linrnn.compare._tune import at_rates, best_rates, check_factors
from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.train import ModelConfig, TrainConfig
from linrnn.train._drawn import drawn


def tiny():
    return dataclasses.replace(
        recipes.load("digits").config,
        mixer_options={},
        model=ModelConfig(d_model=4, n_layers=1),
        train=TrainConfig(epochs=1, batch_size=512, threads=1),
    )


def test_a_grid_has_every_combination_and_draws_are_among_them():
    over = {"a": [1, 2, 3], "b": [True, False]}
    every = combinations(over, None)
    assert len(every) == 6
    assert combinations(over, 4)[:2] == combinations(over, 2)
    assert all(one in every for one in combinations(over, 4))
    assert len({str(one) for one in combinations(over, 6)}) == 6


@pytest.mark.parametrize("over", [{}, {"a": []}, {"a": [1, 1]}, {"a": range(200), "b": range(200)}])
def test_nothing_to_sweep_is_an_error(over):
    with pytest.raises(ArgumentError, match="sweep"):
        combinations(over, None)


def test_options_of_every_part_are_changed():
    values = {"optim.lr": 0.5, "mixer.d_state": 3, "task.shift": 0, "model.n-layers": 2}
    config = with_options(tiny(), values)
    assert (config.optim.lr, config.mixer_options, config.task_options.shift) == (
        0.5,
        {"d_state": 3},
        0,
    )
    assert config.model.n_layers == 2
    assert with_options(config, {"mixer": "slru"}).mixer_options == {}
    for name in ("optim.lrr", "nothing", "nothing.x"):
        with pytest.raises(UnknownNameError):
            with_options(config, {name: 1})


def test_values_are_read_as_python_writes_them():
    assert parse_over("model.skip=true,False") == ("model.skip", [True, False])
    assert parse_over("MIXER=lru,slru") == ("mixer", ["lru", "slru"])
    for text in ("optim.lr", "optim.lr=", "=3", "a=1,,2"):
        with pytest.raises(ArgumentError, match="such as optim"):
            parse_over(text)


def test_the_best_rate_is_that_of_the_metric():
    candidates = {"a": at_rates(tiny(), (0.5, 2.0))}
    low, high = candidates["a"]
    assert high == pytest.approx(4 * low)
    assert candidates["a"][high].optim.lr == high
    found = {f"a at {low:g}": 0.2, f"a at {high:g}": 0.7}
    assert best_rates(candidates, found, True) == {"a": high}
    assert best_rates(candidates, found, False) == {"a": low}
    for factors in ((0.0,), (1.0, 1.0), (float("inf"),)):
        with pytest.raises(ArgumentError, match="factors"):
            check_factors(factors)


def test_what_is_left_goes_by_runs_of_the_entry(tmp_path):
    jobs = [(Entry(label=name, config=tiny()), 0) for name in "abc"]
    assert seconds_left(jobs, {"a": [10.0, 20.0], "b": [40.0]}, tmp_path) == pytest.approx(
        15.0 + 40.0 + 70.0 / 3
    )


def setting(validation, test, failed=0, **values):
    row = Row(
        label=named(values),
        metric="accuracy",
        values=test,
        failures=("it broke",) * failed,
        n_parameters=1,
        n_state=1,
        seconds_per_step=0.1,
        memory=None,
        folders=(),
        validation=validation,
    )
    return Setting(values=values, row=row)


def test_settings_are_chosen_by_validation_data_and_not_by_test_data():
    digits = tasks.load("digits")(tasks.load("digits").Options())
    found = [
        setting((0.5, 0.7), (0.9, 0.9), lr=1),
        setting((0.8, 0.8), (0.1, 0.3), lr=2),
        setting((), (), failed=2, lr=3),
        setting((0.99,), (0.99,), failed=1, lr=4),
        setting((math.nan, 0.9), (math.nan, 0.9), lr=5),
    ]
    assert [one.values["lr"] for one in ranked(found, digits)] == [2, 1, 4, 5, 3]
    assert best(found, digits) is found[1]
    assert best(found[2:3], digits) is None
    lines = markdown(found, digits)
    assert "validation accuracy (%) (mean ± s.e.) | test accuracy (%) (mean ± s.e.)" in lines[0]
    assert lines[2].startswith("| 2 | 80 ± 0 | 20 ± 10 | 2 |")
    assert lines[4].startswith("| 4 | 99 | 99 | 1, 1 failed |")
    assert lines[6].startswith("| 3 | - | failed | 0, 2 failed |")
    assert "best on validation data: lr=2" in lines
    assert "best on validation data: none finished" in markdown(found[2:3], digits)
    rows = list(csv.DictReader(io.StringIO(_csv(found))))
    assert [row["mean"] for row in rows[:2]] == ["0.9", "0.2"]
    assert [row["validation_mean"] for row in rows[:2]] == ["0.6", "0.8"]
    assert rows[0]["validation"] == "0.5 0.7"


def test_of_an_error_the_smallest_on_validation_data_is_best():
    delay = tasks.load("delay")(tasks.load("delay").Options())
    assert not delay.higher_is_better
    found = [setting((0.5,), (0.1,), lr=1), setting((0.2,), (0.9,), lr=2)]
    assert [one.values["lr"] for one in ranked(found, delay)] == [2, 1]


def test_the_plot_is_of_validation_data_with_test_data_beside_it():
    digits = tasks.load("digits")(tasks.load("digits").Options())
    found = [setting((0.5, 0.7), (0.9, 0.9), lr=1), setting((0.8, 0.8), (0.1, 0.3), lr=2)]
    figure = _panels(found, digits)
    assert figure.axes[0].get_ylabel() == "validation accuracy (%)"
    rows = list(csv.DictReader(io.StringIO(drawn(figure).decode())))
    points = [row for row in rows if row["x"] and row["y"]]
    shown = [row["y"] for row in points if not row["series"].endswith("test")]
    beside = [row["y"] for row in points if row["series"].endswith("test")]
    assert (shown, beside) == (["60", "80"], ["90", "20"])


@pytest.mark.slow
def test_a_sweep_writes_its_table_and_goes_on(tmp_path):
    over = {"optim.lr": [0.001, 0.1]}
    said = []
    first = sweep(tiny(), over, out=tmp_path, say=said.append)
    assert "left" in said[0]
    names = ("sweep.md", "sweep.csv", "sweep.png", "sweep.svg")
    assert all((tmp_path / name).stat().st_size for name in names)
    stamps = [p.stat().st_mtime_ns for p in sorted(tmp_path.glob("*/result.json"))]
    again = sweep(tiny(), over, out=tmp_path)
    assert [p.stat().st_mtime_ns for p in sorted(tmp_path.glob("*/result.json"))] == stamps
    assert [one.row.values for one in first] == [one.row.values for one in again]
    for one in again:
        result = json.loads((one.row.folders[0] / "result.json").read_text())
        assert one.row.validation == (result["validation_metric"],)
        assert one.row.values == (result["test_metric"],)
    assert isinstance(first[0].row, Row)


@pytest.mark.slow
def test_a_comparison_that_tunes_counts_its_budget(tmp_path):
    rows = compare(
        [Entry(label="a", config=tiny())], seeds=(0,), out=tmp_path, tune=(0.1, 1.0), whose="x"
    )
    page = (tmp_path / "compare.md").read_text()
    assert "2 runs, " in page
    assert "**" in page
    assert f"{rows[0].lr:g}" in page
    assert (tmp_path / "tuning.csv").read_text().count("\n") == 3
