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


def test_sets_are_read_from_packages_as_these_write_them(small_series, monkeypatch, tmp_path):
    import numpy as np

    written = {
        "a.ts": "@classLabel true 1 2\n@data\n1,2,3:1\n4,5:2\n",
        "b_TRAIN.txt": " 2.0  1.5 -2.5\n 1.0  0.5  3.5\n",
    }
    for name, text in written.items():
        (tmp_path / name).write_text(text)
    x, y = np.arange(8.0).reshape(2, 4, 1), np.array([1, 0])
    np.savez(tmp_path / "c.npz", X_train=x, y_train=y, X_test=x[:1] + 1, y_test=y[:1])
    files = {"A": ("a", "a.ts"), "B": ("b", "b_{part}.txt"), "C": ("c", "c.npz")}
    monkeypatch.setattr(small_series, "PACKAGED", files)
    monkeypatch.setattr(small_series, "folder_of_package", lambda package: tmp_path)

    def rows(name, part):
        series = small_series.read(Path("nowhere"), name, part)
        return [row[:, 0].tolist() for row in series.x], series.y

    assert rows("A", "TRAIN") == ([[1, 2, 3], [4, 5]], ["1", "2"])
    assert rows("B", "TRAIN") == ([[1.5, -2.5], [0.5, 3.5]], ["2", "1"])
    assert rows("C", "TRAIN") == ([[0, 1, 2, 3], [4, 5, 6, 7]], ["1", "0"])
    assert rows("C", "TEST") == ([[1, 2, 3, 4]], ["1"])


def test_a_package_that_is_not_installed_is_named(small_series):
    with pytest.raises(SystemExit, match="no_such_package is not installed"):
        small_series.folder_of_package("no_such_package")


def test_times_are_multiples_of_ours(small_series):
    score = small_series.Score
    scores = {"linrnn": [score([], [1.0]), score([], [2.0, 4.0])], "b": [score([], [2.0])] * 2}
    times = small_series.times_beside(scores, "linrnn")
    assert times == {"linrnn": 1.0, "b": pytest.approx((2 * 2 / 3) ** 0.5)}


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
    assert "| time beside ours |  | 1.00× |" in path.read_text()
    assert "| mean |" in capsys.readouterr().out
