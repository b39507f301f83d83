"""Runs without a report, and a text in the place of tiny Shakespeare."""

import pytest

from linrnn.compare import _compare


@pytest.fixture
def trained(runs_here, monkeypatch):
    """As `runs_here`, without the report of a comparison."""
    monkeypatch.setattr(_compare, "write_report", lambda *_: None)
    return runs_here


@pytest.fixture
def text_of(runs_here, tmp_path, monkeypatch):
    """Puts a text of so many lines in the place of tiny Shakespeare."""

    def write(lines):
        path = tmp_path / "data" / "tinyshakespeare" / "input.txt"
        path.parent.mkdir(parents=True)
        path.write_text("".join(f"{i} is a line.\n" for i in range(lines)))
        monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "data"))

    return write
