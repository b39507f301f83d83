"""``linrnn stream`` takes numbers in the units of the data, as `linrnn.load(run).stream()` does."""

import json
import sys

import numpy as np
import pytest

import linrnn
from linrnn import tasks
from linrnn.cli import main
from linrnn.cli._verbs import watch
from linrnn.cli._verbs.watch import Answers, words_of
from linrnn.errors import ArgumentError, DataError
from linrnn.tasks.forecast import ForecastOptions
from linrnn.tasks.table import TableOptions
from linrnn.train import Config, ModelConfig, load_model
from linrnn.train.checkpoint import save_tensors
from linrnn.train.folder import RunFolder
from linrnn.train.model import build_model, build_task

pytestmark = pytest.mark.unchecked

SEEN = np.random.RandomState(0).randn(30, 4, 2) * [30, 0.01] + [100, 0.01]


@pytest.fixture
def run(tmp_path):
    """A function that writes an untrained run of a kind."""
    classes, numbers, series = (tmp_path / name for name in ("c.npz", "n.npz", "s.csv"))
    np.savez(classes, x=SEEN, y=np.arange(30) % 2)
    np.savez(numbers, x=SEEN, y=SEEN.sum((1, 2)))
    rows = "".join(f"{a},{b}\n" for a, b in SEEN.reshape(-1, 2))
    series.write_text(f"load,price\n{rows}")
    options = {
        "class": ("table", TableOptions(data=str(classes))),
        "number": ("table", TableOptions(data=str(numbers), kind="regression")),
        "mask": ("table", TableOptions(data=str(classes), missing="mask")),
        "forecast": ("forecast", ForecastOptions(data=str(series), length=8, horizon=2)),
        "digits": ("digits", None),
        "mackey_glass": ("mackey_glass", None),
        "gaps": ("gaps", None),
    }

    def write(name):
        task, given = options[name]
        pool = "last" if "last" in tasks.load(task).pools else "none"
        model = ModelConfig(d_model=6, n_layers=1, norm="layer", pool=pool)
        config = Config(task=task, task_options=given, mixer="lru", model=model)
        folder = RunFolder.create(tmp_path / name, config)
        save_tensors(build_model(config, build_task(config)).state_dict(), folder.model)
        return folder.path

    return write


@pytest.fixture
def answers(monkeypatch, tmp_path, capsys):
    """Answers of ``linrnn stream`` to some steps, a line each."""

    def stream(run, steps):
        lines = "".join(" ".join(f"{v:.17g}" for v in step) + "\n" for step in steps)
        (tmp_path / "stdin").write_text(lines)
        capsys.readouterr()
        with open(tmp_path / "stdin") as file:
            monkeypatch.setattr(sys, "stdin", file)
            assert main(["stream", str(run), "--json"]) == 0
        out, err = capsys.readouterr()
        return [json.loads(line) for line in out.splitlines()], err

    return stream


@pytest.mark.parametrize(
    "name", ["class", "number", "mask", "forecast", "digits", "mackey_glass", "gaps"]
)
def test_a_line_is_answered_as_a_step_of_the_loaded_run(run, answers, name):
    path = run(name)
    model = linrnn.load(path)
    stream, channels = model.stream(), model.task.channels
    steps = SEEN.reshape(-1, 2)[:5, :channels].copy()
    if name == "mask":
        steps[2, 0] = np.nan
    said, err = answers(path, steps)
    assert "numbers are taken" not in err
    for one, step in zip(said, steps, strict=True):
        if model.task.kind == "classification":
            shares = stream.predict_proba(step).ravel()
            assert one["class"] == model.class_names[shares.argmax()]
            assert one["probability"] == pytest.approx(shares.max(), abs=1e-5)
        else:
            expected = stream.predict(step).ravel()
            assert one["values"] == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-5)


def test_it_says_so_where_the_task_scales_no_step(run, answers, monkeypatch):
    from linrnn.tasks.digits import Digits

    def scaled(self, x):
        raise ArgumentError("Digits: no single step.")

    path = run("digits")
    monkeypatch.setattr(Digits, "scaled", scaled)
    said, err = answers(path, [[0.5]])
    assert len(said) == 1
    assert err.count("numbers are taken as the model reads them") == 1


@pytest.mark.parametrize("line", [b"1,5 2,5", b"-1,5 2,5e3 0,1", b"1,5\t2,5\n"])
def test_numbers_with_decimal_commas_are_refused(line):
    """They would be twice as many numbers, without a word."""
    with pytest.raises(DataError, match="line 7: numbers must have a decimal point, and commas or"):
        words_of(line, 7)


@pytest.mark.parametrize("line", [b"0.5,,1.5", b",0.5", b"0.5, ,1", b"1,2,", b","])
def test_an_empty_cell_is_no_step_left_out(line):
    """The cells after it would be numbers of other channels."""
    with pytest.raises(DataError, match="line 7: every cell between commas must hold a number"):
        words_of(line, 7)


@pytest.mark.parametrize("line", [b"1,5", b"1, 5", b"0.5,0.25 0.75,1", b"1 5", b"1,5 2", b"  "])
def test_commas_and_blanks_separate(line):
    assert words_of(line, 1) == line.replace(b",", b" ").split()


def test_two_whole_numbers_are_noted_once(run, monkeypatch):
    notes = []
    monkeypatch.setattr(watch, "remark", notes.append)
    stream = Answers(*load_model(run("mackey_glass"))[:2])
    for line in (b"1 5", b"1.5", b"1,5,2", b"1,5", b"2,5"):
        stream.parse(line, 3)
    (said,) = notes
    assert said.startswith("line 3: a comma separates numbers, so 1,5 is read as two steps, 1 and")


def test_answers_alone_are_on_standard_output(run, monkeypatch, tmp_path, capsys):
    """A program reads an answer a line, with and without JSON."""
    from linrnn.tasks.digits import Digits

    def scaled(self, x):
        raise ArgumentError("Digits: no single step.")

    path = run("digits")
    monkeypatch.setattr(Digits, "scaled", scaled)
    (tmp_path / "stdin").write_text("1,5\n0.5\n")
    capsys.readouterr()
    for options in ([], ["--json"], ["-q"]):
        with open(tmp_path / "stdin") as file:
            monkeypatch.setattr(sys, "stdin", file)
            assert main(["stream", str(path), *options]) == 0
        out, err = capsys.readouterr()
        assert len(out.splitlines()) == 2
        for text in ("numbers are taken as the model reads them", "is read as two steps"):
            assert err.count(text) == ("-q" not in options)
