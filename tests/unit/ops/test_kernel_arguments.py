"""Arguments that do not fit end in an error of ours before any kernel sees them."""

import re
from pathlib import Path

import pytest
import torch

from linrnn.compute import native
from linrnn.errors import ArgumentError, LinrnnError
from linrnn.mixers import load
from linrnn.nn import CausalConv
from linrnn.ops import (
    block_scan,
    delta_scan,
    gated_scan,
    linear_scan,
    log_linear_scan,
    outer_scan,
    selective_scan,
)
from linrnn.ops.matrix._memory import _cpu as memory
from linrnn.ops.matrix._memory._problem import Problem

pytestmark = pytest.mark.unchecked  # the shape checker would word the errors first

A, B, H = torch.rand(2, 6, 3), torch.rand(2, 6, 3), torch.rand(2, 3)
ROW = torch.rand(1, 6, 3)
GATES = torch.rand(2, 6, 2, 3)
DECAY, INTO = -torch.rand(3, 4), torch.rand(2, 6, 4)
RESET = torch.zeros(2, 6, dtype=torch.bool)
QK, V = torch.rand(2, 6, 2, 3), torch.rand(2, 6, 4, 5)


def offsets(*values):
    return torch.tensor(values)


def packed(*values):
    return {"cu_seqlens": offsets(*values)}


SCANS = [
    ((A[:, :5], B), {}),
    ((A[:1, :, :2], B), {}),
    ((torch.rand(4), B), {}),
    ((A, B, H[:1]), {}),
    ((A, B, torch.rand(2, 4)), {}),
    ((A, B, torch.rand(3)), {}),
    ((A, B), {"reset": RESET[:, :5]}),
    ((A, B), {"reset": RESET[:1]}),
    ((A, B), {"reset": RESET.float()}),
    ((A, B), packed(0, 6)),
    ((ROW, ROW), packed(0, 7)),
    ((ROW, ROW), packed(0, 5)),
    ((ROW, ROW), packed(-1, 6)),
    ((ROW, ROW), packed(0, 4, 2, 6)),
    ((ROW, ROW), packed(0, 2**62, 6)),
    ((ROW, ROW), {"cu_seqlens": torch.tensor([], dtype=torch.long)}),
    ((ROW, ROW), {"cu_seqlens": torch.tensor([0.0, 6.0])}),
    ((ROW, ROW, H), packed(0, 6)),
]
CALLS = [
    *((linear_scan, arguments, options) for arguments, options in SCANS),
    *((log_linear_scan, arguments, options) for arguments, options in SCANS),
    (block_scan, (torch.rand(2, 2), B), {}),
    (block_scan, (torch.rand(2, 6, 4, 4), B), {}),
    (block_scan, (torch.rand(1, 5, 3, 3), B), {}),
    (block_scan, (torch.rand(3, 3), B, H[:1]), {}),
    (block_scan, (torch.rand(3, 3), B), {"reset": RESET[:, :5]}),
    (block_scan, (torch.rand(3, 3), ROW), packed(0, 7)),
    (block_scan, (B, B), {"rows": torch.zeros(2, dtype=torch.long)}),
    (block_scan, (B, B), {"rows": torch.full((3,), 3)}),
    (block_scan, (B, B), {"columns": torch.full((3,), -1)}),
    (gated_scan, (GATES[:, :, :1],), {}),
    (gated_scan, (torch.rand(2, 6, 4, 3),), {}),
    (gated_scan, (GATES, torch.rand(2, 4)), {}),
    (gated_scan, (GATES, H[:1]), {}),
    (gated_scan, (GATES,), {"reset": RESET[:, :5]}),
    (selective_scan, (A, B[:, :5], DECAY, INTO, INTO), {}),
    (selective_scan, (A, B, DECAY[:2], INTO, INTO), {}),
    (selective_scan, (A, B, DECAY, INTO[:, :, :3], INTO), {}),
    (selective_scan, (A, B, DECAY, INTO, INTO[:1]), {}),
    (selective_scan, (A, B, DECAY, INTO, INTO, torch.rand(4)), {}),
    (selective_scan, (A, B, DECAY, INTO, INTO), {"initial_state": torch.rand(2, 3, 5)}),
    (selective_scan, (A, B, DECAY, INTO, INTO), {"z": B[:, :, :2]}),
    (selective_scan, (A, B, DECAY, INTO, INTO), {"dt_bias": torch.rand(2)}),
    (selective_scan, (A, B, DECAY, INTO, INTO), {"reset": RESET[:, :5]}),
    (outer_scan, (QK, QK[:, :5], V), {}),
    (outer_scan, (QK, QK, V[:, :, :3]), {}),
    (outer_scan, (QK, QK, V[:1]), {}),
    (outer_scan, (QK, QK, V, torch.rand(3)), {}),
    (outer_scan, (QK, QK, V, torch.rand(2, 6, 4, 2)), {}),
    (outer_scan, (QK, QK, V, None, torch.rand(2, 4, 3, 5)), {"normalizer": True}),
    (outer_scan, (QK[:, :1], QK[:, :1], V[:, :1], None, torch.rand(2, 4, 3, 4)), {}),
    (outer_scan, (QK, QK, V), {"value_decay": V[:, :, :3]}),
    (outer_scan, (QK, QK, V), {"bonus": torch.rand(2, 3)}),
    (outer_scan, (QK, QK, V), {"reset": RESET[:, :5]}),
    (outer_scan, (QK[:1], QK[:1], V[:1]), packed(0, 7)),
    (delta_scan, (QK, QK, V, torch.rand(2, 6, 3)), {}),
    (delta_scan, (QK, QK, V), {"a": QK, "b": QK[:, :5]}),
    (delta_scan, (QK, QK, V), {"a": QK}),
    (CausalConv(3, 4), (A[:, :, :2], torch.rand(2, 3, 3)), {}),
    (CausalConv(3, 4), (A, torch.rand(2, 2, 3)), {}),
    (CausalConv(3, 4), (A, torch.rand(1, 3, 3)), {}),
    (CausalConv(3, 4), (A, torch.rand(2, 3, 3), RESET[:, :5]), {}),
]


