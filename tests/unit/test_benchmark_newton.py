"""The table of Newton's method: every layer that is not linear, and what became of it."""

import importlib
from pathlib import Path

import pytest


@pytest.fixture
def newton(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("newton")


def test_layers_are_found_by_what_their_cells_are(newton, monkeypatch):
    some = ["lru", "gru", "rg_lru", "unicornn", "tanh_rnn", "linear_attention", "mlstm", "ltc"]
    monkeypatch.setattr(newton.mixers, "names", lambda: some)
    assert newton.nonlinear() == ["gru", "unicornn", "tanh_rnn", "mlstm", "ltc"]


def test_a_row_says_how_near_it_came_or_why_not(newton, monkeypatch, tmp_path, capsys):
    path = tmp_path / "out.md"
    given = ["--time", "150", "--width", "4", "--only", "unicornn", "exp_rnn"]
    monkeypatch.setattr("sys.argv", ["newton.py", *given, "--output", str(path)])
    newton.main()
    text = path.read_text()
    rows = [line.split(" | ") for line in text.splitlines() if "float" in line]
    assert [row[0] for row in rows] == ["| unicornn"] * 2 + ["| exp_rnn"] * 2
    for row, rounding in zip(rows[:2], (1e-6, 1e-14), strict=True):
        assert float(row[2]) < 40 * rounding
        assert float(row[3]) < 40 * rounding
        assert 1 < int(row[4]) < 10
    for row in rows[2:]:
        assert row[-1].startswith("`cell_scan: newton must reach a residual of ")
    assert "2 of 4 solved" in capsys.readouterr().out
