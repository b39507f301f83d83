"""`linrnn stream --learner` of lines that say what should have been answered to them."""

import json
import math
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from linrnn import learn
from linrnn.cli import main
from linrnn.learn import LearningSession
from linrnn.tasks.copy import CopyOptions
from linrnn.tasks.table import TableOptions
from linrnn.train import Config, ModelConfig, TrainConfig, load_model
from linrnn.train.checkpoint import load_tree, save_tensors
from linrnn.train.config import OptimConfig
from linrnn.train.folder import RunFolder
from linrnn.train.learning import steady
from linrnn.train.model import build_model, build_task
from linrnn.train.optim import make_optimizer

pytest.importorskip("lightning")
pytestmark = pytest.mark.unchecked

RULE = ["--learner", "chunked_rtrl", "--optim.lr", "0.01"]
SEEN = [[math.sin(0.7 * t), math.cos(0.3 * t)] for t in range(40)]
CLASSES = ("a b", "c")
ASKED = [10 + 3 * x[0] for x in [[0, 0], *SEEN]][:40]  # the input of the step before


def table(folder, kind):
    """A file of two channels whose question is a class, or a number around 10."""
    rows = []
    for i in range(30):
        cells = [f"{v:.4f}" for t in range(4) for v in SEEN[(i + t) % 40]]
        rows.append(
            ",".join([*cells, f"{ASKED[i]:.4f}" if kind == "regression" else CLASSES[i % 2]])
        )
    (folder / f"{kind}.csv").write_text("\n".join(rows) + "\n")
    return TableOptions(data=str(folder / f"{kind}.csv"), kind=kind, channels=2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run folders of models that have learned nothing yet, by what they answer."""
    folder = tmp_path_factory.mktemp("runs")
    wanted = {
        "class": ("table", table(folder, "classification"), "last"),
        "number": ("table", table(folder, "regression"), "last"),
        "steps": ("mackey_glass", None, "none"),
        "tokens": ("copy", CopyOptions(length=5), "none"),
    }
    found = {}
    for name, (task, options, pool) in wanted.items():
        config = Config(
            task=task,
            task_options=options,
            mixer="lru",
            model=ModelConfig(d_model=6, n_layers=1, norm="layer", pool=pool, dropout=0.0),
            train=TrainConfig(threads=1),
        )
        run = RunFolder.create(folder / name, config)
        torch.manual_seed(0)
        save_tensors(build_model(config, build_task(config)).state_dict(), run.model)
        found[name] = run.path
    return found


@pytest.fixture
def stream(runs, monkeypatch, tmp_path):
    """Run ``linrnn stream`` on some lines; what is learned goes to ``out``."""

    def called(name, lines, *arguments, out="out", rule=RULE):
        (tmp_path / "stdin").write_text("".join(f"{line}\n" for line in lines))
        given = [*rule, *(["--out", tmp_path / out] if rule else []), *arguments]
        with open(tmp_path / "stdin") as file:
            monkeypatch.setattr(sys, "stdin", file)
            return main(["stream", *map(str, [runs.get(name, name), *given])])

    return called


def kept(out, line):
    return load_file(out / "stream" / f"line-{line:012d}.safetensors")


def same(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(x, other[name]) for name, x in one.items())


def text(values):
    return ",".join(f"{v:.6f}" for v in values)


LINES = {
    "number": [f"{text(x)} | {y:.6f}" for x, y in zip(SEEN, ASKED, strict=True)],
    "class": [f"{text(x)} | {CLASSES[t % 2]}" for t, x in enumerate(SEEN)],
    "steps": [f"{x[0]:.6f} | {y - 10:.6f}" for x, y in zip(SEEN, ASKED, strict=True)],
}


@pytest.mark.parametrize("name", LINES)
def test_lines_are_answered_and_then_learned_from(name, runs, stream, capsysbinary, tmp_path):
    """As a `LearningSession` does that is fed by hand, target by target in the task's own units."""
    lines = [*LINES[name][:7], LINES[name][7].partition(" |")[0], *LINES[name][8:]]
    assert stream(name, lines) == 0
    said = capsysbinary.readouterr().out.decode().splitlines()
    model, task, config = load_model(runs[name])
    optim = steady(OptimConfig(**{**vars(config.optim), "lr": 0.01}))
    session = LearningSession(
        model,
        learn.build("chunked_rtrl"),
        task.loss,
        make_optimizer(model, optim),
        clip=optim.clip,
        seed=config.seed,
    )
    mean, std = task.known.asked if name == "number" else (0.0, 1.0)
    for t, line in enumerate(said):
        given = [float(w) for w in lines[t].partition("|")[0].split(",")]
        x = task.scaled(torch.tensor([[given]], dtype=torch.float64))[0, 0].float()
        if name == "class":
            target = torch.tensor(task.class_names.index(CLASSES[t % 2]))
        else:
            value = float(LINES[name][t].partition("|")[2])
            target = torch.tensor([[(value - mean) / std]], dtype=torch.float64)
            target = target[0] if name == "number" else target
        before = [p.clone() for p in model.parameters()]
        y = session.feed(x[None], None if t == 7 else target)
        assert (t == 7) == all(map(torch.equal, before, model.parameters()))
        if name == "class":
            best = y.double().softmax(-1).max(0)
            assert line == f"{task.class_names[best.indices]}\t{best.values:.4f}"
        else:
            assert line == f"{task.numbers(y[None] if name == 'number' else y).item():.6g}"
    whole = load_tree(tmp_path / "out" / "stream" / "line-000000000040.safetensors")
    assert all(torch.equal(x, whole["model"][n]) for n, x in model.state_dict().items())
    assert whole["steps"] == 40


def test_what_repeats_is_learned(stream, capsysbinary):
    assert stream("steps", ["0.5 | 1", "-0.5 | 0"] * 100) == 0
    said = [float(v) for v in capsysbinary.readouterr().out.split()]
    errors = [abs(y - (t % 2 == 0)) for t, y in enumerate(said)]
    assert sum(errors[-10:]) < 0.2 * sum(errors[:10])


@pytest.mark.parametrize(
    ("name", "arguments", "lines"),
    [
        (
            "number",
            [],
            [f'{{"x": [{text(SEEN[0])}], "target": {ASKED[0]:.6f}}}', LINES["number"][1]],
        ),
        (
            "number",
            [],
            [
                f'{{"target": [{ASKED[0]:.6f}], "x": [[{text(SEEN[0])}]]}}',
                f'{{"x": [{text(SEEN[1])}], "target": {ASKED[1]:.6f}}}',
            ],
        ),
        ("number", ["--target", "last"], [f"{text(SEEN[t])},{ASKED[t]:.6f}" for t in (0, 1)]),
        ("number", ["--target", "first"], [f"{ASKED[t]:.6f} {text(SEEN[t])}" for t in (0, 1)]),
        ("class", [], [f'{{"x": [{text(SEEN[0])}], "target": "a b"}}', LINES["class"][1]]),
    ],
)
def test_a_target_is_the_same_wherever_it_stands(
    stream, name, arguments, lines, capsysbinary, tmp_path
):
    assert stream(name, LINES[name][:2]) == 0
    expected = capsysbinary.readouterr().out
    assert stream(name, lines, *arguments, out="other") == 0
    assert capsysbinary.readouterr().out == expected
    moved = kept(tmp_path / "out", 2)
    other = kept(tmp_path / "other", 2)
    same(moved, other)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "0.5,0.25"),
        ([], "0.5 0.25 |"),
        ([], "0.5 0.25 | ?"),
        ([], '{"x": [0.5, 0.25]}'),
        ([], '{"x": [0.5, 0.25], "target": null}'),
        (["--target", "last"], "0.5,0.25,"),
        (["--target", "last"], "0.5 0.25 ?"),
        (["--target", "first"], ", 0.5, 0.25"),
    ],
)
def test_a_line_without_a_target_moves_no_weight(stream, runs, arguments, line, tmp_path, capfd):
    assert stream("number", [line], *arguments) == 0
    same(
        load_file(runs["number"] / "model.safetensors"),
        load_file(tmp_path / "out" / "model.safetensors"),
    )
    assert len(capfd.readouterr().out.splitlines()) == 1


