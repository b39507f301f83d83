"""Killed anywhere, a run goes on and ends as if nothing had happened: the same bits."""

import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from linrnn.train.checkpoint import load_tree
from linrnn.train.folder import RunFolder

pytestmark = [
    pytest.mark.unchecked,
    pytest.mark.skipif(os.name == "nt", reason="there are no such signals on Windows"),
]

# two epochs of three steps with a checkpoint after each, and every source of randomness in use
TINY = "--model.d-model 6 --model.n-layers 1 --model.dropout 0.2 --mixer.d-state 4 --optim.lr 0.01"
SHORT = "--train.batch-size 512 --train.epochs 2 --train.threads 1 --train.checkpoint-minutes 1e-9"
OPTIONS = f"{TINY} {SHORT}".split()
ROLLBACK = ["--train.on-nan", "rollback"]  # one file more
SEED = 1  # its second epoch is better than its first


class Runs:
    """Runs of one configuration in folders of their own, killed and continued."""

    def __init__(self, server, place, options=()):
        self.server, self.place = server, place
        self.options = [*OPTIONS, "--seed", str(SEED), *options]

    def command(self, folder):
        """The command of a user: the same again until a run can be resumed."""
        if (folder / "config.json").is_file():
            return ["train", "--resume", folder]
        return ["train", "digits", *self.options, "--out", folder]

    def start(self, name, **job):
        folder = self.place / name
        log, order = (str(self.place / f"{name}.{end}") for end in ("log", "order"))
        return self.server.start(
            self.command(folder), log=log, folder=str(folder), order=order, **job
        )

    def run(self, name, **job):
        return self.server.wait(self.start(name, **job))

    def log(self, name):
        return (self.place / f"{name}.log").read_text()

    def order(self, name):
        """The hashes of the batches that were seen, by step."""
        seen = {}
        for line in (self.place / f"{name}.order").read_text().splitlines():
            step, digest = line.split()
            seen.setdefault(int(step), set()).add(digest)
        return seen

    def boundaries(self, name, **job):
        names = self.place / f"{name}.names"
        assert self.run(name, names=str(names), **job) == 0, self.log(name)
        return names.read_text().splitlines()

    def differences(self, name, reference="reference"):
        """Files of a finished run that differ from one that was never interrupted."""
        ours, theirs = self.place / name, self.place / reference
        found = [f"left behind: {p}" for p in ours.rglob(".*") if p.name != ".lock"]
        for file in ("last", "best"):
            path = f"checkpoints/{file}.safetensors"
            found += unequal(state(ours / path), state(theirs / path), file)
        for file in ("config.json", "model.safetensors"):
            if (ours / file).read_bytes() != (theirs / file).read_bytes():
                found.append(file)
        if rows(ours) != rows(theirs):
            found.append("metrics.csv")
        results = [RunFolder(folder).read_result() for folder in (ours, theirs)]
        if results[0].test_loss != results[1].test_loss or results[0] is None:
            found.append("result.json")
        if self.order(name) != self.order(reference):
            found.append("order of the data")
        return found


def state(path):
    """The part of a checkpoint that decides how a run goes on; seconds do not."""
    tree = load_tree(path)
    run = {k: v for k, v in tree["run"].items() if k != "seconds"}
    kept = {k: tree[k] for k in ("state_dict", "optimizer_states", "lr_schedulers")}
    return kept | {"run": run, "metrics": [line.rsplit(",", 1)[0] for line in lines(tree)]}


def lines(tree):
    return tree["metrics"].splitlines()


def unequal(a, b, where):
    if type(a) is not type(b):
        return [where]
    if isinstance(a, torch.Tensor):
        return [] if a.dtype == b.dtype and torch.equal(a, b) else [where]
    if isinstance(a, dict):
        keys = [] if a.keys() == b.keys() else [where]
        return keys + [x for k in a.keys() & b.keys() for x in unequal(a[k], b[k], f"{where}.{k}")]
    if isinstance(a, list | tuple):
        pairs = enumerate(zip(a, b, strict=False))
        sizes = [] if len(a) == len(b) else [where]
        return sizes + [d for i, (x, y) in pairs for d in unequal(x, y, f"{where}.{i}")]
    return [] if a == b or (a != a and b != b) else [where]


