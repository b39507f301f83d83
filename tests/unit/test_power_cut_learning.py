"""`linrnn stream --learner` goes on after a power cut from what it had reported to be saved."""

import re
import sys
from typing import NamedTuple

import pytest
import torch
from power_cut import Disk, few, half_written, materialise
from safetensors.torch import load_file

from linrnn.cli import main
from linrnn.tasks.lm import LMOptions
from linrnn.train import Config, ModelConfig, TrainConfig
from linrnn.train.checkpoint import save_tensors
from linrnn.train.folder import RunFolder
from linrnn.train.learning import Learning
from linrnn.train.model import build_model, build_task

pytest.importorskip("lightning")
pytestmark = pytest.mark.unchecked

LINES = [f"{'the cat sat' if n % 2 else 'on the mat'} {n}\n".encode() for n in range(6)]
OUT = "runs/out"
BACK = 2  # the line that is gone back to


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    """The folder of a byte model that has learned nothing yet."""
    folder = tmp_path_factory.mktemp("untrained")
    (folder / "text.txt").write_text("the cat sat on the mat\n" * 80)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LINRNN_DATA", str(folder / "cache"))
        config = Config(
            task="lm",
            task_options=LMOptions(data=(str(folder / "text.txt"),), tokenizer="byte", length=32),
            mixer="lru",
            model=ModelConfig(d_model=4, n_layers=1, norm="layer", pool="none", dropout=0.0),
            train=TrainConfig(threads=1),
        )
        task = build_task(config)
        run = RunFolder.create(folder / "run", config, task.run_files())
        save_tensors(build_model(config, task).state_dict(), run.model)
    return run.path


@pytest.fixture
def learn(untrained, monkeypatch, tmp_path, capsysbinary):
    """Run the command on some lines: after which line it went on, and what it answered."""

    def stream(out, lines, *arguments):
        (tmp_path / "stdin").write_bytes(b"".join(lines))
        options = ["--learner", "diagonal_rtrl", "--optim.lr", "0.02", "--from-start"]
        options += ["--checkpoint-minutes", "0", "--keep", "4", "--out", str(out)]
        capsysbinary.readouterr()
        with open(tmp_path / "stdin") as file:
            monkeypatch.setattr(sys, "stdin", file)
            code = main(["stream", str(untrained), *options, *arguments])
        answers, remarks = capsysbinary.readouterr()
        assert code == 0, remarks
        return int(re.search(rb"continues after line (\d+)", remarks)[1]), answers.splitlines()

    return stream


def checkpoints(out):
    return {int(path.stem.removeprefix("line-")): path for path in (out / "stream").glob("line-*")}


class Report(NamedTuple):
    """The report of files on the disk, printed or about to be printed."""

    moments: int
    line: int
    points: set[int]


class Recorded:
    """A stream that is learned from, gone back in and learned from again, on a disk.

    Attributes:
        disk: it was recorded on.
        reports: of all that was saved or gone back to, in order.
    """

    def __init__(self, disk, monkeypatch, learn):
        self.disk, self.reports = disk, [Report(0, 0, set())]
        with monkeypatch.context() as patch:
            for name in ("save", "go_on"):
                patch.setattr(Learning, name, self._reporting(getattr(Learning, name)))
            disk.recorded(patch)
            out = disk.root / OUT
            learn(out, LINES[:4])
            learn(out, [], "--back-to", str(BACK))
            learn(out, LINES[:5])

    def _reporting(self, method):
        def reporting(learning, *arguments):
            method(learning, *arguments)
            line, points = learning.position.lines, set(learning.points())
            self.reports.append(Report(len(self.disk.moments), line, points))

        return reporting

    def states(self):
        found = list(self.disk.states(samples=1, done=[report.moments for report in self.reports]))
        assert len(found) > 60
        return found

    def around(self, moment):
        """The last report before a cut, and the one that it may have kept from being made."""
        before = [report for report in self.reports if report.moments <= moment]
        after = [report for report in self.reports if report.moments > moment]
        return before[-1], (after or before[-1:])[0]


def problems(recorded, states, learn, after, whole):
    """Errors of the same command after a power cut; it must not raise."""
    _, expected = learn(whole, LINES)
    final = load_file(checkpoints(whole)[len(LINES)])
    for moment, state in states:
        materialise(state, after)
        out, (last, next_one) = after / OUT, recorded.around(moment)
        if lost := (last.points & next_one.points) - checkpoints(out).keys():
            yield moment, f"has lost the checkpoints after lines {lost}"
        line, answers = learn(out, LINES)
        if not min(last.line, next_one.line) <= line <= max(last.line, next_one.line):
            yield moment, f"goes on after line {line}, not {last.line} or {next_one.line}"
        if answers != expected[line:]:
            yield moment, f"other answers after line {line}"
        found = load_file(checkpoints(out)[len(LINES)])
        if not all(torch.equal(value, found[name]) for name, value in final.items()):
            yield moment, "another checkpoint at the end"
        if left := half_written(out):
            yield moment, f"leaves {left}"


def check(disk, monkeypatch, learn, tmp_path, count):
    recorded = Recorded(disk, monkeypatch, learn)
    states = few(recorded.states(), count)
    found = problems(recorded, states, learn, tmp_path / "after", tmp_path / "whole")
    assert list(found) == []


@pytest.fixture
def disk(tmp_path):
    (tmp_path / "disk").mkdir()
    return Disk(tmp_path / "disk")


def test_learning_goes_on_where_it_was_saved_last(disk, monkeypatch, learn, tmp_path):
    check(disk, monkeypatch, learn, tmp_path, 16)


@pytest.mark.slow
def test_learning_goes_on_from_all_that_a_cut_may_leave(disk, monkeypatch, learn, tmp_path):
    check(disk, monkeypatch, learn, tmp_path, 10_000)


def test_without_syncs_the_law_is_broken(monkeypatch, learn, tmp_path):
    (tmp_path / "disk").mkdir()
    recorded = Recorded(Disk(tmp_path / "disk", syncs=False), monkeypatch, learn)
    lost = [found for found in recorded.states() if not found[1]][-1:]
    found = problems(recorded, lost, learn, tmp_path / "after", tmp_path / "whole")
    assert any("goes on after line 0, not" in what for _, what in found)
