"""`linrnn stream --learner`: what is learned is kept, wherever the command is killed."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from linrnn.cli import main
from linrnn.cli._line.lines import Lines
from linrnn.tasks.lm import LMOptions
from linrnn.train import Config, ModelConfig, TrainConfig
from linrnn.train.checkpoint import load_tree, save_tensors, save_tree
from linrnn.train.folder import RunFolder
from linrnn.train.model import build_model, build_task

pytest.importorskip("lightning")
pytestmark = pytest.mark.unchecked

LINES = [f"{'the cat sat' if n % 2 else 'on the mat'}\n".encode() for n in range(30)]
RULE = ["--learner", "diagonal_rtrl", "--optim.lr", "0.02"]
ALWAYS = ["--checkpoint-minutes", "0"]  # a checkpoint after each line


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    """The folder of a byte model that has learned nothing yet."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("the cat sat on the mat\n" * 80)
    os.environ["LINRNN_DATA"] = str(folder / "cache")
    try:
        config = Config(
            task="lm",
            task_options=LMOptions(data=(str(folder / "text.txt"),), tokenizer="byte", length=32),
            mixer="lru",
            model=ModelConfig(d_model=8, n_layers=1, norm="layer", pool="none", dropout=0.0),
            train=TrainConfig(threads=1),
        )
        task = build_task(config)
        run = RunFolder.create(folder / "run", config, task.run_files())
        save_tensors(build_model(config, task).state_dict(), run.model)
    finally:
        del os.environ["LINRNN_DATA"]
    (folder / "text.txt").unlink()  # a stream is learned from without it
    return run.path


@pytest.fixture
def learn_from(untrained, monkeypatch, tmp_path):
    """Run ``linrnn stream`` on some lines; what is learned goes to ``out``."""

    def stream(lines, *arguments, run=untrained, rule=RULE, out="out"):
        (tmp_path / "stdin").write_bytes(b"".join(lines))
        given = [*rule, *(["--out", tmp_path / out] if out else []), *arguments]
        with open(tmp_path / "stdin") as file:
            monkeypatch.setattr(sys, "stdin", file)
            return main(["stream", *map(str, [run, *given])])

    return stream


def point(out, line):
    return out / "stream" / f"line-{line:012d}.safetensors"


def points(out):
    return sorted(int(p.stem.removeprefix("line-")) for p in (out / "stream").iterdir())


def bits(printed):
    return [float(line.split()[0]) for line in printed.splitlines()]


def test_lines_are_learned_from_and_the_run_stays(learn_from, untrained, capsysbinary, tmp_path):
    before = {p.name: p.read_bytes() for p in untrained.iterdir() if p.is_file()}
    assert learn_from(LINES * 2) == 0
    said, err = capsysbinary.readouterr()
    assert b"learning continues after line 0" in err
    assert sum(bits(said)[-4:]) < 0.5 * sum(bits(said)[:4])
    assert {p.name: p.read_bytes() for p in untrained.iterdir() if p.is_file()} == before
    out = tmp_path / "out"
    assert points(out) == [0, 60]
    # the folder is a run: what reads one reads what was learned
    kept, weights = load_tree(point(out, 60))["model"], load_file(out / "model.safetensors")
    assert all(torch.equal(weights[name], x) for name, x in kept.items())
    assert learn_from(LINES[:4], run=out, rule=[], out=None) == 0
    assert sum(bits(capsysbinary.readouterr().out)[1:]) < 0.5 * sum(bits(said)[1:4])


def test_a_killed_stream_goes_on_with_the_same_numbers(
    learn_from, untrained, capsysbinary, tmp_path
):
    assert learn_from(LINES) == 0
    expected = capsysbinary.readouterr().out.splitlines()
    killed = tmp_path / "killed"
    command = [sys.executable, "-m", "linrnn", "stream", str(untrained), *RULE, *ALWAYS]
    command += ["--out", str(killed)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for line, answer in zip(LINES[:11], expected, strict=False):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline().rstrip(b"\n") == answer
        for _ in range(6000):
            if point(killed, 10).exists():
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.stdin.close()
        assert process.wait(timeout=60) == -signal.SIGKILL
    at = max(points(killed)) if points(killed) else 0
    assert at in (10, 11)
    point(killed, 12).with_name(f".{point(killed, 12).name}.0a1b").write_bytes(b"half")
    assert learn_from(LINES, "--from-start", out="killed") == 0
    assert capsysbinary.readouterr().out.splitlines() == expected[at:]
    same_point(point(killed, 30), point(tmp_path / "out", 30))
    assert not [name for name in os.listdir(killed / "stream") if name.startswith(".")]


def same_point(one, other):
    ours, theirs = load_file(one), load_file(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())


def test_lines_that_go_on_need_no_start(learn_from, capsysbinary, tmp_path):
    assert learn_from(LINES) == 0
    expected = capsysbinary.readouterr().out
    assert learn_from(LINES[:7], out="parts") == 0
    assert learn_from(LINES[7:], out="parts") == 0
    assert capsysbinary.readouterr().out == expected
    same_point(point(tmp_path / "parts", 30), point(tmp_path / "out", 30))


def test_a_signal_keeps_what_was_learned(learn_from, capsysbinary, tmp_path, monkeypatch):
    assert learn_from(LINES[:3]) == 0
    expected = capsysbinary.readouterr().out
    real = Lines.__iter__

    def stopped_after_three(self):
        for block in real(self):
            yield block[:3]
            self.stopped = True
            yield block[3:]

    monkeypatch.setattr(Lines, "__iter__", stopped_after_three)
    assert learn_from(LINES, out="stopped") == 130
    assert capsysbinary.readouterr().out == expected
    same_point(point(tmp_path / "stopped", 3), point(tmp_path / "out", 3))


def test_frozen_weights_keep_their_bits(learn_from, tmp_path):
    assert learn_from(LINES[:8]) == 0
    before = load_file(tmp_path / "out" / "model.safetensors")
    assert learn_from(LINES[8:], "--freeze") == 0
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(after[name], x) for name, x in before.items())
    assert (
        load_tree(point(tmp_path / "out", 30))["steps"]
        > load_tree(point(tmp_path / "out", 8))["steps"]
    )
    assert learn_from(LINES) == 0
    moved = load_file(tmp_path / "out" / "model.safetensors")
    assert not all(torch.equal(moved[name], x) for name, x in before.items())


