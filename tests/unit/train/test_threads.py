"""One thread or all: what is faster, where nobody has chosen."""

from types import SimpleNamespace

import pytest
import torch

from linrnn.errors import ArgumentError
from linrnn.train import threads
from linrnn.train.threads import check_threads, choose_threads


@pytest.fixture
def two(monkeypatch):
    """A process with two threads, that nobody has asked for."""
    count = [2]
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: count[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda n: count.__setitem__(0, n))
    monkeypatch.setattr(threads, "_of_the_machine", lambda: {2, 4})
    return count


@pytest.mark.parametrize(("slow", "chosen"), [(1, 2), (2, 1), (None, 2)])
def test_the_faster_number_is_taken(two, monkeypatch, slow, chosen):
    clock = [0.0]
    monkeypatch.setattr(threads, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def step():
        clock[0] += 0.02 if two[0] == slow else 0.005

    found = choose_threads(step)
    assert found.threads == chosen
    assert f"{50 if slow == 1 else 200} with 1 and" in found.why
    assert 2 <= clock[0] < 2.1
    assert two == [2]


def test_afterwards_all_is_as_before_an_error(two):
    with pytest.raises(ZeroDivisionError):
        choose_threads(lambda: 1 / 0)
    assert two == [2]


@pytest.mark.parametrize("why", ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "set_num_threads", "one"])
def test_what_somebody_chose_stays(two, monkeypatch, why):
    if why.isupper():
        monkeypatch.setenv(why, "2")
    else:
        two[0] = 1 if why == "one" else 3
    found = choose_threads(lambda: pytest.fail("it was tried"))
    assert found.threads == two[0]
    assert why in found.why


@pytest.mark.unchecked
@pytest.mark.parametrize("wrong", [0, -1, 1.5, "all", True])
def test_other_numbers_are_refused(wrong):
    with pytest.raises(ArgumentError, match="threads must be"):
        check_threads("fit", wrong)
