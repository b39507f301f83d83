"""The verdict on a stream's memory."""

import importlib
from pathlib import Path

import pytest


@pytest.fixture
def verdict(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("stream").verdict


def rows(megabytes, resident):
    """A sample every megabyte; ``resident`` is told how many were fed."""
    return [(float(i), i * 10**6, resident(i)) for i in range(megabytes + 1)]


def test_memory_is_judged_after_the_warm_up(verdict):
    text, grew = verdict(rows(1000, lambda i: 100 + min(i, 40)))
    assert not grew
    assert "1.000 GB in 1,000 s: 1.000 MB/s" in text
    assert "after the first 50 MB" in text


@pytest.mark.parametrize(("slope", "grows"), [(0.004, False), (0.01, True)])
def test_growth_by_more_than_a_twentieth_is_noticed(verdict, slope, grows):
    assert verdict(rows(1000, lambda i: 100 + int(slope * i)))[1] == grows


def test_a_short_input_is_not_judged(verdict):
    text, grew = verdict(rows(90, lambda i: 100 + i))
    assert not grew
    assert "too short to judge" in text
