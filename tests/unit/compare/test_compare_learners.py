"""Learners side by side on one task, alone and with mixers."""

import csv

import pytest

from linrnn.cli import main
from linrnn.cli._verbs.complete import complete
from linrnn.compare._runs import learner_of
from linrnn.tasks.delay import Delay
from linrnn.train import Config, ModelConfig
from linrnn.train.folder import RunFolder

TINY = [
    *("--model.d-model", "4", "--model.n-layers", "1", "--train.epochs", "1", "--seeds", "1"),
    *("--train.batch-size", "512", "--train.threads", "1", "--recipe", "none"),
]


def said(*arguments):
    try:
        return main(["compare", "digits", *map(str, arguments)])
    except SystemExit as stopped:
        return stopped.code


def test_one_table_has_each_mixer_by_each_learner(tmp_path, capsys, runs_here):
    given = ["--mixers", "lru,mingru", "--learners", "BPTT,tbptt:window=16", "--model.pool", "last"]
    assert said(*given, *TINY, "--out", tmp_path) == 0
    with (tmp_path / "compare.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["mixer"] for row in rows] == [
        *("lru bptt", "lru tbptt:window=16", "mingru bptt", "mingru tbptt:window=16")
    ]
    assert [row["learner"] for row in rows] == ["bptt", "tbptt:window=16"] * 2
    table = (tmp_path / "compare.md").read_text()
    assert table.startswith("| mixer | learner | test accuracy")
    assert "| mingru tbptt:window=16 | tbptt:window=16 |" in table
    config = RunFolder(tmp_path / "mingru_tbptt_window=16-seed0").load_config()
    assert (config.mixer, config.learner) == ("mingru", "tbptt")
    assert config.learner_options == {"window": 16, "overlap": 0, "update": "batch"}
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/result.json")}
    assert len(stamps) == len(runs_here) == 4
    capsys.readouterr()
    assert said(*given, *TINY, "--out", tmp_path) == 0  # nothing is trained again
    assert {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/result.json")} == stamps
    assert len(runs_here) == 4


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required: --mixers or --learners"),
        (["--learners", "tbpt"], "Did you mean 'tbptt'"),
        (["--learners", "tbptt:window"], "--learners must list options as name:option=value"),
        (["--learners", "tbptt:windw=3"], "Did you mean"),
        (["--learners", "tbptt:window=0"], "window must be"),
        (["--learners", "tbptt", "--learner", "bptt"], "--learner must come without --learners"),
        (["--learners", "bptt", "--learner.window", "3"], "got --learner.window"),
        (["--learners", "tbptt,tbptt"], "different labels"),
        (["--learners", "tbptt,"], "--learners must have a name between commas, got 'tbptt,'"),
        (["--mixers", "lru,,mingru"], "--mixers must have a name between commas"),
    ],
)
def test_what_cannot_be_compared_is_said(tmp_path, capsys, arguments, words):
    assert said(*arguments, "--out", tmp_path) == 2
    assert words in capsys.readouterr().err


def test_a_learner_is_said_with_what_was_changed(tmp_path):
    config = Config(
        task="delay",
        task_options=Delay.Options(),
        model=ModelConfig(pool="none"),
        learner="tbptt",
        learner_options={"window": 8, "overlap": 0},
    )
    assert learner_of(config) == "tbptt:window=8"


def test_learners_are_completed():
    assert complete(["compare", "digits", "--learners", "bptt,tb"]) == ["bptt,tbptt"]
