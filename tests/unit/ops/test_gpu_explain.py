"""`explain` says how a GPU's kernels are laid out for a call, and why."""

import pytest
from test_cell_triton import needs_triton

#: The interpreter stands for a GPU of 132 multiprocessors, which `explain` only plans for.
SETUP = """
import torch
from linrnn.cells import cell
from linrnn.compute import gpu
from linrnn.ops import explain

gpu.processors = lambda device: 132
gpu.cooperates = lambda device: True

@cell(state="h", matrix="W")
def rnn(h, x, W):
    h = torch.tanh(x + h @ W)
    return h, h

@cell(state="h")
def leak(h, x):
    h = torch.tanh(x + h)
    return h, h

@cell(state="h")
def mean(h, x):
    h = h + torch.sigmoid(x) * (x - h)
    return h, h

def scan(*shape):
    x = torch.empty(shape)
    return explain("linear_scan", x, x, backend="triton")
"""


@pytest.fixture
def explained(warm):
    def run(code):
        return warm(f"{SETUP}result = {code}", TRITON_INTERPRET="1")

    return run


@needs_triton
def test_scans_name_their_form_and_what_decided_it(explained):
    walk, tiles, handed, short = explained(
        "[scan(512, 4, 1024), scan(8, 2048, 2048), scan(1, 65536, 1024), scan(1, 64, 256)]"
    )
    requested = "triton: requested by the argument backend="
    assert walk == (
        f"{requested}, as walks along time, since 4096 of them keep 132 multiprocessors busy"
    )
    assert "tiles of time that 8 warps share, since 128 walks" in tiles
    assert "tiles of time that hand their states over, since 8 walks" in handed
    assert "most of 132 multiprocessors idle" in handed
    assert "that 8 warps share, since 2 walks" in short


@needs_triton
def test_packed_sequences_and_gated_scans_count_as_the_kernels_count_them(explained):
    packed, gated, empty = explained(
        """[
    explain("linear_scan", torch.empty(4096), torch.empty(1, 4096, 4096), backend="triton",
            cu_seqlens=torch.arange(0, 4097, 16)),
    explain("gated_scan", torch.empty(8, 2048, 2, 2048), backend="triton"),
    scan(0, 4, 8),
]"""
    )
    assert "as walks along time, since 8192 of them" in packed  # 256 sequences, 32 blocks
    assert "tiles of time that 8 warps share, since 128 walks" in gated
    assert empty == "triton: requested by the argument backend="


@needs_triton
def test_cells_name_where_their_matrices_are(explained):
    def said(n, dtype="float32"):
        call = f"x=torch.empty(8, 64, {n}, dtype=torch.{dtype})"
        matrix = f"W=torch.empty({n}, {n}, dtype=torch.{dtype})"
        return explained(f"explain(rnn, {call}, {matrix}, backend='triton')")

    assert "as matrices on chip, of one instance" in said(64)
    assert "as matrices on chip, in 4 shares" in said(256)
    assert "as one sequence an instance, since tensor cores are not used for float64" in said(
        64, "float64"
    )


@needs_triton
def test_cells_without_matrices_name_what_keeps_them_from_tiles(explained):
    def said(cell, time=64):
        call = f"x=torch.empty(8, {time}, 2048)"
        return explained(f"explain({cell}, {call}, backend='triton')")

    walk = "as walks along time of one sequence and a block of channels each, since"
    assert f"{walk} tanh of h makes its step no affine function" in said("leak")
    assert f"{walk} all of fewer than 33 steps are on their way at once" in said("mean", 32)
    assert "as tiles of time that 8 warps share, since 128 walks of one warp" in said("mean")
