"""The benchmark of a GPU: what it needs, what it says of checks that fail or do not end."""

import importlib
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def checks(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("_gpu_checks")


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU lacks")
def test_without_a_gpu_it_says_so():
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "gpu.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "needs a GPU" in done.stderr


@pytest.mark.slow
def test_what_fails_is_named_and_what_does_not_end_is_not_waited_for(checks):
    tasks = {
        "fine": list,
        "raises": partial(int, "no number"),
        "wrong": partial(list, ["by far"]),
        "endless": partial(time.sleep, 600),
    }
    start = time.monotonic()
    found = list(checks.problems(tasks, {"here": partial(list, ["in turn"])}, 20.0))
    assert time.monotonic() - start < 60
    assert {"by far", "in turn", f"{checks.NOT_CHECKED} in 20 s: endless"} <= set(found)
    assert any(x.startswith("raises: ValueError: invalid literal") for x in found)
    assert len(found) == 4


def test_what_loses_the_gpu_is_named_and_nothing_behind_it_is_blamed(checks, monkeypatch):
    """As an address that is not a kernel's own does: every later call of its process fails."""
    gone, seen = [], []

    def synchronize():
        if gone:
            raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(checks, "_lost", [])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(torch.cuda, "empty_cache", synchronize)
    assert checks._outcome("fine", list) == []
    (said,) = checks._outcome("loses it", lambda: gone.append(True) or [])
    assert said == "loses it: RuntimeError: an illegal memory access was encountered"
    (said,) = checks._outcome("behind", lambda: seen.append(True) or [])
    assert said.startswith(f"{checks.NOT_CHECKED}: behind; its process lost the GPU in loses it")
    assert not seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_distances_are_judged_by_dtype_and_nan_never_passes(checks, dtype):
    true = torch.randn(5, dtype=dtype)
    near, far = true * (1 + 1e-6), true * (1 + 1e-3)
    judged = partial(checks.distances, "a scan", ["h"], true=[true], dtype=dtype)
    assert judged(got=[near]) == []
    assert "a scan: h differs by 1.0e-03" in judged(got=[far])[0]
    assert len(judged(got=[true * float("nan")])) == 1


def test_cotangents_are_exact_in_every_dtype(checks):
    for dtype in checks.TOLERANCE:
        found = checks.cotangent(torch.zeros(40, dtype=dtype))
        assert found.dtype == dtype
        assert torch.equal(found.to(torch.complex128) * 8, (torch.arange(40) % 15 - 7) + 0j)
