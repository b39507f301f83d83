"""The short convolution of what lies (batch, channels, time) in memory."""

import itertools

import pytest
import torch

from linrnn.compute import native
from linrnn.ops import causal_conv
from linrnn.ops.conv.causal_conv import _cpu

needs_native = pytest.mark.skipif(native.load()[0] is None, reason="no native kernels")


def problem(batch, time, channels, width, dtype):
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape):
        return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)

    return numbers(batch, channels, time), numbers(channels, width), numbers(channels)


@needs_native
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [1, 3, 4])
@pytest.mark.parametrize("time", [2, 3, 512, 1100])
def test_transposed_input_gives_the_same_in_its_layout(time, width, dtype, monkeypatch):
    x, weight, bias = problem(2, time, 5, width, dtype)
    past = torch.randn(2, width - 1, 5).to(
        torch.float64 if dtype == torch.float64 else torch.float32
    )
    for silu, initial, offset in itertools.product((False, True), (None, past), (None, bias)):
        with monkeypatch.context() as patch:
            patch.setattr(_cpu, "unit_channels", None)  # no copy
            y, last = causal_conv(x.mT, weight, offset, initial, silu=silu)
        expected, state = causal_conv(x.mT.contiguous(), weight, offset, initial, silu=silu)
        assert y.mT.is_contiguous()
        tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {}
        torch.testing.assert_close(y, expected, **tolerance)
        assert torch.equal(last, state)


@needs_native
def test_parts_of_a_wider_tensor_and_threads():
    x, weight, bias = problem(3, 3000, 24, 4, torch.float32)
    part = x[:, 3:20, 7:2500].mT
    expected, _ = causal_conv(part.contiguous(), weight[3:20], bias[3:20], silu=True)
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            y, _ = causal_conv(part, weight[3:20], bias[3:20], silu=True)
            torch.testing.assert_close(y, expected)
    finally:
        torch.set_num_threads(threads)


def test_gradients_resets_and_offsets_of_a_transposed_input():
    x, weight, bias = problem(1, 9, 3, 4, torch.float64)
    reset = torch.zeros(1, 9, dtype=torch.bool)
    reset[:, 4] = True
    for more in ({}, {"reset": reset}, {"cu_seqlens": torch.tensor([0, 4, 9])}, {"reverse": True}):
        results = []
        for each in (x.mT, x.mT.contiguous()):
            leaves = [t.detach().requires_grad_() for t in (each, weight, bias)]
            y, _ = causal_conv(*leaves, silu=True, **more)
            results.append((y, *torch.autograd.grad(y.square().sum(), leaves)))
        for got, expected in zip(*results, strict=True):
            torch.testing.assert_close(got, expected)
