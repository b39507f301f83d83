"""How many cases there are in all, and that a fuzzer which cannot fail would be noticed."""

import sys
from dataclasses import replace

import fuzzing
import pytest
import test_fuzz_arguments
import test_fuzz_mixers
import test_fuzz_ops
import test_fuzz_parsers
import torch
from hypothesis import strategies as st

from linrnn.compute import arguments as _arguments
from linrnn.errors import DataError
from linrnn.mixers import LRU
from linrnn.ops.linear.linear_scan import _tree as _scan_tree
from linrnn.tasks._reading import numpy, series

pytestmark = pytest.mark.unchecked


def test_there_are_cases_enough():
    assert sum(fuzzing.SHARES.values()) >= fuzzing.QUICK_TOTAL


def run(name, strategy, check, cases=300):
    """Cases of a property until one fails."""
    fuzzing.run(name, cases / fuzzing.SHARES[name], strategy, check, shrink=False)


def reader(name, folder):
    parser = test_fuzz_parsers.PARSERS[name]
    path = folder / parser.file

    def check(content):
        path.write_bytes(content)
        fuzzing.refused_or(parser.returns, lambda: parser.read(path), naming=str(folder))

    return name, parser.content, check


def test_a_reader_that_lets_an_error_through_is_caught(monkeypatch, tmp_path):
    monkeypatch.setattr(series, "DAMAGED", (OSError,))
    with pytest.raises(BaseException, match=r".") as caught:
        run(*reader("npz as series", tmp_path))
    assert not isinstance(caught.value, DataError)


def test_a_reader_that_believes_a_size_is_caught(monkeypatch, tmp_path):
    monkeypatch.setattr(numpy, "_check_header", lambda file, size: None)
    with pytest.raises(BaseException, match=r"."):
        run(*reader("npy as rows", tmp_path))


def test_a_reader_that_returns_something_else_is_caught(monkeypatch, tmp_path):
    forgetful = replace(test_fuzz_parsers.PARSERS["history"], read=lambda path: None)
    monkeypatch.setitem(test_fuzz_parsers.PARSERS, "history", forgetful)
    with pytest.raises(AssertionError, match="returned NoneType"):
        run(*reader("history", tmp_path))


@pytest.mark.parametrize("check", ["check_tensor", "check_reset", "check_device", "check_flags"])
def test_an_op_without_a_check_is_caught(monkeypatch, check):
    for module in (_arguments, sys.modules["linrnn.ops.linear.linear_scan"]):
        if hasattr(module, check):
            monkeypatch.setattr(module, check, lambda *args, **named: None)
    name = "linear_scan"
    calls = test_fuzz_arguments.calls(name)
    with pytest.raises(BaseException, match=r"."):
        run(f"arguments of {name}", calls, test_fuzz_arguments.checker(name), 1500)


def test_a_backend_that_is_off_by_little_is_caught(monkeypatch):
    original = _scan_tree.forward

    def lossy(*arguments):
        h, final = original(*arguments)
        return h * (1 + 1e-4), final

    monkeypatch.setattr(_scan_tree, "forward", lossy)
    with pytest.raises(AssertionError, match="differs by"):
        run("linear_scan", test_fuzz_ops.ORDINARY, test_fuzz_ops.check_scan)


def test_a_backend_that_writes_to_its_input_is_caught(monkeypatch):
    original = _scan_tree.forward

    def careless(a, b, *rest):
        result = original(a, b, *rest)
        b.data.mul_(2)
        return result

    monkeypatch.setattr(_scan_tree, "forward", careless)
    with pytest.raises(AssertionError, match="b was changed"):
        run("linear_scan", test_fuzz_ops.ORDINARY, test_fuzz_ops.check_scan)


def test_a_backend_that_leaks_infinity_is_caught(monkeypatch):
    original = _scan_tree.forward

    def leaky(a, b, *rest):
        h, final = original(a, b, *rest)
        return h + 0 * h.sum(), final

    monkeypatch.setattr(_scan_tree, "forward", leaky)
    with pytest.raises(AssertionError, match="is not finite elsewhere"):
        run("linear_scan of special values", test_fuzz_ops.POISONED, test_fuzz_ops.check_scan)


class Forgetful(LRU):
    """Starts from zero where it was given a state."""

    def forward(self, x, state=None, *, reset=None):
        return super().forward(x, None, reset=reset)


class Sociable(LRU):
    """Rows notice each other."""

    def forward(self, x, state=None, *, reset=None):
        return super().forward(x - x.mean(), state, reset=reset)


@pytest.mark.parametrize("broken", [Forgetful, Sociable])
def test_a_broken_mixer_is_caught(broken):
    torch.manual_seed(0)
    layers = {d: broken(4, dtype=d) for d in (torch.float32, torch.float64)}
    with pytest.raises(AssertionError):
        run(
            "lru scan",
            test_fuzz_mixers.reads(),
            lambda case: test_fuzz_mixers.check_reads(layers[case.dtype], case),
        )


def test_slowness_and_memory_are_caught():
    def slow():
        total = 0
        for i in range(10**9):
            total += i
            if i % 10**6 == 0 and fuzzing.time.process_time() > deadline:
                return total
        return total

    deadline = fuzzing.time.process_time() + 1.1
    with pytest.raises(AssertionError, match=r"took 1\.\d s"):
        fuzzing.refused_or(int, slow)
    with pytest.raises(AssertionError, match="asked for"):
        fuzzing.refused_or(torch.Tensor, lambda: torch.ones(300 << 18))


def test_cases_are_the_same_at_every_run():
    seen = []
    for _ in range(2):
        found = []
        run("history", st.integers(), found.append, 50)
        seen.append(found)
    assert seen[0] == seen[1]
