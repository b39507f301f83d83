"""Runs of comparisons and reproductions in the process of the test."""

import pytest

from linrnn.errors import LinrnnError


@pytest.fixture
def runs_here(monkeypatch):
    """Runs are trained in this process and not drawn; the folders of those so far."""
    from linrnn.compare import _runs
    from linrnn.train import run

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
