import re
from dataclasses import asdict, replace

import pytest

from linrnn import recipes
from linrnn.cli import main
from linrnn.cli._line.mixer_options import mixer_class
from linrnn.cli._line.options import learner_class
from linrnn.train import OptimConfig, load_model

TINY = ["--model.d-model", "6", "--model.n-layers", "1", "--train.batch-size", "256"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_train_runs_and_prints_the_result_and_what_is_next(folder, capsys):
    args = ["--mixer.d-state", "3", "--seed", "4", "--task.shift", "0", "--train.epochs", "2"]
    assert main(["train", "digits", *TINY, *args]) == 0
    out = capsys.readouterr().out
    run = "runs/digits-lru-1"
    lines = out.splitlines()
    assert lines[0].startswith("digits with lru: ")
    assert "2 epochs of 5 steps, 10 in all" in lines[1]
    assert run in lines[2]
    assert [line.split("  ")[0] for line in lines[3:5]] == ["epoch 1/2", "epoch 2/2"]
    pattern = r"^test accuracy \d+\.\d\d % \| \d+ parameters \| 13 floats of state \| \d+\.\d s of"
    assert re.search(pattern, out, re.MULTILINE)
    assert f"linrnn eval {run}\n" in out
    assert f"linrnn predict {run} FILE\n" in out
    _, _, config = load_model(folder / run)
    assert config.seed == 4
    assert config.mixer_options["d_state"] == 3
    assert config.mixer_options["r_min"] == 0.5  # from the recipe
    assert config.task_options.shift == 0


def test_train_without_a_recipe_says_that_nothing_is_tuned(folder, capsys, monkeypatch):
    monkeypatch.setattr("linrnn.recipes.names", lambda: [])
    assert main(["train", "digits", *TINY, "--train.epochs", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "no tuned recipe for digits: defaults that promise no result\ndigits with"
    )
    assert load_model(folder / "runs/digits-lru-1")[2].optim == OptimConfig()


def test_train_recipe_none_takes_untuned_defaults(folder, capsys):
    args = ["--recipe", "none", "--train.epochs", "1"]
    assert main(["train", "digits", *TINY, *args]) == 0
    assert "no tuned recipe" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["train", "digits", "--recipe", "none", "--help"])
    assert "Defaults are untuned: they suit any task." in capsys.readouterr().out


class StartedError(Exception):
    """In the place of a run; no error that the command line would report."""


@pytest.fixture
def started(monkeypatch):
    """Commands that would run; nothing does."""
    heard = []

    def run(config, **_):
        heard.append(config)
        raise StartedError

    monkeypatch.setattr("linrnn.train.run", run)
    return heard


def start(*args):
    with pytest.raises(StartedError):
        main(["train", *args])


def completed(config):
    """With every option of mixer and learner, as the command line states them."""
    options = {**asdict(mixer_class(config.mixer, {})()), **config.mixer_options}
    of_learner = {**asdict(learner_class(config.learner, {})()), **config.learner_options}
    return replace(config, mixer_options=options, learner_options=of_learner)


def test_train_does_not_start_a_recipe_for_a_gpu_unasked(started, capsys, monkeypatch):
    monkeypatch.setattr("linrnn.recipes.scales", lambda name: ["paper"])
    start("listops")
    assert started == [completed(recipes.untuned("listops"))]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "no tuned recipe for listops that fits a CPU: defaults that promise no result"
    )
    assert lines[1].startswith("`linrnn train listops --scale paper` has others: accuracy 60.20 %")
    assert "not run here" in lines[1]
    assert "on one A100 GPU" in lines[1]


@pytest.mark.parametrize("scale", [["--scale", "paper"], ["--scale=paper"]])
def test_train_takes_the_scale_asked_for_and_says_what_to_expect(started, capsys, scale):
    start("listops", *scale, "--seed", "3")
    assert started == [completed(replace(recipes.load("listops", "paper").config, seed=3))]
    out = capsys.readouterr().out
    assert out.startswith("recipe listops, scale paper: accuracy 60.20 % as published, not run")


def test_train_takes_a_recipe_of_another_name(started, capsys):
    start("listops", "--recipe", "listops_s5")
    assert started == [completed(recipes.load("listops_s5", "paper").config)]
    out = capsys.readouterr().out
    assert out.startswith("recipe listops_s5, scale paper: ")
    assert "needs a GPU" in out


