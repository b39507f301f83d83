"""Runs that are not drawn, and runs of comparisons in the process of the test."""

import sys

import pytest

from linrnn.errors import LinrnnError


@pytest.fixture(autouse=True)
def _undrawn(monkeypatch):
    """Nothing is drawn of a run that a test trains: it takes longer than to train one so small.

    Runs that several tests share are trained before this, and drawn; so is the first of a process,
    for to import what draws would take seconds of tests that train nothing.
    """
    plots = sys.modules.get("linrnn.train._plots")
    if plots is not None:
        monkeypatch.setattr(plots, "draw_plots", lambda *a, **k: None)


@pytest.fixture
def runs_here(monkeypatch):
    """Runs are trained in this process and not drawn; the folders of those so far."""
    from linrnn.compare import _runs
    from linrnn.train import run

    folders = []

    def train_here(folder, config, jobs=1):
        folders.append(f"{folder.parent.name}/{folder.name}")
        try:
            run(config, out=folder)
        except LinrnnError as error:
            return str(error)
        return None

    monkeypatch.setattr(_runs, "train_in_process", train_here)
    monkeypatch.setattr("linrnn.train._plots.draw_plots", lambda *a, **k: None)
    return folders
