"""Sweeps and searches of learning rates: what is tried, what is taken, runs that go on."""

import csv
import dataclasses
import io
import itertools
import json
import math
import random
import statistics

import pytest

from linrnn import recipes, tasks
from linrnn.cli._line.over import Drawn, checked_over, parse_over
from linrnn.compare import Entry, Range, Row, Setting, compare, estimate, sweep
from linrnn.compare._runs import AROUND, seconds_left
from linrnn.compare.report import tuning_table
from linrnn.compare.sweep_report import _csv, _panels, best, markdown, ranked
from linrnn.compare.sweeps import combinations, entries_of, named, with_options
from linrnn.compare.tune import (
    BEYOND,
    Search,
    at_an_end,
    best_rate,
    check_factors,
    factored,
    search_rates,
    with_rate,
)
from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.train import ModelConfig, TrainConfig
from linrnn.train.drawn import drawn


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


RANGES = {
    "optim.lr": Range(1e-4, 1e-2),
    "optim.clip": Range(0.0, 2.0),
    "mixer.d_state": Range(8, 64, whole=True),
    "learner": ["bptt", "tbptt"],
}


def test_a_range_is_drawn_from_within_its_ends_and_the_same_each_time():
    points = combinations(RANGES, 400)
    assert len({str(one) for one in points}) == 400
    assert combinations(RANGES, 7) == points[:7]
    rates = sorted(one["optim.lr"] for one in points)
    assert 1e-4 <= rates[0] < 2e-4
    assert 0.5e-2 < rates[-1] <= 1e-2
    assert rates[200] == pytest.approx(1e-3, rel=0.3)  # of logarithms; else it would be 5e-3
    assert all(rate == float(f"{rate:.4g}") for rate in rates)  # they name folders
    clips = sorted(one["optim.clip"] for one in points)
    assert 0 <= clips[0] < 0.1
    assert clips[200] == pytest.approx(1.0, abs=0.15)
    sizes = [one["mixer.d_state"] for one in points]
    assert all(type(size) is int for size in sizes)
    assert set(sizes) == set(range(8, 65))
    assert sum(one["learner"] == "bptt" for one in points) == pytest.approx(200, abs=40)


def test_numbers_that_are_drawn_are_the_same_in_every_release():
    """A sweep goes on in the folders that an earlier version named."""
    drawn_first = combinations({"optim.lr": Range(1e-4, 1e-2), "n": Range(1, 9, whole=True)}, 2)
    assert drawn_first == [{"optim.lr": 0.004885, "n": 7}, {"optim.lr": 0.0006937, "n": 3}]


def test_integers_may_be_drawn_to_the_last_and_in_logarithms():
    assert sorted(one["n"] for one in combinations({"n": Range(1, 5, whole=True)}, 50)) == [
        *range(1, 6)
    ]
    source = random.Random(1)
    wide = [Range(1, 1000, whole=True).draw(source) for _ in range(1000)]
    assert (min(wide), statistics.median(wide)) == (1, pytest.approx(31, rel=0.3))
    narrow = [Range(0.1, 0.1001).draw(source) for _ in range(100)]
    assert len(set(narrow)) > 90
    assert 0.1 <= min(narrow) < max(narrow) <= 0.1001


@pytest.mark.parametrize("ends", [(1, 1), (2, 1), (0, math.inf), (math.nan, 1), (True, 3)])
def test_a_range_goes_up(ends):
    with pytest.raises(ArgumentError, match="a range must go from one of two finite numbers"):
        Range(*ends)
    with pytest.raises(ArgumentError, match="two integers"):
        Range(1.0, 3, whole=True)


@pytest.mark.unchecked
def test_a_range_needs_draws_and_ends_that_the_option_takes():
    with pytest.raises(ArgumentError, match=r"draws must say .* the range of optim.lr, got None"):
        combinations({"optim.lr": Range(1e-4, 1e-2)}, None)
    for name, one in (("optim.lr", Range(-1e-9, 1)), ("task.shift", Range(0.5, 3.0))):
        with pytest.raises(ArgumentError, match=name.split(".")[1]):
            entries_of(tiny(), {name: one}, 1)
    with pytest.raises(ArgumentError, match="window"):
        entries_of(tiny(), {"learner": ["tbptt"], "learner.window": [4, 0]}, None)


