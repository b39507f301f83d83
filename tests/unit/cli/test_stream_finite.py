"""A stream is not poisoned: a line it cannot follow is named, and changes nothing that is kept."""

import itertools
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from linrnn.cli import main
from linrnn.cli._line.lines import BLOCK, Lines
from linrnn.cli._verbs.watch import Answers, Surprise, Threshold, watch
from linrnn.state import leaves
from linrnn.streaming import Session
from linrnn.tasks.lm import LMOptions
from linrnn.train import Config, ModelConfig, load_model
from linrnn.train.checkpoint import save_tensors
from linrnn.train.folder import RunFolder
from linrnn.train.model import build_model, build_task

pytestmark = pytest.mark.unchecked

HUGE = "3e38"  # fits float32; what weights and gates make of it does not
KINDS = ("pools", "steps", "text")
GOOD = {
    "pools": [b"0.25\n", b"0.5 0.125\n", b"-1\n", b"0.75\n", b"1\n", b"0.5\n"],
    "steps": [b"0.25\n", b"0.5 0.125\n", b"-1\n", b"0.75\n", b"1\n", b"0.5\n"],
    "text": [b"the cat\n", b"sat\n", b"on the mat\n", b"and\n", b"the dog\n", b"log\n"],
}
BAD = {"pools": f"{HUGE}\n".encode(), "steps": f"1 {HUGE} 1\n".encode(), "text": b"a ZZ\n"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Untrained models: one that pools over time, one with an answer a step, one of text."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("the cat sat on the mat\n" * 80)
    options = LMOptions(data=(str(folder / "text.txt"),), tokenizer="byte", length=32)
    tasks = {
        "pools": ("digits", None, "mean"),
        "steps": ("mackey_glass", None, "none"),
        "text": ("lm", options, "none"),
    }
    os.environ["LINRNN_DATA"] = str(folder / "cache")
    try:
        for name, (task, options, pool) in tasks.items():
            shape = ModelConfig(d_model=6, n_layers=2, norm="none", pool=pool)
            config = Config(task=task, task_options=options, mixer="lru", model=shape)
            _write(config, folder / name)
    finally:
        del os.environ["LINRNN_DATA"]
    return folder


def _write(config, path):
    task = build_task(config)
    folder = RunFolder.create(path, config, task.run_files())
    weights = build_model(config, task).state_dict()
    if config.task == "lm":
        weights["encoder.weight"][ord("Z")] = float(HUGE)
    elif config.task == "digits":
        weights["encoder.weight"] *= 16  # by which the task divides
    save_tensors(weights, folder.model)


@pytest.fixture
def feed(monkeypatch, tmp_path):
    """Run ``linrnn stream`` on some lines."""

    def stream(lines, *arguments):
        (tmp_path / "stdin").write_bytes(b"".join(lines))
        with open(tmp_path / "stdin") as file:
            monkeypatch.setattr(sys, "stdin", file)
            return main(["stream", *map(str, arguments)])

    return stream


def same(kind, out, expected):
    """Equal but for rounding; of bits one decimal is printed."""
    allowed = 0.1001 if kind == "text" else 1e-3
    for line, other in itertools.zip_longest(
        out.splitlines(), expected.splitlines(), fillvalue=b""
    ):
        for word, theirs in itertools.zip_longest(line.split(), other.split()):
            if word != theirs:
                assert abs(float(word) - float(theirs)) <= allowed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [0, 3, 6])
def test_the_line_is_named_and_the_state_is_that_before_it(
    runs, feed, capsysbinary, tmp_path, kind, place
):
    lines = [*GOOD[kind][:place], BAD[kind], *GOOD[kind][place:]]
    state = tmp_path / "state"
    assert feed(lines, runs / kind, "--state", state) == 1
    out, err = capsysbinary.readouterr()
    assert f"line {place + 1}: the model's outputs and state must be finite".encode() in err
    assert b"--skip-invalid" in err
    assert all(x.isfinite().all() for x in load_file(state).values())
    assert feed(GOOD[kind][place:], runs / kind, "--state", state) == 0
    rest = capsysbinary.readouterr().out
    assert feed(GOOD[kind], runs / kind) == 0
    same(kind, out + rest, capsysbinary.readouterr().out)


