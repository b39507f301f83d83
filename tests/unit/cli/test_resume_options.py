"""Options that `linrnn train --resume` accepts."""

import pytest

from linrnn import recipes
from linrnn.cli import main
from linrnn.cli._line.options import Start, parse_train

pytestmark = pytest.mark.unchecked


@pytest.fixture
def asked(monkeypatch):
    """Arguments with which the command line calls `train.resume`."""
    calls = []

    def resume(run, **options):
        del options["reporter"]
        calls.append((str(run), options))
        raise KeyboardInterrupt

    monkeypatch.setattr("linrnn.train._run.resume", resume)
    return calls


@pytest.mark.parametrize(
    ("args", "options"),
    [
        (["--resume", "x"], {}),
        (["--resume=x", "--fallback"], {"fallback": True}),
        (["--resume", "x", "--on-nan", "skip"], {"on_nan": "skip"}),
        (["--on-nan=rollback", "--resume", "x"], {"on_nan": "rollback"}),
        (["--resume", "x", "--train.on-nan", "skip"], {"on_nan": "skip"}),
        (["--resume", "x", "--devices", "2"], {"devices": 2}),
        (["--resume", "x", "--trainer.devices", "2"], {"devices": 2}),
        (["--resume", "x", "--train.devices=3", "--fallback"], {"devices": 3, "fallback": True}),
    ],
)
def test_resume_takes_three_options(asked, args, options):
    assert main(["train", *args]) == 130
    assert asked == [("x", {"fallback": False, "on_nan": None, "devices": None} | options)]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--on-nan", "skp"], "no --on-nan named 'skp'. Did you mean 'skip'?"),
        (["--seed", "1"], "must come alone, or with --fallback, --on-nan or --devices"),
        (["--devices", "two"], "--devices must be an integer of at least 1, got 'two'"),
    ],
)
def test_resume_refuses_others(asked, capsys, args, text):
    assert main(["train", "--resume", "x", *args]) == 2
    assert text in capsys.readouterr().err
    assert asked == []


def test_on_nan_is_short_for_the_option_of_a_run():
    start = Start(recipes.untuned("digits"), "none", "none")
    config, _ = parse_train(["--on-nan", "rollback"], start)
    assert config.train.on_nan == "rollback"
    assert parse_train([], start)[0].train.on_nan == "stop"


@pytest.mark.parametrize(
    "args", [["--train.strategy", "fsdp"], ["--strategy=ddp"], ["--trainer.strategy", "ddp"]]
)
def test_other_strategies_are_a_matter_of_fit(capsys, args):
    assert main(["train", "digits", *args]) == 2
    said = capsys.readouterr().err
    assert "train by DDP" in said
    assert "linrnn.fit(..., devices=N, strategy=ModelParallelStrategy(...))" in said


def test_devices_is_short_for_the_option_of_a_run():
    start = Start(recipes.untuned("digits"), "none", "none")
    assert parse_train(["--devices", "2"], start)[0].train.devices == 2