def test_going_back_restores_the_bits(learn_from, capsysbinary, tmp_path):
    assert learn_from(LINES[:20], *ALWAYS) == 0
    assert learn_from(LINES[:18], out="other") == 0
    capsysbinary.readouterr()
    assert learn_from([], "--back-to", "18") == 0
    assert points(tmp_path / "out") == [0, 16, 17, 18]
    ours, theirs = (load_file(tmp_path / n / "model.safetensors") for n in ("out", "other"))
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())
    assert learn_from(LINES[18:]) == 0
    said = capsysbinary.readouterr().out
    assert learn_from(LINES[18:], out="other") == 0
    assert capsysbinary.readouterr().out == said
    assert learn_from([], "--back-to", "0", "--keep", "2") == 0
    assert points(tmp_path / "out") == [0]


def test_lines_that_are_passed_over_leave_no_trace(learn_from, untrained, tmp_path, capsysbinary):
    weights = load_file(untrained / "model.safetensors")
    weights["encoder.weight"][ord("Z")] = 3e38
    run = RunFolder.create(
        tmp_path / "run", RunFolder(untrained).load_config(), RunFolder(untrained).run_files()
    )
    save_tensors(weights, run.model)
    bad = [LINES[0], b"a ZZ\n", *LINES[1:6]]
    assert learn_from(bad, run=run.path, out="a") == 1
    assert b"line 2: the model's outputs" in capsysbinary.readouterr().err
    assert points(tmp_path / "a") == [0, 1]
    assert learn_from(bad, "--skip-invalid", run=run.path, out="b") == 0
    skipped, err = capsysbinary.readouterr()
    assert b"line 2: " in err
    assert learn_from(LINES[:6], run=run.path, out="c") == 0
    assert capsysbinary.readouterr().out == skipped
    ours, theirs = (load_file(tmp_path / n / "model.safetensors") for n in "bc")
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--freeze"], 2, "--freeze must come with --learner"),
        (["--back-to", "0"], 2, "--back-to must come with --learner"),
        (["--learner.window", "8"], 2, "got --learner.window"),
        (["--learner", "bpt"], 2, "Did you mean 'bptt'"),
        (["--learner", "tbptt", "--learner.windw", "8"], 2, "Did you mean --learner.window"),
        (["--learner", "tbptt", "--learner.window", "x"], 2, "must be an integer"),
        (["--learner", "tbptt", "--optim.schedule", "cosine"], 2, "got --optim.schedule"),
        (["--learner", "tbptt", "--state", "s"], 2, "--state must come without --learner"),
        (["--learner", "tbptt", "--every", "0"], 2, "every must be"),
        (["--learner", "tbptt", "--checkpoint-minutes", "-1"], 2, "--checkpoint-minutes must be"),
        (["--learner", "tbptt", "--back-to", "7"], 2, "a checkpoint, 0, got 7"),
        (["--learner", "tbptt", "--out", "RUN"], 1, "Choose another --out"),
    ],
)
def test_what_cannot_be_meant(learn_from, untrained, capsys, arguments, code, words, tmp_path):
    arguments = [str(untrained) if word == "RUN" else word for word in arguments]
    out = "out" if "tbptt" in arguments and "--out" not in arguments else None
    assert learn_from(LINES[:1], *arguments, rule=[], out=out) == code
    assert words in capsys.readouterr().err


def test_a_stream_is_of_one_rule_and_one_process(learn_from, tmp_path, capsys):
    assert learn_from(LINES[:2]) == 0
    other = ["--learner", "tbptt"]
    assert learn_from(LINES[:2], rule=other) == 1
    assert "got another optim" in capsys.readouterr().err
    out = tmp_path / "out"
    with RunFolder(out).locked():
        assert learn_from(LINES[:2]) == 1
    assert "one process at a time" in capsys.readouterr().err
    assert main(["train", "--resume", str(out)]) == 1
    assert "those of a stream" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_named(learn_from, tmp_path, capsys):
    assert learn_from(LINES[:3], *ALWAYS) == 0
    newest = point(tmp_path / "out", 3)
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-7] + bytes(7))
    assert learn_from(LINES[3:5]) == 1
    assert f"{newest}: the file must be as it was written" in capsys.readouterr().err
    newest.write_bytes(whole)
    tree = load_tree(newest)
    for name, value in (("steps", -1), ("optimizer", {"state": {0: 3}}), ("learner", {"x": 1})):
        save_tree({**tree, name: value}, newest)
        assert learn_from(LINES[3:5]) == 1
        assert f"{newest}: the file must be a checkpoint" in capsys.readouterr().err
    assert learn_from(LINES[2:5], "--back-to", "2") == 0


def test_the_next_token_needs_no_other_target(learn_from, capsys):
    assert learn_from(LINES[:1], "--target", "last") == 2
    assert "to which the next token is the target" in capsys.readouterr().err