@pytest.mark.parametrize("kind", KINDS)
def test_skipped_lines_leave_no_trace(runs, feed, capsysbinary, tmp_path, kind):
    good, bad = GOOD[kind], BAD[kind]
    lines = [bad, good[0], good[1], bad, bad, *good[2:], bad]
    assert feed(lines, runs / kind, "--skip-invalid", "--state", tmp_path / "a") == 0
    out, err = capsysbinary.readouterr()
    assert [line.split(b":")[1] for line in err.splitlines()] == [
        f" line {n}".encode() for n in (1, 4, 5, 10)
    ]
    assert feed(good, runs / kind, "--state", tmp_path / "b") == 0
    same(kind, out, capsysbinary.readouterr().out)
    found, expected = load_file(tmp_path / "a"), load_file(tmp_path / "b")
    for name, x in expected.items():
        torch.testing.assert_close(found[name], x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["pools", "steps"])
@pytest.mark.parametrize(
    "number", ["1e39", "-1e39", "1e400", "inf", "-Infinity", "nan", "1_0", "٣"]
)
def test_numbers_that_do_not_fit_are_refused_at_their_line(runs, feed, capsys, kind, number):
    lines = [b"0.5\n", f"1 {number}\n".encode(), b"0.5\n"]
    assert feed(lines, runs / kind) == 1
    out, err = capsys.readouterr()
    assert "line 2: the " in err
    assert number in err
    assert len(out.splitlines()) == 1
    assert feed(lines, runs / kind, "--skip-invalid") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_state_that_is_not_finite_is_not_gone_on_from(runs, feed, capsys, tmp_path):
    model, _, _ = load_model(runs / "steps")
    session = Session(model, allow_nonfinite=True)
    session.feed([[float("nan")]])
    session.save(tmp_path / "state")
    before = (tmp_path / "state").read_bytes()
    assert feed(GOOD["steps"], runs / "steps", "--state", tmp_path / "state") == 1
    assert "the state must be finite" in capsys.readouterr().err
    assert (tmp_path / "state").read_bytes() == before


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_comes_before_the_next_line(runs, kind):
    command = [sys.executable, "-m", "linrnn", "stream", str(runs / kind)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for line in GOOD[kind][:3]:
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline()
        process.stdin.close()
        assert process.wait(timeout=60) == 0


def test_a_block_of_lines_is_answered_as_far_as_it_was_read(runs):
    model, task, _ = load_model(runs / "pools")
    watcher = Answers(model, task)
    for read, _ in enumerate(watch(watcher, [b"0.5\n"] * 5, 1, None), 1):
        assert watcher.stream.steps == read
    model, task, _ = load_model(runs / "steps")
    watcher = Answers(model, task)
    answers = watch(watcher, [b"0.5\n"] * (2 * watcher.stream.chunk), 1, None)
    assert len(next(answers).splitlines()) == watcher.stream.steps == watcher.stream.chunk
    model, task, _ = load_model(runs / "text")
    watcher = Surprise(model, task.tokenizer, Threshold(), only_flagged=False)
    answers = watch(watcher, [b"cats\n"] * watcher.stream.chunk, 1, None)
    assert len(next(answers).splitlines()) * 5 == watcher.stream.steps <= watcher.stream.chunk


def test_no_line_is_cut_where_a_block_ends(tmp_path):
    content = b"".join(b"%d.25\n" % i for i in range(BLOCK // 4))
    long = b" ".join(b"%d.25" % i for i in range(BLOCK // 4)) + b"\n"
    (tmp_path / "x").write_bytes(content + long)
    with open(tmp_path / "x") as file, Lines(file.fileno()) as blocks:
        found = [line for block in blocks for line in block]
    count = content.count(b"\n")
    assert b"".join(found[:count]) == content
    assert all(line.endswith(b"\n") for line in found[:count])
    words = [word for line in found[count:] for word in line.split()]
    assert words == long.split()
    assert len(found) > count + 1  # memory is bounded all the same


def test_bits_of_the_state_are_those_of_the_lines_that_were_read(runs):
    """Runs of the same lines cut into calls: no bit remembers the skipped line."""
    model, task, _ = load_model(runs / "pools")
    one, other = Answers(model, task), Answers(model, task)
    lines = GOOD["pools"]
    reported = []
    got = list(watch(one, [lines[0], BAD["pools"], *lines[1:]], 1, reported.append))
    assert got == list(watch(other, lines, 1, None))
    assert len(reported) == 1
    for h, expected in zip(leaves(one.stream.state), leaves(other.stream.state), strict=True):
        assert torch.equal(h, expected)
