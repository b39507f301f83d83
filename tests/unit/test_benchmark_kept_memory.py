"""The benchmark of kept memory: a page with a row for each layer."""

import importlib
from pathlib import Path

import pytest


@pytest.fixture
def bench(monkeypatch):
    pytest.importorskip("resource")
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("kept_memory")


@pytest.mark.slow
def test_a_page_has_a_row_a_layer(bench, tmp_path):
    assert bench.main(["--layers", "mingru", "--length", "8", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "kept-memory.md").read_text()
    assert page.count("\n| `mingru` (1, 8) |") == 1
    assert page.count(" → ") == 5  # one in the line on how it was measured
