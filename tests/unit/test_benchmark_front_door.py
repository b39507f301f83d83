"""The table of the default beside its rivals: what counts as behind, and what a row says."""

import csv
import importlib
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def front_door(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("front_door")


def row(front_door, *scores, best="nearest sequence"):
    return front_door.Row.of_cells(["a", "50", "bank", *map(str, scores), best, "1"])


def test_how_far_the_default_is_behind(front_door):
    assert row(front_door, 0.9, 0.05, 0.9, "nan", 0.8).behind == 0
    assert row(front_door, 0.9, 0.05, 0.9, 1.0, 0.8).behind == pytest.approx(2)
    forecast = row(front_door, 0.9, 0.1, 0.9, "nan", 0.75, best="value 12 before")
    assert forecast.behind == pytest.approx(1.5)


@pytest.mark.slow
def test_a_series_is_judged_beside_its_rivals(front_door, tmp_path):
    y = np.sin(np.arange(240) * np.pi / 6) + 0.1 * np.random.default_rng(0).standard_normal(240)
    (tmp_path / "y.csv").write_text("y\n" + "\n".join(map(str, y)) + "\n")
    data = str(tmp_path / "y.csv")
    one = front_door.of_series("wave", data, tmp_path, 12, 6, 24, gru=False)
    assert one.best_simple == "value 12 before"
    assert one.default < one.simple
    assert 0 < one.error < 1
    assert one.behind == 0
    assert any("| wave | bank |" in line for line in front_door.page([one]))


def test_the_table_that_is_kept_is_that_of_its_rows(front_door):
    """The statement of the page of your own data: all of 39 sets."""
    results = ROOT / "benchmarks" / "results"
    with (results / "front-door-cpu.csv").open(newline="") as file:
        rows = [front_door.Row.of_cells(cells) for cells in list(csv.reader(file))[1:]]
    behind = [one.set for one in rows if one.behind > 1]
    assert (len(rows), behind) == (39, [])
    text = (results / "front-door-cpu.md").read_text()
    assert text.count("errors behind") == len(behind)
