"""Work that several processes share: nothing is done twice, and everyone gets it all."""

import io
import json
import os
import signal
import threading
from contextlib import nullcontext

import pytest

from linrnn import recipes
from linrnn._files.storage import exclusive
from linrnn.compare import Entry, _helper, _runs, _shared, compare
from linrnn.compare._process import train_in_process
from linrnn.compare._shared import in_turn
from linrnn.errors import ArgumentError, InterruptedRunError, RunFolderError
from linrnn.train import Result
from linrnn.train.config import to_json
from linrnn.train.folder import RunFolder

pytestmark = pytest.mark.skipif(os.name == "nt", reason="nothing is locked on Windows")

ENTRIES = [Entry(label=name, config=recipes.load("digits").config) for name in "abc"]


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(_shared, "_WAIT", 0.02)


@pytest.fixture
def trained(monkeypatch):
    """Runs are not trained: each leaves its seed as the accuracy. The names of those so far."""
    names = []

    def train(folder, config, jobs):
        names.append(folder.name)
        folder.mkdir(parents=True)
        done = {"folder": folder, "test_metric": float(config.seed), "test_loss": 0.1}
        done |= {"validation_metric": 0.5, "best_step": 1, "steps": 2, "seconds": 1.0}
        sizes = {"n_parameters": 3, "n_state": 4}
        result = Result(task=config.task, mixer=config.mixer, metric="accuracy", **done, **sizes)
        RunFolder(folder).write_result(result)

    monkeypatch.setattr(_runs, "train_in_process", train)
    monkeypatch.setattr("linrnn.compare._compare.write_report", lambda *_: None)
    return names


def at_once(*calls):
    """Results of calls in threads of their own."""
    found = [None] * len(calls)

    def keep(place):
        found[place] = calls[place]()

    threads = [threading.Thread(target=keep, args=[place]) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_worker_gets_all_pieces_and_no_two_at_once(tmp_path, workers):
    at_hand, twice = set(), []

    def work():
        got = []
        with in_turn(range(20), lambda n: tmp_path / f".{n}.lock", lambda n: None) as pieces:
            for piece in pieces:
                twice.extend(at_hand & {piece})
                at_hand.add(piece)
                threading.Event().wait(0.001)
                at_hand.discard(piece)
                got.append(piece)
        return got

    for got in at_once(*[work] * workers):
        assert sorted(got) == list(range(20))
    assert not twice


def test_two_comparisons_train_each_run_once_and_return_the_same_rows(tmp_path, trained):
    def call():
        return compare(ENTRIES, seeds=(0, 1, 2), out=tmp_path)

    one, two = at_once(call, call)
    assert one == two
    assert [row.values for row in one] == [(0.0, 1.0, 2.0)] * 3
    assert sorted(trained) == sorted(f"{name}-seed{seed}" for name in "abc" for seed in range(3))


def test_what_another_process_trains_is_left_to_it_and_said(tmp_path, trained):
    said, held, done = [], threading.Event(), threading.Event()

    def say(line):
        said.append(line)
        if "other processes" in line:
            done.set()

    def other():
        with exclusive(tmp_path / ".a-seed0.lock"):
            held.set()  # the file is there before anyone holds it
            done.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    assert held.wait(60)
    rows = compare(ENTRIES, seeds=(0,), out=tmp_path, say=say)
    thread.join()
    assert trained == ["b-seed0", "c-seed0", "a-seed0"]
    assert [row.label for row in rows] == ["a", "b", "c"]
    assert said[2] == "the last run is being trained by other processes"
    assert [line.split(":")[0] for line in said if "other" not in line] == ["1/3", "2/3", "3/3"]


def test_a_run_that_failed_with_another_process_just_now_is_not_tried_again(
    tmp_path, trained, monkeypatch
):
    said, there = [], threading.Event()

    def fail(folder, config, jobs):
        there.wait(60)
        return f"out of memory, {len(said)}"

    def say(line):
        said.append(line)
        there.set()  # by the one that waits: the other has nothing to say before it is done

    def call():
        return compare(ENTRIES[:1], seeds=(0,), out=tmp_path, say=say)

    monkeypatch.setattr(_runs, "train_in_process", fail)
    one, two = at_once(call, call)
    assert one == two
    assert one[0].failures == ("out of memory, 1",)
    assert said[1:] == ["1/1: a seed 0: failed: out of memory, 1"] * 2
    call()
    assert said[-1].endswith("(tried again; before: out of memory, 1)")


def test_a_process_that_waits_can_be_stopped(tmp_path, monkeypatch, trained):
    monkeypatch.setattr(_shared, "_WAIT", 60.0)
    (tmp_path / "out").mkdir()

    def stop(line):
        if "other processes" in line:
            threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGTERM]).start()

    with (
        exclusive(tmp_path / "out" / ".a-seed0.lock"),
        pytest.raises(InterruptedRunError, match=r"stopped in .*out; the same command continues"),
    ):
        compare(ENTRIES[:1], seeds=(0,), out=tmp_path / "out", say=stop)
    assert not trained