def test_steps_of_one_line_may_have_a_target_each_or_none(stream, runs, capsysbinary, tmp_path):
    assert stream("tokens", ["1 2 3 | ? 1 2", "0 | ?", "4 | 3"]) == 0
    said = capsysbinary.readouterr().out.splitlines()
    assert len(said) == 3
    assert stream("tokens", ["0 | ?"], out="other") == 0
    start = load_file(runs["tokens"] / "model.safetensors")
    same(start, load_file(tmp_path / "other" / "model.safetensors"))
    moved = load_file(tmp_path / "out" / "model.safetensors")
    assert not all(torch.equal(x, moved[name]) for name, x in start.items())
    assert load_tree(tmp_path / "out" / "stream" / "line-000000000003.safetensors")["steps"] == 5


def test_a_killed_stream_goes_on_with_the_same_numbers(stream, runs, capsysbinary, tmp_path):
    lines = LINES["class"][:30]
    lines[4] = lines[4].partition("|")[0]
    assert stream("class", lines) == 0
    expected = capsysbinary.readouterr().out.splitlines()
    killed = tmp_path / "killed"
    command = [sys.executable, "-m", "linrnn", "stream", str(runs["class"]), *RULE]
    command += ["--checkpoint-minutes", "0", "--out", str(killed)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for line, answer in zip(lines[:11], expected, strict=False):
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            assert process.stdout.readline().rstrip(b"\n") == answer
        for _ in range(6000):
            if (killed / "stream" / "line-000000000010.safetensors").exists():
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.stdin.close()
        assert process.wait(timeout=60) == -signal.SIGKILL
    at = max(int(p.stem.removeprefix("line-")) for p in (killed / "stream").glob("line-*"))
    assert at in (10, 11)
    assert stream("class", lines, "--from-start", out="killed") == 0
    assert capsysbinary.readouterr().out.splitlines() == expected[at:]
    same(kept(killed, 30), kept(tmp_path / "out", 30))


def test_frozen_weights_stay_and_answers_may_be_json(stream, runs, capsys, tmp_path):
    assert stream("number", LINES["number"][:5], "--freeze", "--json") == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [list(one) for one in said] == [["values"]] * 5
    before = load_file(runs["number"] / "model.safetensors")
    after = load_file(tmp_path / "out" / "model.safetensors")
    same(before, after)


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        ("number", "0.5 0.25 | 1 2", "line 2: the target must be 1 numbers for a line, got 2"),
        ("number", "0.5 0.25 | x", "line 2: the target must be finite numbers"),
        ("number", "0.5 0.25 | nan", "line 2: the target must be finite numbers"),
        ("number", "0.5 0.25 0.5 | 1", "line 2: there must be 2 numbers a step"),
        ("number", "| 1", "line 2: a line must have input before its target"),
        ("number", '{"x": [0.5, 0.25], "y": 1}', "line 2: the fields must be 'x' and"),
        ("number", '{"target": 1}', "line 2: the fields must be 'x' and"),
        ("number", '{"x": [0.5, true]}', "line 2: the fields must hold numbers"),
        ("number", '{"x": [0.5, 0.25]', "line 2: a line with braces must be one object of JSON"),
        ("number", '{"x": ' + "[" * 100000, "line 2: a line with braces must be one object"),
        ("class", "0.5 0.25 | d", "line 2: the target must be one of"),
        ("steps", "0.5 0.25 | 1", "line 2: the target must be 2 numbers for 2 steps, got 1"),
        ("steps", "0.5 0.25 | 1 ?", "line 2: the target must be finite numbers"),
        ("tokens", "1 2 | 1 99", "line 2: the target must be one of 0.."),
        ("tokens", "1 2 | 1 -100", "line 2: the target must be one of 0.."),
    ],
)
def test_what_cannot_be_learned_from_is_named_or_passed_over(
    stream, name, line, words, capsysbinary
):
    good = {"class": LINES["class"], "number": LINES["number"], "steps": LINES["steps"]}
    lines = good.get(name, ["1 | 2"] * 3)
    assert stream(name, [lines[0], line, lines[2]]) == 1
    before, err = capsysbinary.readouterr()
    assert words in err.decode()
    assert stream(name, [lines[0], line, lines[2]], "--skip-invalid", out="skipped") == 0
    skipped, err = capsysbinary.readouterr()
    assert words in err.decode()
    assert skipped.startswith(before)
    assert stream(name, [lines[0], "", lines[2]], out="without") == 0
    assert capsysbinary.readouterr().out == skipped


@pytest.mark.parametrize(
    ("name", "rule", "arguments", "words"),
    [
        ("number", [], ["--target", "last"], "--target must come with --learner"),
        ("number", RULE, ["--quantile", "0.9"], "must come with a language model"),
        ("number", RULE, ["--target", "third"], "--target"),
    ],
)
def test_what_cannot_be_meant(stream, name, rule, arguments, words, capsys):
    assert stream(name, LINES[name][:1], *arguments, rule=rule) == 2
    assert words in capsys.readouterr().err
