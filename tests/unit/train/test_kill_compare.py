"""A comparison that is killed goes on with the same command, and leaves no process behind."""

import os
import signal
import time
from pathlib import Path

import pytest

from linrnn import recipes
from linrnn.compare import Entry, compare
from linrnn.train.checkpoint import load_tree
from linrnn.train.folder import RunFolder

pytestmark = [
    pytest.mark.unchecked,
    pytest.mark.skipif(os.name == "nt", reason="there are no such signals on Windows"),
]

STEPS = 120  # of a run: too many to be over before a signal comes
TINY = "--model.d-model 6 --model.n-layers 1 --train.batch-size 512 --train.threads 1"
OPTIONS = [*TINY.split(), "--train.epochs", str(STEPS // 3)]
COMMAND = ["compare", "digits", "--mixers", "lru", "--seeds", "1", *OPTIONS, "--out"]


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


class Comparison:
    """A comparison of one mixer and one seed."""

    def __init__(self, server, place):
        self.server, self.out, self._log = server, place / "out", place / "log"
        self.run = RunFolder(self.out / "lru-seed0")

    def start(self):
        return self.server.start([*COMMAND, self.out], log=str(self._log))

    def log(self):
        return self._log.read_text()

    def step(self):
        return load_tree(self.run.last)["run"]["step"] if self.run.last.exists() else 0

    def trained_since(self, step):
        wait_for(lambda: self.step() > step)

    def worker(self):
        """The process id of whoever trains."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            if str(self.run.path).encode() in path.read_bytes().split(b"\0"):
                return int(path.parent.name)
        return None


@pytest.fixture
def comparison(server, tmp_path):
    return Comparison(server, tmp_path)


def test_no_process_trains_on_when_the_comparison_is_killed(comparison):
    pid = comparison.start()
    comparison.trained_since(0)
    os.kill(pid, signal.SIGKILL)
    assert comparison.server.wait(pid) == -signal.SIGKILL
    comparison.run.wait_until_free(60)
    with comparison.run.locked():
        assert 0 < comparison.step() < STEPS
    assert not comparison.run.result.exists()


@pytest.mark.slow
def test_comparison_killed_in_every_way_ends_as_if_it_was_not(comparison, tmp_path):
    pid = comparison.start()
    comparison.trained_since(0)
    os.kill(pid, signal.SIGTERM)
    assert comparison.server.wait(pid) == 130
    assert "the same command continues there" in comparison.log()
    stopped = comparison.step()
    assert 0 < stopped < STEPS

    pid = comparison.start()
    comparison.trained_since(stopped)
    os.kill(pid, signal.SIGKILL)
    assert comparison.server.wait(pid) == -signal.SIGKILL

    pid = comparison.start()  # at once: the worker of the one before may still be there
    before = comparison.step()
    comparison.trained_since(before + 3)
    os.kill(comparison.worker(), signal.SIGKILL)
    assert comparison.server.wait(pid) == 0
    assert "lru seed 0: failed: ended by SIGKILL" in comparison.log()
    assert "1 failed" in (comparison.out / "compare.md").read_text()

    assert comparison.server.wait(comparison.start()) == 0, comparison.log()
    assert "(tried again; before: ended by SIGKILL)" in comparison.log()
    assert "failed" not in (comparison.out / "compare.md").read_text()
    assert comparison.worker() is None
    alone = tmp_path / "alone"
    command = ["train", "digits", "--mixer", "lru", *OPTIONS, "--out", alone]
    assert comparison.server.run(command) == 0
    for name in ("config.json", "model.safetensors"):
        assert (comparison.run.path / name).read_bytes() == (alone / name).read_bytes()


def test_run_that_failed_is_tried_again(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\ncat > /dev/null\nkill -KILL $$\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.setattr("linrnn.compare._compare.write_report", lambda *_: None)
    entries = [Entry(label="a", config=recipes.load("digits").config)]
    said = []
    for _ in range(2):
        (row,) = compare(entries, seeds=(0,), out=tmp_path / "out", say=said.append)
        assert row.failures == ("ended by SIGKILL",)
    python.write_text("#!/bin/sh\ncat > /dev/null\necho out of memory >&2\nexit 1\n")
    compare(entries, seeds=(0,), out=tmp_path / "out", say=said.append)
    assert said == [
        "1/1: a seed 0: failed: ended by SIGKILL",
        "1/1: a seed 0: failed: ended by SIGKILL (tried again; before: ended by SIGKILL)",
        "1/1: a seed 0: failed: out of memory (tried again; before: ended by SIGKILL)",
    ]


@pytest.mark.slow
def test_runs_at_once_end_with_the_comparison_and_go_on_with_it(server, tmp_path):
    out = tmp_path / "out"
    command = ["compare", "digits", "--mixers", "lru,mingru", "--seeds", "2", "--jobs", "3"]
    command = [*command, *OPTIONS, "--out", out]
    log = tmp_path / "log"

    def saved():
        return {run: run.stat().st_mtime_ns for run in out.glob("*/checkpoints/last.safetensors")}

    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 130)):
        before = saved()
        pid = server.start(command, log=str(log))
        wait_for(lambda old=before: len(saved().items() - old.items()) >= 3)  # three at once
        ended = {*out.glob("*/result.json")}  # the first of them may have, where all else is slow
        os.kill(pid, number)
        assert server.wait(pid) == code, log.read_text()
        for path in saved():
            run = RunFolder(path.parents[1])
            run.wait_until_free(60)
            with run.locked():
                assert run.result in ended or not run.result.exists()
        assert not list(out.glob("*/failure.txt"))
    assert server.wait(server.start(command, log=str(log))) == 0
    results = [RunFolder(path.parent).read_result() for path in out.glob("*/result.json")]
    assert [result.steps for result in results] == [STEPS] * 4
    assert "failed" not in (out / "compare.md").read_text()
    alone = tmp_path / "alone"
    assert server.run(["train", "digits", "--mixer", "lru", *OPTIONS, "--out", alone]) == 0
    weights = "model.safetensors"
    assert (out / "lru-seed0" / weights).read_bytes() == (alone / weights).read_bytes()


@pytest.mark.slow
def test_two_processes_share_the_runs_and_both_end_with_the_table(server, tmp_path):
    command = ["compare", "digits", "--mixers", "lru", "--seeds", "4", *OPTIONS, "--out"]
    logs = [tmp_path / name for name in ("one", "two")]
    pids = [server.start([*command, tmp_path / "out"], log=str(log)) for log in logs]
    assert [server.wait(pid) for pid in pids] == [0, 0], [log.read_text() for log in logs]
    table = (tmp_path / "out" / "compare.md").read_text()
    for log in logs:
        assert table in log.read_text()
        assert log.read_text().count(": test accuracy") == 4
    results = [
        RunFolder(path.parent).read_result() for path in (tmp_path / "out").glob("*/result.json")
    ]
    assert [result.steps for result in results] == [STEPS] * 4
