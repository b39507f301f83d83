"""The progress bar fits its terminal, and what matters stays."""

import os
import pty
import re
import select
import struct
import subprocess
import sys
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ
from types import SimpleNamespace

import pytest

from linrnn.cli._line.bar import Said, bar_line
from linrnn.cli._line.progress import BarReporter
from linrnn.train import Plan, StepReport

SAID = Said("epoch 39/40", "loss 12.3456", "accuracy 100.00 %", "accuracy 100.00 %")


@pytest.mark.parametrize("width", range(1, 160))
def test_a_line_is_never_wider_than_the_terminal(width):
    for done in (0.0, 0.5, 1.0):
        line = bar_line(width, SAID, done=done, speed=1234.5, left=36_000.0, ascii=False)
        assert len(line) <= width
        assert width < 8 or line == line.rstrip()


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (
            150,
            [
                "epoch 39/40",
                "━━╌╌",
                "50 %",
                "loss 12.3456",
                "  accuracy",
                "steps/s",
                "10:00:00 left",
            ],
        ),
        (80, ["epoch 39/40", "━╌", "50 %", "loss 12.3456", "validation 100.00 %", "10:00:00 left"]),
        (64, ["epoch 39/40", "━╌", "50 %", "validation 100.00 %", "10:00:00 left"]),
        (60, ["epoch 39/40", "50 %", "validation 100.00 %", "10:00:00 left"]),
        (40, ["epoch 39/40", "50 %", "10:00:00 left"]),
    ],
)
def test_what_is_left_out_where_there_is_little_room(width, shown):
    line = bar_line(width, SAID, done=0.5, speed=1234.5, left=36_000.0, ascii=False)
    assert all(text in line for text in shown), line


def test_what_is_not_known_yet_takes_no_room():
    line = bar_line(80, Said("epoch 1/2"), done=0.0, speed=None, left=None, ascii=True)
    assert line == f"epoch 1/2  {'-' * 24}    0 %"


def test_the_bar_takes_little_of_the_time_of_a_slow_metric(monkeypatch):
    """Each reading takes as long as a step; the clock is ours."""
    clock = [0.0]
    ours = SimpleNamespace(monotonic=lambda: clock[0])
    monkeypatch.setattr("linrnn.cli._line.progress.time", ours)
    readings = []

    def measure():
        readings.append(clock[0])
        clock[0] += 1.0
        return 0.5

    sizes = dict.fromkeys(("n_train", "n_validation", "n_test", "n_parameters", "n_state"), 1)
    plan = Plan(
        **sizes | {"task": "sepsis", "mixer": "lru", "metric": "AUROC", "epochs": 1},
        **{"steps_per_epoch": 100, "start_step": 0, "seed": 0, "device": "cpu", "threads": 1},
        folder=Path("run"),
    )
    bar = BarReporter()
    bar.started(plan)
    try:
        for step in range(1, 101):
            clock[0] += 1.0
            bar.stepped(StepReport(step=step, loss=1.0, measure=measure))
    finally:
        bar.closed()
    assert 8 <= len(readings) <= 12, readings
    assert readings[0] == 1.0
    assert readings[-1] == clock[0] - 1.0  # the last step is always shown


@pytest.mark.slow  # seconds of a run in a terminal of its own, twice
@pytest.mark.parametrize("columns", [80, 60])
def test_the_bar_of_a_run_stays_in_one_line_of_a_terminal(tmp_path, columns):
    parent, child = pty.openpty()
    ioctl(child, TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    argv = [sys.executable, "-m", "linrnn", "train", "digits", "--model.d-model", "6"]
    argv += ["--model.n-layers", "1", "--train.epochs", "2", "--out", str(tmp_path / "run")]
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    done = subprocess.Popen(
        argv, stdin=child, stdout=child, stderr=child, env=environment | {"TERM": "xterm"}
    )
    os.close(child)
    seen = b""
    while done.poll() is None or select.select([parent], [], [], 0.2)[0]:
        if select.select([parent], [], [], 0.2)[0]:
            try:
                seen += os.read(parent, 65536)
            except OSError:
                break
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    bars = [line for line in re.split(r"[\r\n]+", text) if re.match(r"epoch \d+/2 ", line)]
    assert done.wait() == 0
    assert any("100 %" in line and "left" in line for line in bars)
    assert max(map(len, bars)) <= columns
    if columns == 80:
        assert any("loss" in line and "validation" in line for line in bars)
