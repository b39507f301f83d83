"""The kernels under sanitizers: that all are covered, and the whole of `make sanitize`."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from linrnn.compute import native


def test_the_watched_program_calls_every_kernel(root):
    listed = (root / "src" / "native" / "kernels.h").read_text(encoding="utf-8")
    kernels = set(re.findall(r"X\((\w+)", listed.split("LINRNN_KERNELS(X)")[1]))
    sources = (root / "tests" / "native").glob("*.h")
    called = {n for f in sources for n in re.findall(r"\blinrnn_(\w+)\b", f.read_text())}
    assert len(kernels) > 5
    assert kernels <= called


def test_another_library_may_be_named(python):
    code = """
from linrnn.compute import native as _native
native, problem = _native.load()
result = [native and str(native.path), problem]
"""
    path, problem = python(code, LINRNN_KERNELS="/nowhere/kernels.so")
    assert path is None
    assert "/nowhere/kernels.so" in problem
    assert problem.endswith("unset LINRNN_KERNELS")


@pytest.mark.slow
@pytest.mark.unchecked
def test_kernels_under_sanitizers(root):
    done = subprocess.run(
        [root / "tests" / "native" / "sanitize", sys.executable],
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
        # CMake may have been installed beside this interpreter
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if "sanitize: skipped" in done.stdout:
        pytest.skip(done.stdout.strip())
    assert done.stdout.endswith("sanitize: passed\n")


@pytest.mark.skipif(
    native.load()[0] is None or shutil.which("nm") is None, reason="nothing to read"
)
def test_calls_of_openmp_have_a_stand_in_that_the_sanitizer_of_races_sees_into(root):
    """Without it the kernels cannot be linked, which the quick tests do not try."""
    library, _ = native.load()
    command = ["nm", "-D", "--undefined-only", library.path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    calls = set(re.findall(r" U ((?:GOMP|omp)_\w+)", done.stdout))
    stand_in = (root / "tests" / "native" / "gomp.cpp").read_text(encoding="utf-8")
    assert calls <= set(re.findall(r"\b((?:GOMP|omp)_\w+)\(", stand_in))
    assert calls or not library.openmp