def rows(folder):
    """metrics.csv without the column of seconds."""
    return [line.rsplit(",", 1)[0] for line in (folder / "metrics.csv").read_text().splitlines()]


def whole(folder):
    """Raise unless every file under its own name is one that was written to its end."""
    for path in folder.rglob("*.safetensors"):
        if not path.name.startswith("."):
            if path.name == "model.safetensors":
                RunFolder(folder).weights()
            else:
                load_tree(path)
    if (folder / "config.json").exists():
        RunFolder(folder).load_config()
        RunFolder(folder).read_result()


@pytest.fixture(scope="module")
def runs(server, tmp_path_factory):
    runs = Runs(server, tmp_path_factory.mktemp("runs"))
    assert runs.run("reference") == 0, runs.log("reference")
    assert RunFolder(runs.place / "reference").read_result().best_step == 6
    return runs


def chain(runs, name, ways):
    """Kill, go on, kill, ... each in the next way, until the run ends; how often it was killed."""
    for count, way in enumerate(ways):
        code = way(name)
        if code == 0:
            return count
        assert code == -signal.SIGKILL, runs.log(name)
        whole(runs.place / name)
    raise AssertionError("it never ends")


def test_killed_at_boundary_after_boundary(runs):
    places = itertools.chain([3, 7, 29], itertools.cycle([26, 31, 34]))
    kills = chain(runs, "chain", (lambda name, at=at: runs.run(name, at=at) for at in places))
    assert kills >= 5
    assert runs.differences("chain") == []


@pytest.fixture(scope="module")
def names(runs):
    """The changes of a folder in a whole run, one after the other."""
    return runs.boundaries("names")


def test_disk_has_a_file_before_it_is_renamed_and_its_folder_after(names):
    temporary = re.compile(r"before os\.rename (\S*\.\w{8})")
    renamed = [
        (i, found[1]) for i, name in enumerate(names) if (found := temporary.fullmatch(name))
    ]
    assert len(renamed) > 10
    for i, name in renamed:
        written = names[names.index(f"before open {name}") : i + 2]
        assert written[:3] == [f"before open {name}", "inside write", "before fsync"]
        assert written[-2:] == [f"before os.rename {name}", "before fsync"]


def test_tensorboard_shows_no_step_twice(runs, names):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    at = [i for i, name in enumerate(names, 1) if name.startswith("before open metrics.csv")]
    # when TensorBoard has the second epoch as well, and no checkpoint has
    assert runs.run("board", at=at[1] + 3) == -signal.SIGKILL
    assert runs.run("board") == 0
    found = []
    for name in ("board", "reference"):
        board = EventAccumulator(str(runs.place / name / "tensorboard"))
        board.Reload()
        events = board.Scalars("validation/loss")
        found.append([(e.step, e.value) for e in events])
    assert found[0] == found[1]
    assert [step for step, _ in found[0]] == [3, 6]


def killed_later(runs, name, seconds):
    """A run that is sent SIGKILL after some time, unless it has ended before."""
    pid = runs.start(name)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)  # until it is waited for, an ended process keeps its id
    return runs.server.wait(pid)


def kill_at_random(runs, count, seed):
    """Chains of kills at moments from nowhere to the end of a run, so many in all."""
    begin = time.monotonic()
    assert runs.run(f"timed-{seed}") == 0
    longest, moments, kills = time.monotonic() - begin, random.Random(seed), 0
    for link in itertools.count():
        name = f"random-{seed}-{link}"
        ways = (
            (lambda name: killed_later(runs, name, moments.uniform(0, longest)))
            if i < count - kills
            else runs.run
            for i in itertools.count()
        )
        kills += chain(runs, name, ways)
        assert runs.differences(name) == []
        if kills == count:
            return


def test_killed_at_random_moments(runs):
    kill_at_random(runs, 4, seed=0)


@pytest.mark.slow
def test_killed_at_fifty_random_moments(runs):
    kill_at_random(runs, 50, seed=1)


