"""Comparisons: matched sizes, runs that resume, failures that are results, files to read."""

import dataclasses
import json
import math

import pytest
import torch

from linrnn import recipes
from linrnn.cli import main
from linrnn.compare import Entry, Row, compare, match_parameters
from linrnn.compare._runs import folder_of
from linrnn.compare.match import count_parameters
from linrnn.compare.report import by_depth
from linrnn.compare.run_table import RunTable
from linrnn.errors import ArgumentError, RunFolderError
from linrnn.mixers import LRU
from linrnn.tasks.copy import CopyOptions
from linrnn.train import Config, ModelConfig, TrainConfig
from linrnn.train.folder import RunFolder
from linrnn.train.model import build_model, build_task


def tiny(mixer="lru", **train):
    config = recipes.load("digits").config
    return dataclasses.replace(
        config,
        mixer=mixer,
        mixer_options={},
        model=ModelConfig(d_model=8, n_layers=1),
        train=TrainConfig(**{"epochs": 1, "batch_size": 512, "threads": 1, **train}),
    )


@pytest.mark.parametrize("mixer", ["slru", "gru", "s4d"])
def test_widths_are_changed_until_sizes_agree(mixer):
    big = dataclasses.replace(tiny(), model=ModelConfig(d_model=64, n_layers=2))
    target = count_parameters(big)
    matched = match_parameters(dataclasses.replace(big, mixer=mixer), target)
    assert abs(count_parameters(matched) - target) <= 0.03 * target
    assert matched.model.n_layers == 2


class Looking(LRU):
    """Needs numbers to be drawn, which a layer without memory has not."""

    def reset_parameters(self):
        super().reset_parameters()
        assert torch.stack([p.isfinite().all() for p in self.parameters()]).all().item()


@pytest.mark.parametrize("mixer", ["lru", "reservoir", "s4d", f"{__name__}:Looking"])
def test_parameters_are_counted_without_being_drawn(mixer):
    config = tiny(mixer)
    model = build_model(config, build_task(config))
    learn = [p for p in model.parameters() if p.requires_grad]
    assert count_parameters(config) == sum(
        torch.view_as_real(p).numel() if p.is_complex() else p.numel() for p in learn
    )


def test_sizes_that_cannot_agree_are_an_error():
    with pytest.raises(ArgumentError, match="within 3%, got"):
        match_parameters(tiny(), 30)


def test_comparison_writes_a_table_and_goes_on_where_it_was(tmp_path, runs_here):
    entries, said = [Entry(label="a", config=tiny())], []
    rows = compare(entries, seeds=(0,), out=tmp_path, say=said.append)
    assert [r.label for r in rows] == ["a"]
    assert all(len(r.values) == 1 and math.isnan(r.standard_error) for r in rows)
    assert rows[0].n_parameters == count_parameters(tiny())
    names = ("compare.md", "compare.csv", "curves.png", "curves.svg", "bars.png", "bars.svg")
    names += ("costs.png", "costs.svg", "costs.drawn.csv", "curves.drawn.csv", "bars.drawn.csv")
    assert all((tmp_path / name).stat().st_size > 0 for name in names)
    stamp = (folder_of(tmp_path, entries[0], 0) / "result.json").stat().st_mtime_ns
    again = compare(entries, seeds=(0, 1), out=tmp_path)
    assert (folder_of(tmp_path, entries[0], 0) / "result.json").stat().st_mtime_ns == stamp
    assert again[0].values[0] == rows[0].values[0]
    assert len(again[0].values) == 2
    assert again[0].standard_error > 0
    runs = RunTable.read(tmp_path / "runs.csv").rows
    assert [run.seed for run in runs] == [0, 1]
    assert [run.test for run in runs] == pytest.approx(again[0].values, rel=1e-7)
    assert {(run.row, run.mixer, run.task) for run in runs} == {
        ("a", "lru", entries[0].config.task)
    }
    assert len({run.config for run in runs}) == 1  # the seed is no setting
    assert {run.chance for run in runs} == {0.1}
    table = (tmp_path / "compare.md").read_text()
    assert "± " in table
    assert "chance level: 10" in table
    with pytest.raises(RunFolderError, match="other options"):
        compare([Entry(label="a", config=tiny(batch_size=256))], seeds=(0,), out=tmp_path)


def test_a_run_that_fails_is_a_row_and_not_the_end(tmp_path, runs_here):
    bad = dataclasses.replace(tiny(), mixer_options={"r_min": 0.9, "r_max": 0.1})
    entries = [Entry(label="bad", config=bad), Entry(label="good", config=tiny())]
    rows = compare(entries, seeds=(0,), out=tmp_path)
    assert not rows[0].values
    assert "r_min" in rows[0].failures[0]
    assert len(rows[1].values) == 1
    assert "1 failed" in (tmp_path / "compare.md").read_text()


def test_other_runs_in_the_folder_are_no_part_of_a_comparison(tmp_path, runs_here):
    copy = Config(task="copy", model=ModelConfig(pool="none"))
    for name, config in (("copy-seed0", copy), ("older/lru-seed1", tiny())):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        RunFolder.create(tmp_path / name, config)
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text("{}")
    compare([Entry(label="one", config=tiny())], seeds=(0,), out=tmp_path)
    compare([Entry(label="two.3", config=tiny("gru"))], seeds=(0,), out=tmp_path)
    runs = RunTable.read(tmp_path / "runs.csv").rows
    assert [(run.row, run.task) for run in runs] == [("one", "digits"), ("two.3", "digits")]