def test_train_help_names_recipe_and_scale(capsys):
    with pytest.raises(SystemExit):
        main(["train", "digits", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert "Defaults are those of the recipe digits, scale cpu." in words
    assert "--scale STR" in words


def test_train_takes_the_options_of_the_block(folder, capsys):
    block = ["--model.block", "mlp", "--model.conv-width", "4", "--model.bidirectional"]
    args = ["--train.epochs", "1", "--out", "here", *block]
    assert main(["train", "digits", *TINY, *args]) == 0
    model, _, config = load_model(folder / "here")
    assert (config.model.block, config.model.conv_width) == ("mlp", 4)
    assert config.model.bidirectional
    assert model.bidirectional
    assert model.blocks[0].conv.width == 4
    assert model.blocks[0].mlp.up.out_features == 24


def test_train_resume_of_a_finished_run(folder, capsys):
    assert main(["train", "digits", *TINY, "--train.epochs", "1", "--out", "here"]) == 0
    first = capsys.readouterr().out
    assert main(["train", "--resume", "here"]) == 0
    again = capsys.readouterr().out
    assert first.endswith(again)


@pytest.mark.unchecked
def test_train_refuses_a_folder_in_use(folder, capsys):
    (folder / "here").mkdir()
    (folder / "here" / "file").touch()
    assert main(["train", "digits", *TINY, "--out", "here"]) == 1
    assert "here: the run folder must be new or empty" in capsys.readouterr().err


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["digit"], "no task named 'digit'. Did you mean 'digits'"),
        (["digits", "--mixer", "lur"], "no mixer named 'lur'. Did you mean 'lru'"),
        (["digits", "--recipe=digts"], "no recipe named 'digts'. Did you mean 'digits'"),
        (["digits", "--scale", "cup"], "no scale of the recipe digits named 'cup'. Did you"),
        (["ett", "--scale", "paper"], "--scale must come with a recipe, got 'paper' without one"),
        (["digits", "--recipe", "none", "--scale", "cpu"], "--scale must come with a recipe"),
        (["digits", "--recipe", "reverse"], "must be one for the task 'digits', got 'reverse'"),
        (["digits", "--model.d-model", "0"], "model.d_model must be an integer of at least 1"),
        (["digits", "--mixer.d-state", "0"], "LRU: d_state must be an integer of at least 1"),
        (["digits", "--mixer.r-min", "2"], "0 <= r_min < r_max <= 1, got r_min=2.0"),
        (["digits", "--task.shift", "9"], "shift must be in 0..7, got 9"),
        (["--seed", "1", "digits"], "first argument must be a task, got '--seed'"),
        (
            ["rows.csv", "--seed", "1"],
            "must be a task, got 'rows.csv'. Try: linrnn train table --data rows.csv --seed 1, or "
            "forecast instead of table",
        ),
        (["--resume"], "--resume must name a run folder, got nothing after it"),
        (["digits", "--resume", "x", "--seed", "1"], "--resume must come alone"),
    ],
)
def test_train_wrong_commands_exit_with_2(folder, capsys, args, message):
    assert main(["train", *args]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--optim.lrr", "1"], "Did you mean --optim.lr?"),
        (["--mixer.d-stat", "1"], "Did you mean --mixer.d-state?"),
        (["--optim.lr", "abc"], "--optim.lr must be a number, got 'abc'."),
        (["--model.norm", "bathc"], "must be one of batch, layer, rms, none, got 'bathc'."),
    ],
)
def test_train_wrong_options_suggest_the_right_one(folder, capsys, args, message):
    assert main(["train", "digits", *args]) == 2
    assert message in capsys.readouterr().err


def test_train_without_a_task_says_how_to(capsys):
    assert main(["train"]) == 2
    assert "usage: linrnn train TASK" in capsys.readouterr().err
    assert main(["train", "--help"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "digits handwritten digits" in words


def test_train_help_describes_every_kind_of_option(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["train", "digits", "--help"])
    assert caught.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    for flag in ("--mixer ", "--seed", "--out", "--optim.lr ", "--mixer.r-min", "--task.shift"):
        assert flag in out
    assert "Peak learning rate." in out
    assert "Complex modes." in out


@pytest.mark.unchecked
def test_train_resume_no_run(folder, capsys):
    assert main(["train", "--resume", "nowhere"]) == 1
    assert "nowhere: a run folder must exist" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["INT", "TERM"])
def test_train_interrupted_exits_with_130_and_resumes(folder, capsys, monkeypatch, number):
    import os
    import signal

    from linrnn.cli._line import progress

    class Interrupt(progress.LineReporter):
        def stepped(self, report):
            if report.step == 2:
                os.kill(os.getpid(), getattr(signal, f"SIG{number}"))

    monkeypatch.setattr("linrnn.cli.train.make_reporter", Interrupt)
    assert main(["train", "digits", *TINY, "--train.epochs", "1", "--out", "here"]) == 130
    assert "linrnn train --resume here" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert main(["train", "--resume", "here"]) == 0
    assert "5 in all, from step 2," in capsys.readouterr().out


def test_train_on_a_terminal_shows_a_bar(folder, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "150")
    assert main(["train", "digits", *TINY, "--train.epochs", "1"]) == 0
    out = capsys.readouterr().out
    assert "epoch 1/1" in out
    assert "100 %" in out
    assert "validation accuracy" in out
    assert "test accuracy" in out