@pytest.mark.slow
def test_killed_at_every_boundary(server, tmp_path):
    runs = Runs(server, tmp_path, ROLLBACK)
    names = runs.boundaries("reference")
    assert len(names) > 100
    wrong = {}
    for at, name in enumerate(names, 1):
        folder = tmp_path / "run"
        assert runs.run("run", at=at) == -signal.SIGKILL, name
        whole(folder)
        assert runs.run("run") == 0, (name, runs.log("run"))
        if differences := runs.differences("run"):
            wrong[f"{at}: {name}"] = differences
        shutil.rmtree(folder)
        (tmp_path / "run.order").unlink()
    assert wrong == {}


@pytest.mark.slow
def test_killed_as_a_program_of_its_own(runs):
    """Nothing is forked, patched or prepared here: the command as a user has it."""
    folder, moments = runs.place / "program", random.Random(3)
    kills = 0
    while True:
        process = subprocess.Popen(
            [sys.executable, "-m", "linrnn", *map(str, runs.command(folder))],
            stdout=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        checkpoint = folder / "checkpoints" / "last.safetensors"
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        while kills < 5 and process.poll() is None:
            if checkpoint.exists() and checkpoint.stat().st_mtime_ns != before:
                time.sleep(moments.uniform(0, 0.05))
                process.kill()
            time.sleep(0.001)
        if process.wait() == 0:
            break
        assert process.returncode == -signal.SIGKILL
        kills += 1
        whole(folder)
    assert kills >= 2
    shutil.copy(runs.place / "reference.order", runs.place / "program.order")  # not looked at
    assert runs.differences("program") == []


def outcome(runs, name, text, **job):
    """Errors after a kill at the last boundary whose name begins so, and a resume."""
    names = runs.boundaries(f"{name}-whole", **job)
    at = max(i for i, found in enumerate(names, 1) if found.startswith(text))
    assert runs.run(name, at=at, **job) == -signal.SIGKILL
    if runs.run(name, **job) != 0:
        return [runs.log(name)]
    return runs.differences(name)


@pytest.mark.parametrize(
    ("broken", "boundary"),
    [
        ("written in place", "before open checkpoints/last"),
        ("best not completed", "before open .model"),
    ],
)
def test_a_missing_precaution_is_noticed(runs, broken, boundary):
    name = broken.replace(" ", "-")
    if broken == "best not completed":
        assert outcome(runs, f"{name}-not", boundary) == []
    assert outcome(runs, name, boundary, broken=broken) != []


def test_one_process_at_a_time_and_no_stale_lock(runs):
    pid = runs.start("lock", at=40, signal=signal.SIGSTOP)
    while "T (stopped)" not in status(pid):
        time.sleep(0.01)
    second = ["train", "--resume", runs.place / "lock"]
    log = runs.place / "second.log"
    assert runs.server.run(second, log=str(log)) == 1
    assert "must be trained by one process at a time, got a second one" in log.read_text()
    os.kill(pid, signal.SIGKILL)
    assert runs.server.wait(pid) == -signal.SIGKILL
    assert runs.run("lock") == 0
    assert runs.differences("lock") == []


def status(pid):
    if not Path("/proc/self/status").exists():
        pytest.skip("there is no /proc here")
    return Path(f"/proc/{pid}/status").read_text()


def begun(runs, name, count=1):
    """Wait until so many steps have begun."""
    path = runs.place / f"{name}.order"
    end = time.monotonic() + 60
    while not path.exists() or path.read_text().count("\n") < count:
        assert time.monotonic() < end, runs.log(name)
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_after_the_step_and_a_second_one_at_once(runs, number):
    name = f"signal-{number.name}"
    pid = runs.start(name, step_seconds=0.5)
    begun(runs, name)
    os.kill(pid, number)
    assert runs.server.wait(pid) == 130
    assert "stopped after step 1 of 6; the checkpoint is written" in runs.log(name)
    pid = runs.start(name, step_seconds=60)
    begun(runs, name, 2)
    os.kill(pid, number)
    time.sleep(0.3)
    assert "zombie" not in status(pid)
    begin = time.monotonic()
    os.kill(pid, number)
    assert runs.server.wait(pid) == 130
    assert time.monotonic() - begin < 20
    assert load_tree(runs.place / name / "checkpoints" / "last.safetensors")["run"]["step"] == 1
    assert runs.run(name) == 0
    assert runs.differences(name) == []