@pytest.mark.parametrize(
    ("verb", "code"),
    [
        (["compare", "--mixers", "lru,lru:r_min=0.9:r_max=0.1"], 1),
        (["compare", "--mixers", "lru"], 0),
        (["sweep", "--over", "mixer.r_min=0.9,2.0"], 0),  # a search may try what fails
        (["sweep", "--over", "mixer.r_min=2.0"], 1),
    ],
)
def test_the_exit_code_says_whether_runs_failed(verb, code, tmp_path, runs_here):
    small = ["--model.d-model", "4", "--train.epochs", "1", "--train.batch-size", "512"]
    command = [verb[0], "digits", *verb[1:], "--seeds", "1", "--out", str(tmp_path), *small]
    assert main(command) == code


def test_rows_that_differ_in_depth_alone_are_a_series():
    def deep(layers, **changes):
        config = dataclasses.replace(tiny(), **changes)
        return dataclasses.replace(config, model=ModelConfig(d_model=8, n_layers=layers))

    configs = [deep(2), deep(1), deep(1, mixer="slru"), deep(2, mixer_options={"d_state": 3})]
    rows = [
        Row(
            label=label,
            metric="accuracy",
            values=(0.2, 0.4),
            failures=(),
            n_parameters=1,
            n_state=1,
            seconds_per_step=1.0,
            memory=None,
            folders=(),
        )
        for label in "abcd"
    ]
    found = by_depth(rows, configs)
    assert list(found) == ["lru"]
    assert [point[0] for point in found["lru"]] == [2, 1]
    assert found["lru"][0][1:] == pytest.approx((0.3, 0.1))
    assert by_depth(rows[1:], configs[1:]) == {}


@pytest.mark.slow
def test_depths_are_plotted(tmp_path):
    model = ModelConfig(d_model=8, n_layers=2)
    entries = [
        Entry(label="1", config=tiny()),
        Entry(label="2", config=dataclasses.replace(tiny(), model=model)),
    ]
    compare(entries, seeds=(0,), out=tmp_path)
    assert (tmp_path / "depth.png").is_file()
    assert (tmp_path / "depth.svg").is_file()


@pytest.mark.parametrize(
    ("labels", "seeds", "what"),
    [
        ([], (0,), "labels"),
        (["a", "a"], (0,), "labels"),
        (["a"], (), "seeds"),
        (["a"], (1, 1), "seeds"),
    ],
)
def test_nothing_to_compare_is_an_error(tmp_path, labels, seeds, what):
    entries = [Entry(label=label, config=tiny()) for label in labels]
    with pytest.raises(ArgumentError, match=what):
        compare(entries, seeds=seeds, out=tmp_path)


def test_command_line(capsys, tmp_path, runs_here):
    """In this process; `test_processes_import_what_the_command_names` starts all of them."""
    out = tmp_path / "cmp"
    options = ["--train.epochs", "1", "--train.batch-size", "512", "--model.d-model", "8"]
    mixers = "lru:r_min=0.5,slru"
    assert (
        main(["compare", "digits", "--mixers", mixers, "--seeds", "1", "--out", str(out), *options])
        == 0
    )
    assert "| lru:r_min=0.5 |" in capsys.readouterr().out
    assert runs_here == ["cmp/lru_r_min=0.5-seed0", "cmp/slru-seed0"]
    config = json.loads((out / "lru_r_min=0.5-seed0" / "config.json").read_text())["config"]
    assert config["mixer_options"]["r_min"] == 0.5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing", "--mixers", "lru"], "no task named"),
        (["digits", "--mixers", "lru,nothing"], "no mixer named"),
        (["digits", "--mixers", "lru:r_min"], "name:option=value"),
        (["digits", "--mixers", "lru", "--seeds", "0"], "seeds"),
    ],
)
def test_wrong_commands_are_explained(capsys, arguments, words):
    assert main(["compare", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_processes_import_what_the_command_names(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "minemod.py").write_text(
        "from linrnn.mixers import LRU\n\nclass Mine(LRU):\n    '''One of mine.'''\n"
    )
    arguments = ["digits", "--mixers", "minemod:Mine+attention:attention.n_heads=2", "--seeds", "1"]
    small = ["--model.d-model", "4", "--train.epochs", "1", "--train.batch-size", "512"]
    done = command("compare", *arguments, *small)
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stdout
    again = command("compare", *arguments, *small)
    assert again.returncode == 0, again.stderr


def test_runs_of_one_folder_have_the_chance_of_their_own_task(tmp_path):
    for name, vocabulary in (("few", 10), ("many", 18)):
        options = CopyOptions(vocabulary=vocabulary)
        model = ModelConfig(pool="none")
        config = Config(task="copy", task_options=options, model=model)
        RunFolder.create(tmp_path / name, config)
    chances = {run.row: run.chance for run in RunTable.below(tmp_path).rows}
    assert chances == {"few": 1 / 8, "many": 1 / 16}
    assert {run.chance for run in RunTable.below(tmp_path, chance=0.5).rows} == {0.5}
