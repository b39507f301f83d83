"""Runs without a report, and a text in the place of tiny Shakespeare."""

import pytest

from linrnn.compare import _compare
from linrnn.compare._runs import safe_name
from linrnn.compare.run_table import Run
from linrnn.reproductions._page.runs import Runs, slug


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


@pytest.fixture
def made_runs():
    """Makes runs of one task from numbers by row and seed."""

    def make(part, values, metric="accuracy", measure=None, steps=1_000, **fields):
        rows = []
        for label, seeds in values.items():
            for seed, value in seeds.items():
                numbers = {"measures": {measure: value}} if measure else {"test": value}
                rows.append(
                    Run(
                        scale="cpu",
                        part=slug(part),
                        row=safe_name(label),
                        seed=seed,
                        metric=metric,
                        steps=steps,
                        **numbers,
                        **fields,
                    )
                )
        return Runs(tuple(rows))

    return make


@pytest.fixture
def derived(tmp_path):
    """Claims of a page from the file of its runs, of which some may be changed before."""

    def claims(what, findings, scale="cpu", change=lambda run: run):
        path = tmp_path / "runs.csv"
        path.write_bytes(Runs(tuple(map(change, findings.runs.rows))).csv())
        return tuple(what.claims(Runs.read(path, scale), scale))

    return claims


@pytest.fixture
def kept_errors():
    """Makes the part of a lesson from errors on the test, by row and seed."""

    def make(name, errors):
        rows = [
            Run(
                scale="cpu",
                part=slug(name),
                row=safe_name(label),
                seed=seed,
                lr=0.1,
                metric="error",
                validation=error,
                test=error,
                test_loss=error,
            )
            for label, several in errors.items()
            for seed, error in enumerate(several)
        ]
        return Runs(tuple(rows)).part(name)

    return make
