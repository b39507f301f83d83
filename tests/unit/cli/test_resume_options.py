"""What `linrnn train --resume` may come with."""

import pytest

from linrnn import recipes
from linrnn.cli import main
from linrnn.cli._options import Start, parse_train

pytestmark = pytest.mark.unchecked


@pytest.fixture
def asked(monkeypatch):
    """What the command line asks `train.resume` for."""
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
        (["--resume", "x"], {"fallback": False, "on_nan": None}),
        (["--resume=x", "--fallback"], {"fallback": True, "on_nan": None}),
        (["--resume", "x", "--on-nan", "skip"], {"fallback": False, "on_nan": "skip"}),
        (["--on-nan=rollback", "--resume", "x"], {"fallback": False, "on_nan": "rollback"}),
    ],
)
def test_resume_takes_two_options(asked, args, options):
    assert main(["train", *args]) == 130
    assert asked == [("x", options)]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--on-nan", "skp"], "no --on-nan named 'skp'. Did you mean 'skip'?"),
        (["--seed", "1"], "must come alone, or with --fallback or --on-nan"),
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
