"""Every configuration of a public implementation that stands in the table gives its numbers."""

import csv
from pathlib import Path

import pytest

from linrnn import mixers
from published.case import cases

CASES = cases()


def label(case):
    return f"{case.system}-{case.part}-{case.configuration}"


@pytest.mark.parametrize("case", [c for c in CASES if c.compare], ids=label)
def test_gives_the_numbers_of_the_public_implementation(case):
    differences = case.compare()
    missing = {"forward", "step", "gradients"} - differences.keys()
    assert not missing or case.note, f"{missing} must be compared, or the note says why not"
    worst = {name: value for name, value in differences.items() if not value <= case.tolerance}
    assert not worst


@pytest.mark.parametrize("case", [c for c in CASES if not c.compare], ids=label)
def test_says_why_a_configuration_cannot_be_built(case):
    assert case.note


def test_rows_are_of_systems_and_each_stands_once():
    labels = [(c.system, c.implementation, c.part, c.configuration) for c in CASES]
    assert len(labels) == len(set(labels))
    assert {c.system for c in CASES} <= set(mixers.names())


def test_the_table_of_the_site_has_these_rows():
    """`python docs/measure_published.py` and `make lists` write it."""
    columns = ("system", "implementation", "configuration", "part")
    with (Path(__file__).parents[2] / "results/mixers/published.csv").open(newline="") as file:
        rows = [tuple(row[name] for name in columns) for row in csv.DictReader(file)]
    assert rows == [tuple(getattr(case, name) for name in columns) for case in CASES]
