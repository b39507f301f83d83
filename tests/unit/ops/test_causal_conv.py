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


def by_loop(x, weight, bias, past, reset):
    """The equation with SiLU, a step after the other, in the dtype of its arguments."""
    before = weight.shape[1] - 1
    rows, outputs = [*past.unbind(1)], []
    for t in range(x.shape[1]):
        rows.append(x[:, t])
        alive = torch.ones_like(x[:, t, :1])
        total = bias + weight[:, -1] * rows[-1]
        for j in range(1, before + 1):
            alive = alive * ~reset[:, t - j + 1, None] if t - j + 1 >= 0 else alive
            total = total + alive * weight[:, -1 - j] * rows[-1 - j]
        outputs.append(torch.nn.functional.silu(total))
    return torch.stack(outputs, 1)


@needs_native
@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("resets", [False, True])
def test_chunks_of_bfloat16_rows_and_their_gradients_follow_the_equation(width, resets):
    # chunks of 32 steps, of which some see the past or a reset; channels that fill no register
    torch.manual_seed(0)
    batch, time, channels = 2, 150, 37
    wide = torch.randn(batch, time, channels + 11).bfloat16()
    weight, bias = torch.randn(channels, width), torch.randn(channels)
    past, reset = (
        torch.randn(batch, width - 1, channels),
        torch.zeros(batch, time, dtype=torch.bool),
    )
    reset[0, [0, 40, 41, 127]] = resets
    slope = torch.randn(batch, time, channels).bfloat16()
    results, threads = [], torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            leaves = [t.clone().requires_grad_() for t in (wide, weight, bias, past)]
            x, *constants = leaves
            y, _ = causal_conv(x[..., 5 : 5 + channels], *constants, silu=True, reset=reset)
            results.append((y, *torch.autograd.grad(y, leaves, slope)))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    exact = [t.double().requires_grad_() for t in (wide, weight, bias, past)]
    y = by_loop(exact[0][..., 5 : 5 + channels], *exact[1:], reset)
    for got, true in zip(
        results[0], (y, *torch.autograd.grad(y, exact, slope.double())), strict=True
    ):
        error = (got.double() - true).abs().max()
        assert error <= (2**-8 if got.dtype == torch.bfloat16 else 1e-4) * true.abs().max()
