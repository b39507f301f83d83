"""Runs of reproductions in the process of the test, and a text in the place of tiny Shakespeare."""

import pytest

from linrnn.compare import _compare, _runs
from linrnn.errors import LinrnnError
from linrnn.train import run


@pytest.fixture
def runs_here(monkeypatch):
    """Runs are trained in this process and not drawn; the folders of those so far."""
    folders = []

    def train_here(folder, config):
        folders.append(f"{folder.parent.name}/{folder.name}")
        try:
            run(config, out=folder)
        except LinrnnError as error:
            return str(error)
        return None

    monkeypatch.setattr(_runs, "train_in_process", train_here)
    monkeypatch.setattr("linrnn.train._plots.draw_plots", lambda *a, **k: None)
    return folders


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
