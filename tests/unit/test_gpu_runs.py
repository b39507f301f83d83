"""The scripts for a GPU compute the right numbers, at tiny sizes in Triton's interpreter."""

import importlib.util
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu_runs"
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed (pip install 'linrnn[triton]')",
)


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("script", ["tiles", "chains", "walks", "dense_cells"])
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
