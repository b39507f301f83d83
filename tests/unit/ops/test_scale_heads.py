"""Channels of heads times a number of their step, against float64."""

import pytest
import torch

from linrnn.compute import native
from linrnn.ops import use_backend
from linrnn.ops.matrix.scale_heads import scale_heads

BACKENDS = ["cpu", "tree"] if native.load()[0] is not None else ["tree"]
ROUNDING = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}
each_backend = pytest.mark.parametrize("backend", BACKENDS)


def drawn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def arguments(dtype, batch=2, time=75, heads=3, channels=37):
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    return drawn(batch, time, heads, channels).to(dtype), drawn(batch, time, heads, seed=1).to(wide)


@each_backend
@pytest.mark.parametrize("dtype", ROUNDING)
def test_products_and_gradients_are_those_of_float64(dtype, backend):
    leaves = [t.requires_grad_() for t in arguments(dtype)]
    true = [t.detach().double().requires_grad_() for t in leaves]
    into = drawn(2, 75, 3, 37, seed=2).to(dtype)
    exact = true[1][..., None] * true[0]
    wanted = torch.autograd.grad(exact, true, into.double())
    with use_backend(backend):
        y = scale_heads(*leaves)
        got = torch.autograd.grad(y, leaves, into)
    rounding = {"rtol": ROUNDING[dtype], "atol": 1e-7}
    assert y.dtype is dtype
    torch.testing.assert_close(y.double(), exact, **rounding)
    torch.testing.assert_close(got[0].double(), wanted[0], **rounding)
    assert got[1].dtype is leaves[1].dtype
    exact_sum = 1e-12 if dtype is torch.float64 else 1e-4
    torch.testing.assert_close(got[1].double(), wanted[1], rtol=exact_sum, atol=exact_sum)


@each_backend
def test_parts_of_rows_and_other_layouts_are_read_where_they_lie(backend):
    wide_rows = drawn(2, 9, 3 * 8 + 5, seed=3).bfloat16()
    scale = drawn(2, 9, 3, seed=4).float()
    part = wide_rows[..., 2:26].unflatten(-1, (3, 8))
    with use_backend(backend):
        y = scale_heads(part, scale)
        for x in (part.contiguous(), part.transpose(0, 1).contiguous().transpose(0, 1)):
            assert torch.equal(scale_heads(x, scale), y)
        assert torch.equal(scale_heads(part[1:, ::2], scale[1:, ::2]), y[1:, ::2])
        assert torch.equal(scale_heads(part[:, 4:5], scale[:, 4:5]), y[:, 4:5])
        assert scale_heads(part[:, :0], scale[:, :0]).shape == (2, 0, 3, 8)


def test_derivatives_of_both_orders():
    leaves = [t.requires_grad_() for t in arguments(torch.float64, 1, 5, 2, 4)]
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(scale_heads, leaves, fast_mode=True)


@each_backend
def test_any_threads_give_the_same_bits(backend):
    threads, bits = torch.get_num_threads(), []
    leaves = [t.requires_grad_() for t in arguments(torch.bfloat16, 4, 600, 4, 48)]
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            with use_backend(backend):
                y = scale_heads(*leaves)
                bits.append([y, *torch.autograd.grad(y.float().square().sum(), leaves)])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, two) for one, two in zip(*bits, strict=True))
