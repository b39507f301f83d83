"""Kernels as calls launch them: they compile for a GPU, once for all lengths."""

import importlib
import importlib.util
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed (pip install 'linrnn[triton]')",
)

SETUP = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[3] / "benchmarks")!r}]
from compile_only import count
import torch
from linrnn.ops import cell_scan, linear_scan, selective_scan

def leaves(*tensors):
    return [x.detach().requires_grad_() for x in tensors]

def scan(batch, time):
    b = torch.randn(batch, time, 32)
    return count(linear_scan, *leaves(torch.rand_like(b), b), backend="triton")

def selective(batch, time):
    x, B = torch.randn(batch, time, 16), torch.randn(batch, time, 16)
    given = leaves(x, torch.rand_like(x), -torch.rand(16, 16), B, torch.randn_like(B))
    return count(selective_scan, *given, backend="triton")

def cell(batch, time):
    from cells import CELLS, arguments
    given = arguments(CELLS["minGRU"], (batch, time, 32))
    given = dict(zip(given, leaves(*given.values())))
    return count(lambda **g: cell_scan(CELLS["minGRU"], **g, backend="triton"), **given)

def matrix(kind, batch, time, keys=16, heads=2):
    from _memory_calls import memory, op_of, options_of
    given = memory(kind, (batch, time, heads, keys, 16), batch)
    given = dict(zip(given, leaves(*given.values())))
    op = lambda **g: op_of(kind)(**g, **options_of(kind), backend="triton")
    return count(op, **given)
"""


@pytest.fixture
def launched(warm, tmp_path):
    """Run code where launches compile and do not run."""

    def run(code):
        return warm(SETUP + code, TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0")

    return run


#: A cell of fewer than 33 steps is another kernel.
LENGTHS = ((2, 64), (2, 63), (1, 1), (3, 100), (1, 80))
LONG = ((2, 64), (2, 63), (1, 33), (3, 100), (1, 80))


@pytest.mark.parametrize(
    ("call", "lengths"), [("scan", LENGTHS), ("selective", LENGTHS), ("cell", LONG)]
)
def test_lengths_and_batches_share_their_kernels(launched, call, lengths):
    first, *others = launched(f"result = [{call}(*s) for s in {lengths}]")
    assert first >= 2
    assert others == [0] * 4


@pytest.mark.slow
def test_short_lengths_of_a_cell_share_their_kernels(launched):
    first, *others = launched("result = [cell(*s) for s in ((2, 32), (1, 1), (3, 7))]")
    assert first == 2
    assert others == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        *("outer", "outer, by head", "outer, by channel", "outer, by channel, bonus"),
        *("delta", "delta, by head", "delta, by channel", "low rank, by channel"),
    ],
)
def test_memories_compile_once_for_all_lengths(launched, kind):
    """With few keys and with many, which take other kernels: in the shared memory of every GPU."""
    first, again, wide, wide_again, *others = launched(
        f"result = [matrix({kind!r}, *s) for s in ((2, 64), (1, 37), (1, 64, 128), (3, 37, 128),"
        " (1, 64, 64), (1, 64, 256))]"
    )
    assert first >= 5
    assert wide >= 1
    assert len(others) == 2
    assert [again, wide_again] == [0, 0]


def test_a_gpu_leaves_float64_of_matrix_memories_to_pytorch(monkeypatch):
    """They were wrong there: `benchmarks/results/`, 2026-11-26."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    memories = importlib.import_module("linrnn.ops.matrix._memory._triton")
    assert "float64" in memories.unavailable(torch.device("cuda"), torch.float64)
    assert memories.unavailable(torch.device("cuda"), torch.float32) is None