@pytest.fixture
def _no_kernel(monkeypatch):
    def refuse(kernel, record):
        raise AssertionError(f"{kernel} was called")

    monkeypatch.setattr(native, "run", refuse)


@pytest.mark.parametrize(("function", "arguments", "options"), CALLS)
@pytest.mark.usefixtures("_no_kernel")
def test_no_kernel_sees_what_does_not_fit(function, arguments, options):
    with pytest.raises(LinrnnError):
        function(*arguments, **options)


@pytest.mark.parametrize("name", ["mamba", "rwkv4", "lru", "mingru"])
@pytest.mark.usefixtures("_no_kernel")
@torch.no_grad()
def test_no_step_of_a_layer_sees_a_state_that_does_not_fit(name):
    layer = load(name)(8).eval()
    for x, rows in ((torch.rand(2, 8), 1), (torch.rand(2, 7), 2)):
        with pytest.raises(LinrnnError):
            layer.step(x, layer.init_state(rows))
    other = load(name)(16).eval().init_state(2)
    with pytest.raises(LinrnnError):
        layer.step(torch.rand(2, 8), other)


@pytest.mark.skipif(native.load()[0] is None, reason="no native kernels")
@pytest.mark.parametrize("bad", [(0, 7), (0, 5), (-1, 6), (0, 4, 2, 6)])
def test_a_compiled_graph_does_not_take_the_kernel_beyond_an_array(bad):
    compiled = torch.compile(
        lambda a, b, cu: linear_scan(a, b, cu_seqlens=cu, backend="cpu")[0],
        backend="aot_eager",
        fullgraph=True,
    )
    good = torch.tensor([0, 6] if len(bad) == 2 else [0, 2, 4, 6])
    torch.testing.assert_close(compiled(ROW, ROW, good), linear_scan(ROW, ROW, cu_seqlens=good)[0])
    with pytest.raises(ArgumentError, match=r"cu_seqlens must rise from 0 to time=6"):
        compiled(ROW, ROW, offsets(*bad))


NATIVE = Path(__file__).parents[3] / "src" / "native"


def constant(header, name):
    """A whole number that a header of the native kernels defines."""
    text = (NATIVE / header).read_text(encoding="utf-8")
    (value,) = re.findall(rf"static constexpr i64 {name} = (\d+);", text)
    return int(value)


def test_a_window_of_a_memory_fits_the_room_of_its_adjoint():
    # the kernel has room for MOST chunks, and writes beyond it where there are more
    chunk, most = constant("memory_tile.h", "STEPS"), constant("memory_adjoint.h", "MOST")
    assert chunk == memory.CHUNK
    for rank in range(1, chunk + 1):
        for reads in {1, rank}:
            q, k = torch.rand(1, 1, reads, 1, 1), torch.rand(1, 1, rank, 1, 1)
            fields = {name: None for name in Problem._fields} | {"q": q, "k": k, "v": k}
            writes = chunk // rank * rank if reads > 1 else chunk  # of a chunk
            window = memory.window(Problem(**fields))
            assert 0 < window <= most * writes
            assert window % writes == 0
