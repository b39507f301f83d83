"""Runs by two processes on the CPU: their numbers are those of one, and their folder's promises."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from linrnn import train
from linrnn.errors import InterruptedRunError, NonFiniteError, ProcessError
from linrnn.tasks.lm import LMOptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig
from linrnn.train.checkpoint import load_tree
from linrnn.train.folder import RunFolder
from linrnn.train.metrics import read_metrics

pytestmark = [
    pytest.mark.unchecked,
    pytest.mark.skipif(os.name == "nt", reason="there are no such signals on Windows"),
]


@pytest.fixture(scope="module")
def one():
    """Digits in batches of 512, 512 and 233 rows, varied at random, and no batch norm."""
    return Config(
        task="digits",
        mixer="lru",
        mixer_options={"d_state": 4},
        model=ModelConfig(d_model=6, n_layers=1, dropout=0.0, norm="layer"),
        optim=OptimConfig(lr=1e-2),
        train=TrainConfig(epochs=2, batch_size=512, threads=1, device="cpu"),
    )


def on(config, devices, **options):
    return replace(config, train=replace(config.train, devices=devices, **options))


def check_close(found, expected, rtol):
    """Best weights and every row of the metrics."""
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (found, expected))
    for name, x in theirs.items():
        torch.testing.assert_close(ours[name], x, rtol=rtol, atol=rtol)
    for row, other in zip(*(read_metrics(RunFolder(f)) for f in (found, expected)), strict=True):
        assert (row.epoch, row.step, row.lr) == (other.epoch, other.step, other.lr)
        for name in ("train_loss", "train_metric", "validation_loss", "validation_metric"):
            assert getattr(row, name) == pytest.approx(getattr(other, name), rel=rtol)


def check_same(found, expected):
    """The same bits, and nothing left behind."""
    for file in ("model.safetensors", "checkpoints/last.safetensors"):
        ours, theirs = load_file(found / file), load_file(expected / file)
        assert ours.keys() == theirs.keys()
        for name, x in theirs.items():
            assert torch.equal(ours[name], x), (file, name)
    ours, theirs = (
        [line.rsplit(",", 1)[0] for line in (f / "metrics.csv").read_text().splitlines()]
        for f in (found, expected)
    )
    assert ours == theirs
    assert [p for p in found.rglob(".*") if p.name != ".lock"] == []


@pytest.fixture(autouse=True)
def no_plots(monkeypatch):
    """They take most of the time of so small a run."""
    monkeypatch.setattr("linrnn.train._plots.draw_plots", lambda run: None)


def test_two_processes_train_as_one(one, tmp_path, capfd):
    expected = train.run(one, out=tmp_path / "one")
    result = train.run(on(one, 2), out=tmp_path / "two")
    check_close(tmp_path / "two", tmp_path / "one", 1e-5)
    assert result.test_loss == pytest.approx(expected.test_loss, rel=1e-5)
    names = [{p.name for p in (tmp_path / f).iterdir()} for f in ("one", "two")]
    assert names[0] == names[1]
    events = list((tmp_path / "two" / "tensorboard").iterdir())
    assert len(events) == 1  # the first process alone writes
    assert capfd.readouterr() == ("", "")
    assert '"devices": 2' in (tmp_path / "two" / "environment.json").read_text()


@pytest.mark.slow
def test_losses_of_layers_are_those_of_one_process(one, tmp_path):
    """Its convolution has no other gradient, so what the model answers does not lead to it."""
    short = {"segment": 4, "ratio": 2, "memory_gradient": 0}
    added = replace(one, mixer="compressive_transformer", mixer_options=short)
    added = replace(added, optim=OptimConfig(lr=1e-3))
    for devices in (1, 2):
        train.run(on(added, devices, epochs=1), out=tmp_path / str(devices))
    check_close(tmp_path / "2", tmp_path / "1", 1e-4)
    biases = [
        x for n, x in load_file(tmp_path / "2" / "model.safetensors").items() if "fewer.b" in n
    ]
    assert all(bias.all() for bias in biases)  # they start at zero
    assert biases


class Notes(train.Reporter):
    def __init__(self):
        self.texts = []

    def noticed(self, text):
        self.texts.append(text)


@pytest.mark.slow
def test_resume_on_as_many_gives_the_same_bits(one, signal_at, tmp_path):
    config = replace(one, model=replace(one.model, dropout=0.2, norm="batch"))
    notes = Notes()
    train.run(on(config, 2), out=tmp_path / "whole", reporter=notes)
    assert any(text.startswith("batch norm: each process") for text in notes.texts)
    for step in (1, 4):
        folder = tmp_path / f"cut-{step}"
        with pytest.raises(InterruptedRunError):
            train.run(on(config, 2), out=folder, reporter=signal_at(step))
        assert load_tree(folder / "checkpoints" / "last.safetensors")["run"]["step"] == step
        train.resume(folder)
        check_same(folder, tmp_path / "whole")


@pytest.mark.slow
def test_resume_on_another_number_goes_on_with_close_numbers(one, signal_at, tmp_path):
    train.run(one, out=tmp_path / "one")
    for first, then in ((2, 1), (1, 2)):
        folder = tmp_path / f"{first}-{then}"
        with pytest.raises(InterruptedRunError):
            train.run(on(one, first), out=folder, reporter=signal_at(4))
        train.resume(folder, devices=then)
        check_close(folder, tmp_path / "one", 1e-5)


@pytest.mark.slow
def test_a_carried_state_stays_with_its_rows(tmp_path, signal_at):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{i * 7919 % 1000} is a number. " for i in range(900)))
    config = Config(
        task="lm",
        mixer="mingru",
        task_options=LMOptions(data=(str(text),), length=64, stride=0),
        model=ModelConfig(d_model=8, n_layers=1, dropout=0.0, norm="layer", pool="none"),
        train=TrainConfig(epochs=2, batch_size=5, threads=1, device="cpu", carry_state=True),
    )
    train.run(config, out=tmp_path / "one")
    train.run(on(config, 2), out=tmp_path / "two")
    check_close(tmp_path / "two", tmp_path / "one", 1e-4)
    with pytest.raises(InterruptedRunError):
        train.run(on(config, 2), out=tmp_path / "cut", reporter=signal_at(7))
    carried = load_tree(tmp_path / "cut" / "checkpoints" / "last.safetensors")["run"]["carried"]
    assert {len(h) for h in carried.values()} == {5}
    train.resume(tmp_path / "cut")
    check_same(tmp_path / "cut", tmp_path / "two")


class ChildKiller(train.Reporter):
    """Kill the other process after a step."""

    def __init__(self, step):
        self.step = step

    def stepped(self, report):
        if report.step == self.step:
            found = subprocess.run(
                ["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())],
                capture_output=True,
                text=True,
                check=True,
            )
            (pid,) = (line.split()[0] for line in found.stdout.splitlines() if "_worker" in line)
            os.kill(int(pid), signal.SIGKILL)


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_run_which_goes_on(one, tmp_path):
    config = on(one, 2, checkpoint_minutes=1e-9)
    train.run(config, out=tmp_path / "whole")
    with pytest.raises(ProcessError, match="process 2 of 2 must go on, got: ended by SIGKILL"):
        train.run(config, out=tmp_path / "cut", reporter=ChildKiller(4))
    train.resume(tmp_path / "cut")
    check_same(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.slow
def test_a_killed_command_leaves_no_process_and_goes_on(one, tmp_path):
    config = on(replace(one, train=replace(one.train, epochs=40)), 2, checkpoint_minutes=1e-9)
    folder = tmp_path / "run"
    RunFolder.create(folder, config)
    command = [sys.executable, "-m", "linrnn", "train", "--resume", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    last = folder / "checkpoints" / "last.safetensors"
    while not last.exists():
        assert process.poll() is None
        time.sleep(0.02)
    (child,) = children(process.pid)
    process.kill()
    process.wait()
    end = time.monotonic() + 20
    while alive(child):
        assert time.monotonic() < end, "the other process outlives the first"
        time.sleep(0.05)
    second = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    before = last.stat().st_mtime_ns
    while last.stat().st_mtime_ns == before:
        assert second.poll() is None
        time.sleep(0.02)
    second.send_signal(signal.SIGTERM)
    _, said = second.communicate(timeout=60)
    assert second.returncode == 130
    assert "the checkpoint is written" in said


def children(pid):
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=True
    )
    return [int(line) for line in found.stdout.split()]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    found = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return bool(found.stdout.strip()) and not found.stdout.startswith("Z")


@pytest.mark.slow
def test_numbers_that_are_not_finite_on_one_are_so_on_both(one, tmp_path):
    """With so large a rate the loss overflows; both processes have to come to the same end."""
    wild = on(replace(one, optim=OptimConfig(lr=1e30, clip=0.0, warmup_fraction=0.0)), 2)
    with pytest.raises(NonFiniteError, match="must be finite"):
        train.run(wild, out=tmp_path / "run")


@pytest.mark.slow
def test_what_a_process_cannot_read_is_said(one, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "linrnn.train.processes.environment_for",
        lambda config: {k: v for k, v in os.environ.items()} | {"PYTHONPATH": str(tmp_path)},
    )
    package = tmp_path / "lightning"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('no lightning here')")
    with pytest.raises(ProcessError, match=r"process 2 of 2 must go on, got: .*no lightning here"):
        train.run(on(one, 2), out=tmp_path / "run")
