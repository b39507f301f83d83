"""The benchmark of long convolutions: what it times gives the same numbers."""

import importlib
from pathlib import Path

import pytest
import torch

from linrnn.ops.conv.fft_conv import fft_conv
from linrnn.ops.conv.online_conv import Kernel
from linrnn.testing import check_close


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("long_conv")


def test_steps_blocks_and_products_are_the_convolution(bench):
    torch.manual_seed(0)
    taps, x = torch.randn(3, 200).double(), torch.randn(1, 200, 3).double()
    whole, _ = fft_conv(x, taps)
    for size in (1, 64, 200):
        kernel = Kernel(taps)
        y = bench.stream(kernel, x, size, bench.fresh(kernel))
        check_close(f"in {size}", y, whole, roundings=64)
    last = bench.product(taps.flip(1).t(), x[0], torch.empty_like(x[0]))
    check_close("product", last, whole[0, -1], roundings=64)


def test_a_page_has_a_row_a_length_and_says_whether_the_floor_is_kept(bench, tmp_path, monkeypatch):
    options = ["--lengths", "150", "200", "--channels", "2", "--rounds", "1"]
    monkeypatch.setattr(bench, "SLOWER", 1e9)
    assert bench.main([*options, "--out", str(tmp_path)]) == 0
    page = (tmp_path / "long-conv-cpu.md").read_text()
    assert page.count("\n| 150 |") == page.count("\n| 200 |") == 1
    monkeypatch.setattr(bench, "SLOWER", 0.0)
    assert bench.main([*options, "--out", str(tmp_path)]) == 1
