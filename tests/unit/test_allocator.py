"""Memory that is kept: pages the system clears again, counted."""

import sys

import pytest

FAULTS = """
import resource, linrnn

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    b"x" * (40 << 20)  # made and freed
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
result = [faults(), linrnn.keep_memory(), faults() and faults()]
"""

glibc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="about glibc's allocator")


@glibc
def test_what_was_freed_is_used_again(python):
    before, told, after = python(FAULTS)
    if not told:
        pytest.skip("another C library")
    assert before > 1000
    assert after < 10


@glibc
def test_the_environment_can_refuse_it(python, monkeypatch):
    monkeypatch.setenv("LINRNN_KEEP_MEMORY", "0")
    before, told, after = python(FAULTS)
    assert told is False
    assert min(before, after) > 1000