def test_a_lock_is_let_go_of_when_a_run_raises(tmp_path, trained, monkeypatch):
    def fail(folder, config, jobs):
        raise InterruptedRunError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(_runs, "train_in_process", fail)
        with pytest.raises(InterruptedRunError) as kept:
            compare(ENTRIES, seeds=(0,), out=tmp_path)
    assert kept.value.__traceback__  # an interactive session holds it
    compare(ENTRIES, seeds=(0,), out=tmp_path)
    assert len(trained) == 3


def test_a_lock_that_cannot_be_made(tmp_path, trained):
    (tmp_path / ".a-seed0.lock").mkdir()
    with pytest.raises(RunFolderError, match=r"\.a-seed0\.lock: the lock must be a file"):
        compare(ENTRIES, seeds=(0,), out=tmp_path)


@pytest.mark.unchecked
@pytest.mark.parametrize("jobs", [0, 257, 1.5])
def test_a_number_of_runs_at_once_that_cannot_be(tmp_path, jobs):
    with pytest.raises(ArgumentError, match=r"compare: jobs must be an integer from 1 to 256, got"):
        compare(ENTRIES, seeds=(0,), out=tmp_path / "out", jobs=jobs)
    assert not (tmp_path / "out").exists()


def test_no_runs_at_once_where_nothing_is_locked(monkeypatch):
    monkeypatch.setattr(_shared.os, "name", "nt")
    _shared.check_jobs("sweep", 1)
    with pytest.raises(ArgumentError, match="sweep: jobs must be 1 on Windows, where nothing"):
        _shared.check_jobs("sweep", 2)


@pytest.mark.parametrize(("jobs", "done", "started"), [(1, 0, 0), (4, 0, 2), (2, 0, 1), (4, 2, 0)])
def test_no_more_processes_than_there_are_runs_for(
    tmp_path, trained, monkeypatch, jobs, done, started
):
    asked = []
    monkeypatch.setattr(_runs, "helpers", lambda n, *_: asked.append(max(0, n)) or nullcontext())
    for entry in ENTRIES[:done]:
        _runs.train_in_process(tmp_path / f"{entry.label}-seed0", entry.config, 1)
    compare(ENTRIES, seeds=(0,), out=tmp_path, jobs=jobs)
    assert asked == [started]


def test_a_helper_does_its_part_without_helpers_of_its_own(tmp_path, trained, monkeypatch):
    entries = [{"label": e.label, "folder": "", "config": to_json(e.config)} for e in ENTRIES]
    told = {"entries": entries, "seeds": [0], "out": str(tmp_path), "jobs": 3, "failed": {}}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(told)))
    monkeypatch.setattr(_runs, "helpers", None)
    assert _helper.main([]) == 0
    assert trained == ["a-seed0", "b-seed0", "c-seed0"]


def test_runs_at_once_have_their_share_of_the_processors(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("torch.get_num_threads", lambda: 8)
    asked = []

    def start(module, arguments, held, environment):
        asked.append(environment.get("OMP_NUM_THREADS"))
        raise KeyboardInterrupt

    monkeypatch.setattr("linrnn.compare._process.start", start)
    for jobs in (1, 3, 16):
        with pytest.raises(KeyboardInterrupt):
            train_in_process(tmp_path, ENTRIES[0].config, jobs)
    assert asked == [None, "2", "1"]


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "verb",
    [["compare", "digits", "--mixers", "lru"], ["sweep", "digits", "--over", "optim.lr=1e-3,2e-3"]],
)
def test_the_command_line_takes_as_many_jobs_as_can_be(tmp_path, monkeypatch, capsys, verb):
    from linrnn.cli import main

    monkeypatch.chdir(tmp_path)
    for jobs, words in (("0", "jobs must be an integer of at least 1"), ("1000", "from 1 to 256")):
        assert main([*verb, "--jobs", jobs, "-q"]) == 2
        assert words in capsys.readouterr().err
    assert not list(tmp_path.glob("**/*-seed*"))


def test_helpers_that_cannot_begin_leave_their_part_to_the_others(tmp_path, monkeypatch, trained):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    compare(ENTRIES, seeds=(0,), out=tmp_path / "out", jobs=3)
    assert len(trained) == 3
