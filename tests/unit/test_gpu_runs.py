"""The scripts for a GPU compute the right numbers, at tiny sizes in Triton's interpreter."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu_runs"
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed (pip install 'linrnn[triton]')",
)


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        *("tiles", "chains", "queues", "affine_cells", "walks", "dense_cells", "log_scans"),
        *("selective", "block_carries", "wide_walks", "row_functions"),
    ],
)
def test_numbers_are_right_in_the_interpreter(warm, tmp_path, script):
    path, folder = str(FOLDER / f"{script}.py"), str(tmp_path)
    code = f"""
import runpy, sys
sys.path.insert(0, {str(FOLDER)!r})
sys.argv = [{path!r}, "--tiny", "--to", {folder!r}]
try:
    runpy.run_path({path!r}, run_name="__main__")
except SystemExit as end:
    result = end.code
"""
    assert warm(code, TRITON_INTERPRET="1") == 0
    (rows,) = tmp_path.glob("gpu-run-*.md")
    assert "WRONG" not in rows.read_text(encoding="utf-8")


def test_commands_stop_when_their_time_is_over_and_scripts_at_the_first_failure(tmp_path):
    code = f"""
import sys
sys.path.insert(0, {str(FOLDER)!r})
from _script import Limited, main
sleeps = Limited(("-c", "import time; print('begun', flush=True); time.sleep(600)"), 3.0)
fails = ("-c", "raise SystemExit(3)")
sys.exit(main("", [sleeps, ("-c", "print('in {{to}}')"), fails, ("-c", "print('late')")]))
"""
    command = [sys.executable, "-c", code, "--to", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 3
    (said,) = tmp_path.glob("gpu-run-*.txt")
    lines = said.read_text(encoding="utf-8").splitlines()
    assert {"begun", "interrupted after 3 s", f"in {tmp_path}"} <= set(lines)
    assert "late" not in lines


FORKED = """
import os, runpy, sys, torch, linrnn.ops, linrnn.testing

for script in sys.argv[1:]:
    print(f"begins {script}", flush=True)
    if not os.fork():
        sys.argv, code = [script, "--dry"], 0
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            code = end.code or 0
        sys.stdout.flush()
        os._exit(code)  # without taking down the whole package
    assert os.wait()[1] == 0, script
"""


@needs_triton
def test_every_script_says_what_it_would_run_and_is_in_the_table():
    """In children of one process that has imported the package, which takes most of the time."""
    scripts = sorted(FOLDER.glob("[!_]*.py"))
    run = subprocess.run(
        [sys.executable, "-c", FORKED, *scripts],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": str(FOLDER)},
    )
    assert run.returncode == 0, run.stderr
    _, *outputs = run.stdout.split("begins ")
    table = (FOLDER / "README.md").read_text(encoding="utf-8")
    for script, output in zip(scripts, outputs, strict=True):
        assert output.startswith(f"{script}\n")
        assert len(output.splitlines()) > 2, script
        assert f"| `{script.name}` | " in table
