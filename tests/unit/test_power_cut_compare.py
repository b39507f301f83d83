"""`linrnn compare` into the same folder ends with the same table after a power cut."""

import dataclasses

import pytest
from power_cut import Disk, few, half_written, materialise

from linrnn._files.door import make_folder
from linrnn._files.storage import write_atomically
from linrnn.compare import Entry, compare, sweep
from linrnn.compare.usage import MemoryMeter
from linrnn.errors import LinrnnError
from linrnn.reproductions import Findings, Setting, Table
from linrnn.reproductions._page.report import write_report
from linrnn.reproductions.lru_proposition_3 import LRUProposition3
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig, resume, run

pytest.importorskip("lightning")

TINY = Config(
    task="digits",
    mixer="mingru",
    model=ModelConfig(d_model=4, n_layers=1),
    optim=OptimConfig(lr=1e-2),
    train=TrainConfig(epochs=2, batch_size=1024, threads=1, checkpoint_minutes=1e-9),
)
WRONG = dataclasses.replace(TINY, mixer="lru", mixer_options={"r_min": 0.9, "r_max": 0.1})
ENTRIES = [Entry(label="unlucky", config=TINY), Entry(label="wrong", config=WRONG)]
UNSTEADY = ("ms per step", "memory", "seconds")  # columns that differ from run to run


class Workers:
    """Train here, as the process of a run does.

    Attributes:
        unlucky: whether runs that could be trained end as if the system had killed them.
    """

    unlucky = False

    def __call__(self, folder, config, jobs=1):
        if self.unlucky and config.mixer == TINY.mixer:
            return "killed by SIGKILL"
        try:
            if (folder / "config.json").is_file():
                resume(folder, reporter=MemoryMeter())
            else:
                run(config, out=folder, reporter=MemoryMeter())
        except LinrnnError as error:
            return str(error)
        return None


@pytest.fixture
def workers(monkeypatch):
    """In the place of processes of their own; plots are a few bytes, but files."""
    workers, report = Workers(), "linrnn.compare.report"
    monkeypatch.setattr("linrnn.compare._runs.train_in_process", workers)
    monkeypatch.setattr("linrnn.train._plots.draw_plots", lambda *a, **k: None)
    for name in ("learning_curves", "_bars", "draw_costs"):
        monkeypatch.setattr(f"{report}.{name}", lambda rows, task, name=name: name.encode())
    monkeypatch.setattr(f"{report}.save", save)
    return workers


def save(figure, path):
    write_atomically(path.with_suffix(".png"), figure)


def table(out):
    """The cells of the report that are the same each time."""
    rows, *rest = (out / "compare.md").read_text().split("\n\n")
    cells = [[cell.strip() for cell in line.split("|")] for line in rows.splitlines()]
    steady = [at for at, name in enumerate(cells[0]) if not name.startswith(UNSTEADY)]
    return [[line[at] for at in steady] for line in cells], rest


def check(tmp_path, monkeypatch, workers, count):
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk")
    with monkeypatch.context() as patch:
        disk.recorded(patch)
        for workers.unlucky in (True, False):
            compare(ENTRIES, seeds=(0,), out=disk.root / "out")
    whole = table(disk.root / "out")
    assert "1 failed" in str(whole)
    states = list(disk.states(samples=1))
    assert len(states) > 100
    for _, state in few(states, count):
        materialise(state, tmp_path / "after")
        out = tmp_path / "after" / "out"
        compare(ENTRIES, seeds=(0,), out=out)
        assert table(out) == whole
        assert half_written(out) == []


def test_a_comparison_ends_with_the_same_table(tmp_path, monkeypatch, workers):
    check(tmp_path, monkeypatch, workers, 10)


@pytest.mark.slow
def test_a_comparison_ends_so_from_all_that_a_cut_may_leave(tmp_path, monkeypatch, workers):
    check(tmp_path, monkeypatch, workers, 10_000)


def check_reports(tmp_path, monkeypatch, write):
    """The same command leaves no file that a cut had left half-written."""
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk")
    with monkeypatch.context() as patch:
        disk.recorded(patch)
        write(disk.root / "out")
    left = 0
    for _, state in disk.states(samples=1):
        materialise(state, tmp_path / "after")
        out = tmp_path / "after" / "out"
        left += bool(half_written(out))
        write(out)
        assert half_written(out) == []
    assert left >= 5


def test_a_sweep_leaves_nothing_half_written(tmp_path, monkeypatch, workers):
    workers.unlucky = True
    monkeypatch.setattr("linrnn.compare.sweep_report._panels", lambda *_: b"plot")
    monkeypatch.setattr("linrnn.compare.sweep_report.save", save)
    check_reports(tmp_path, monkeypatch, lambda out: sweep(TINY, {"optim.lr": [0.1, 0.2]}, out=out))


def test_a_reproduction_leaves_nothing_half_written(tmp_path, monkeypatch):
    table = Table("T", ["a"], [["1"]])
    found = Findings(tables=(table, table), comparable="all", files={"a.wav": b"sound"})

    def write(out):
        make_folder(out)
        setting = Setting(scale="cpu", seeds=(0,), out=out)
        write_report("x", LRUProposition3, setting, found, 1.0)

    check_reports(tmp_path, monkeypatch, write)