def test_a_learner_is_swept_as_a_mixer_is():
    config = dataclasses.replace(tiny(), learner="tbptt", learner_options={"window": 3})
    assert with_options(config, {"learner": "tbptt"}).learner_options == {"window": 3}
    other = with_options(config, {"learner": "fptt"})
    assert (other.learner, other.learner_options) == ("fptt", {})
    over = {"learner": ["tbptt", "local_representation_alignment"], "learner.window": [4]}
    _, entries = entries_of(config, over, None)
    assert [one.config.learner_options for one in entries] == [{"window": 4}] * 2
    assert [one.label for one in entries] == [
        "learner=tbptt learner.window=4",
        "learner=local_representation_alignment learner.window=4",
    ]


def test_what_is_drawn_from_ranges_is_drawn_as_points():
    digits = tasks.load("digits")(tasks.load("digits").Options())
    over = {"optim.lr": Range(1e-4, 1e-2), "optim.clip": Range(0.0, 1.0)}
    found = [setting((0.5,), (0.4,), **point) for point in combinations(over, 30)]
    assert [axes.get_legend() for axes in _panels(found, digits).axes] == [None, None]
    over |= {"optim.clip": [0.1, 0.2]}
    found = [setting((0.5,), (0.4,), **point) for point in combinations(over, 30)]
    left, right = _panels(found, digits).axes
    assert len(left.get_legend().get_texts()) == 2
    assert right.get_legend() is None


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
    assert parse_over("a=-1..2.5e1") == ("a", Drawn(-1, 25.0, whole=False))
    assert parse_over("a=8 .. 64") == ("a", Drawn(8, 64, whole=True))
    assert parse_over("task.data=../a..b,2..") == ("task.data", ["../a..b", "2.."])
    for text in ("optim.lr", "optim.lr=", "=3", "a=1,,2"):
        with pytest.raises(ArgumentError, match="such as optim"):
            parse_over(text)


def test_a_command_says_what_is_swept_by_the_full_names():
    texts = ["ON_NAN=STOP", "Learner=BPTT,tbptt", "train.epochs=1..9", "optim.lr=1..9"]
    over, known = checked_over("digits", texts, ["--Model.D-Model", "4"], 3)
    assert over == {
        "train.on_nan": ["stop"],
        "learner": ["bptt", "tbptt"],
        "train.epochs": Drawn(1, 9, whole=True),
        "optim.lr": Drawn(1, 9, whole=False),
    }
    assert known == ["--model.d-model", "4"]


def test_the_best_rate_is_that_of_the_metric():
    low, high = factored(tiny(), (0.5, 2.0))
    assert high == pytest.approx(4 * low)
    assert with_rate(tiny(), high).optim.lr == high
    assert best_rate({low: 0.2, high: 0.7}, higher_is_better=True) == high
    assert best_rate({low: 0.2, high: 0.7}, higher_is_better=False) == low
    for factors in ((0.0,), (1.0, 1.0), (float("inf"),)):
        with pytest.raises(ArgumentError, match="factors"):
            check_factors(factors)


def test_of_rates_with_one_metric_one_that_is_no_end_is_taken():
    """At an end a better rate may lie beyond, and where all rates solve a task none does."""
    rates = low, middle, _ = factored(tiny(), (0.3, 1.0, 3.0))
    for metrics, taken in (((1, 1, 1), middle), ((1, 0, 1), low), ((0, 1, 1), middle)):
        scores = dict(zip(rates, map(float, metrics), strict=True))
        assert best_rate(scores, higher_is_better=True) == taken
        fallen = {rate: -metric for rate, metric in scores.items()}
        assert best_rate(fallen, higher_is_better=False) == taken


FEW = (0.001, 0.003, 0.01)


@pytest.mark.parametrize("higher_is_better", [True, False])
@pytest.mark.parametrize("optimum", [1e-6, 4e-5, 4e-4, 2e-3, 0.02, 0.3, 50.0])
def test_a_search_goes_on_beyond_an_end_that_is_the_best(optimum, higher_is_better):
    """Until the best lies between others, or three more have been tried; no rate is tried twice."""
    sign, trained = 1 if higher_is_better else -1, []

    def score(rates):
        trained.extend((label, rate) for label, of_row in rates.items() for rate in of_row)
        best = {"a": optimum, "b": 0.003, "one": 1.0}
        return {
            label: {rate: -sign * abs(math.log(rate / best[label])) for rate in of_row}
            for label, of_row in rates.items()
        }

    scores = search_rates({"a": FEW, "b": FEW, "one": FEW[:1]}, score, higher_is_better)
    assert len(trained) == len(set(trained)) == sum(map(len, scores.values()))
    assert list(scores["a"]) == sorted(scores["a"])
    assert set(scores["a"]) >= set(FEW)
    assert tuple(scores["b"]) == FEW
    assert tuple(scores["one"]) == FEW[:1]
    best, n_rates = best_rate(scores["a"], higher_is_better), len(scores["a"])
    assert n_rates == len(FEW) + BEYOND or not at_an_end(best, scores["a"])
    reached = min(scores["a"]) <= optimum <= max(scores["a"])
    assert reached == (1e-6 < optimum < 50)
    ratios = [b / a for a, b in itertools.pairwise(scores["a"])]
    assert all(2.5 < ratio < 4 for ratio in ratios)


