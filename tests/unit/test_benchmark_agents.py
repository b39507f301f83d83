"""The benchmark of agents: every memory has a row, and the LSTM's ratio to itself is 1."""

import importlib
import re
from pathlib import Path

import pytest

pytest.importorskip("sb3_contrib", reason="the extra rl is not installed")


def test_a_page_has_a_row_a_memory(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    agents = importlib.import_module("agents")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    agents.main(["--quick", "--mixers", "mingru", "--width", "8", "--out", str(tmp_path)])
    assert not [*tmp_path.glob("SB3-*")]
    page = (tmp_path / "agents-cpu.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (nn\.LSTM|mingru) \|(.*)\|$", page, re.MULTILINE)
    assert [name for name, _ in rows] == ["nn.LSTM", "mingru"]
    assert rows[0][1].split(" | ")[-2:] == ["1.0×", "1.0× "]
