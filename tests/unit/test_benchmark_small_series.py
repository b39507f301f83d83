"""The table of small series: what is read, and how accuracies get there."""

import importlib
import os
from pathlib import Path

import pytest

SHARED = os.environ.get("LINRNN_SHARED_DATA", "")


@pytest.fixture
def small_series(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("small_series")


def test_shorter_series_end_with_zeros(small_series):
    import numpy as np

    found = small_series.padded([np.ones((2, 1)), np.ones((5, 1))], 3)
    assert found[:, 0].tolist() == [[1, 1, 0], [1, 1, 1]]


def test_a_set_is_scored_by_everyone(small_series, monkeypatch, tmp_path, capsys):
    folder = Path(SHARED) / "timeseries"
    if not SHARED or not folder.is_dir():
        pytest.skip("LINRNN_SHARED_DATA names no folder with timeseries")
    path = tmp_path / "out.md"
    given = ["--sets", "GunPoint", "--only", "linrnn", "1-NN", "--seeds", "2"]
    given += ["--data", str(folder), "--output", str(path)]
    monkeypatch.setattr("sys.argv", ["small_series.py", *given])
    small_series.main()
    row = next(line for line in path.read_text().splitlines() if line.startswith("| GunPoint"))
    cells = row.split(" | ")
    assert cells[1] == "50 / 150"
    assert float(cells[2].split(" ")[0]) > 98
    assert cells[3].startswith("91.3 ± 0.0")
    assert "| mean |" in capsys.readouterr().out