@pytest.mark.parametrize("failing", [(), (0.033,), (0.001, 0.003, 0.01)])
def test_a_rate_that_fails_ends_a_search(failing):
    """Larger rates are better here, until a run fails; where all do, nothing lies beyond."""

    def score(rates):
        (of_row,) = rates.values()
        return {"a": {r: -math.inf if r in failing else r for r in of_row}}

    rates = list(search_rates({"a": FEW}, score, higher_is_better=True)["a"])
    assert rates == {(): [*FEW, 0.033, 0.11, 0.37], (0.033,): [*FEW, 0.033]}.get(failing, [*FEW])


def test_lines_of_rows_with_more_rates_and_fewer_have_as_many_cells():
    tried = {"a": {0.001: 0.5, 0.003: 0.7, 0.01: 0.6}, "b": {0.001: 0.5, 0.003: 0.4}}
    entries = tuple(Entry(label=label, config=with_rate(tiny(), 0.003)) for label in tried)
    search = Search(entries=entries, tried=tried, factors=FEW, seed=0, runs=5, steps=5, seconds=1.0)
    lines = tuning_table(search, tasks.load("digits")())
    assert {line.count("|") for line in lines} == {5}
    assert "**0.003: 70**" in lines[2]
    assert "at the end of the tried range, so a better rate may exist: b" in search.words()


def test_what_is_left_goes_by_runs_of_the_entry(tmp_path):
    jobs = [(Entry(label=name, config=tiny()), 0) for name in "abc"]
    assert seconds_left(jobs, {"a": [10.0, 20.0], "b": [40.0]}, tmp_path) == pytest.approx(
        15.0 + 40.0 + 70.0 / 3
    )


def test_what_is_expected_counts_validation_and_what_surrounds_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(estimate, "_seconds_each", lambda call, seconds: 2.0)
    data = tasks.load("digits")().datasets()
    batches = sum(math.ceil(len(part) / 512) for part in (data.train, data.validation))
    entries = [Entry(label=label, config=tiny()) for label in "ab"]
    every = estimate.expected_seconds(entries, range(3), tmp_path)
    assert every == 6 * (AROUND + 2.0 * batches)


def test_the_steps_that_are_timed_are_computed(tmp_path):
    entry = Entry(label="a", config=tiny())
    assert AROUND < estimate.expected_seconds([entry], [0], tmp_path) < AROUND + 600


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


def test_learning_rates_are_on_a_log_axis_with_a_tick_each():
    digits = tasks.load("digits")(tasks.load("digits").Options())
    rates, clips = (0.001, 0.002, 0.004), (1.0, 2.0, 4.0)
    for name, scale in (("optim.lr", "log"), ("optim.clip", "linear")):
        values = rates if scale == "log" else clips
        axes = _panels([setting((0.5,), (0.4,), **{name: v}) for v in values], digits).axes[0]
        assert axes.get_xscale() == scale
    axes = _panels([setting((0.5,), (0.4,), **{"optim.lr": v}) for v in rates], digits).axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.001", "0.002", "0.004"]


@pytest.mark.slow
@pytest.mark.parametrize(("rates", "draws"), [([0.001, 0.1], None), (Range(0.001, 0.1), 2)])
def test_a_sweep_writes_its_table_and_goes_on(tmp_path, rates, draws):
    over = {"optim.lr": rates}
    said = []
    first = sweep(tiny(), over, draws=draws, out=tmp_path, say=said.append)
    assert len(first) == len(list(tmp_path.glob("*/result.json"))) == 2
    assert "left" in said[0]
    names = ("sweep.md", "sweep.csv", "runs.csv", "sweep.png", "sweep.svg")
    assert all((tmp_path / name).stat().st_size for name in names)
    stamps = [p.stat().st_mtime_ns for p in sorted(tmp_path.glob("*/result.json"))]
    again = sweep(tiny(), over, draws=draws, out=tmp_path)
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
    tried = (tmp_path / "tuning.csv").read_text().count("\n") - 1
    assert 2 < tried <= 2 + BEYOND  # one of two rates is always an end
    assert f"{tried} runs, " in page
    assert "**" in page
    assert f"{rows[0].lr:g}" in page
