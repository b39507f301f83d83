"""Sums with a skip of bfloat16 against float64, their gradients, dtypes and bits."""

import pytest
import torch

from linrnn.compute import native
from linrnn.ops import use_backend
from linrnn.ops.linear.skip import add_skip

BACKENDS = ["cpu", "tree"] if native.load()[0] is not None else ["tree"]
each_backend = pytest.mark.parametrize("backend", BACKENDS)


def drawn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator)


def arguments(x_dtype, batch=2, time=75, channels=37):
    z, x = drawn(batch, time, channels), drawn(batch, time, channels, seed=1)
    return z.bfloat16(), drawn(channels, seed=2), x.to(x_dtype)


@each_backend
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16])
def test_sums_and_gradients_are_those_of_float64(x_dtype, backend):
    leaves = [t.requires_grad_() for t in arguments(x_dtype)]
    true = [t.detach().double().requires_grad_() for t in leaves]
    into = drawn(2, 75, 37, seed=3)
    with use_backend(backend):
        y = add_skip(*leaves)
    assert y.dtype is torch.float32
    exact = true[0] + true[1] * true[2]
    torch.testing.assert_close(y.double(), exact, rtol=1e-6, atol=1e-6)
    got = torch.autograd.grad(y, leaves, into)
    for slope, leaf, wanted in zip(
        got, leaves, torch.autograd.grad(exact, true, into.double()), strict=True
    ):
        assert slope.dtype is leaf.dtype
        rounding = 1e-5 if leaf.dtype is torch.float32 else 4e-3
        torch.testing.assert_close(slope.double(), wanted, rtol=rounding, atol=1e-5)


@pytest.mark.parametrize("dtypes", [(torch.float32,) * 3, (torch.bfloat16,) * 3], ids=str)
def test_other_dtypes_are_those_of_addcmul(dtypes):
    tensors = [t.to(dtype) for t, dtype in zip(arguments(torch.float32), dtypes, strict=True)]
    y, wanted = add_skip(*tensors), torch.addcmul(*tensors)
    assert y.dtype is wanted.dtype
    assert torch.equal(y, wanted)


def test_steps_and_views_are_their_equation():
    z, weight, x = arguments(torch.float32)
    whole = add_skip(z, weight, x)
    torch.testing.assert_close(add_skip(z[:, 3], weight, x[:, 3]), whole[:, 3])
    turned = (t.mT.contiguous().mT for t in (z, x))
    first, second = turned
    assert torch.equal(add_skip(first, weight, second), whole)
    assert add_skip(z[:0], weight, x[:0]).shape == (0, 75, 37)


@each_backend
@pytest.mark.parametrize("channels", [160, 161])
def test_outputs_larger_than_caches_are_those_of_their_parts(backend, channels):
    z, weight, x = arguments(torch.float32, 8, 1030, channels)
    threads = torch.get_num_threads()
    with use_backend(backend):
        parts = [add_skip(z[i : i + 1], weight, x[i : i + 1]) for i in range(8)]
        try:
            for count in (1, 3):
                torch.set_num_threads(count)
                assert torch.equal(add_skip(z, weight, x), torch.cat(parts))
        finally:
            torch.set_num_threads(threads)


def test_derivatives_of_second_order():
    leaves = [t.requires_grad_() for t in arguments(torch.float32, 1, 5, 4)]
    (slope,) = torch.autograd.grad(add_skip(*leaves).square().sum(), leaves[1], create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), leaves[1])
    torch.testing.assert_close(curvature, 2 * leaves[2].detach().square().sum((0, 1)))


@each_backend
def test_any_threads_give_the_same_bits(backend):
    threads, bits = torch.get_num_threads(), []
    leaves = [t.requires_grad_() for t in arguments(torch.float32, 4, 600, 96)]
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            with use_backend(backend):
                y = add_skip(*leaves)
            bits.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, two) for one, two in zip(*bits, strict=True))
