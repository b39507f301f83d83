"""Work that several processes share: nothing is done twice, and everyone gets it all."""

import os
import signal
import threading

import pytest

from linrnn import recipes
from linrnn._storage import exclusive
from linrnn.compare import Entry, _runs, _shared, compare
from linrnn.compare._shared import in_turn
from linrnn.errors import InterruptedRunError, RunFolderError
from linrnn.train import Result
from linrnn.train._folder import RunFolder

pytestmark = pytest.mark.skipif(os.name == "nt", reason="nothing is locked on Windows")

ENTRIES = [Entry(label=name, config=recipes.load("digits").config) for name in "abc"]


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(_shared, "_WAIT", 0.02)


@pytest.fixture
def trained(monkeypatch):
    """Runs are not trained: each leaves its seed as the accuracy. The names of those so far."""
    names = []

    def train(folder, config):
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
    """What calls in threads of their own return."""
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
    said, done = [], threading.Event()

    def say(line):
        said.append(line)
        if "other processes" in line:
            done.set()

    def other():
        with exclusive(tmp_path / ".a-seed0.lock"):
            done.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    while not (tmp_path / ".a-seed0.lock").exists():
        pass
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

    def fail(folder, config):
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
        pytest.raises(InterruptedRunError, match=r"stopped in .*out; the same command goes on"),
    ):
        compare(ENTRIES[:1], seeds=(0,), out=tmp_path / "out", say=stop)
    assert not trained


def test_a_lock_is_let_go_of_when_a_run_raises(tmp_path, trained, monkeypatch):
    def fail(folder, config):
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
