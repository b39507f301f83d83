"""Logarithms of decays against NumPy in float64, and their gradients."""

import numpy as np
import pytest
import torch

from linrnn.compute import native
from linrnn.ops import use_backend
from linrnn.ops.matrix.log_decays import log_decays

BACKENDS = ["cpu", "tree"] if native.load()[0] is not None else ["tree"]
TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}
LIMIT = 1.5  # some sums are beyond
each_backend = pytest.mark.parametrize("backend", BACKENDS)


def drawn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def arguments(dtype, batch=2, time=75, channels=37):
    x, base = drawn(batch, time, channels).to(dtype), drawn(channels, seed=1).to(dtype)
    assert bool(((x + base).abs() > LIMIT).any())
    return x, base


def equation(x, base):
    return -np.exp((x.double() + base.double()).detach().numpy().clip(-LIMIT, LIMIT))


@each_backend
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_decays_are_their_equation(dtype, backend):
    x, base = arguments(dtype)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    with use_backend(backend):
        for part in (x, x[:, :1], x.mT.contiguous().mT):
            g = log_decays(part, base, LIMIT)
            assert g.dtype is wide
            exact = 1e-13 if dtype is torch.float64 else 1e-6
            np.testing.assert_allclose(g.double(), equation(part, base), rtol=exact)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_gradients_are_those_of_the_definition(dtype):
    tensors, gradients = arguments(dtype), []
    into = drawn(*tensors[0].shape, seed=2).float()
    for exact, backend in ((dtype, BACKENDS[0]), (torch.float64, "tree")):
        leaves = [t.to(exact).requires_grad_() for t in tensors]
        with use_backend(backend):
            g = log_decays(*leaves, LIMIT)
        gradients.append(torch.autograd.grad(g, leaves, into.to(g.dtype)))
    for got, true in zip(*gradients, strict=True):
        assert got.dtype == dtype
        scale = float(true.abs().max())
        assert float((got.double() - true).abs().max()) <= TOLERANCE[dtype] * scale


def test_derivatives_of_both_orders():
    leaves = [t.requires_grad_() for t in arguments(torch.float64, 1, 5, 4)]
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda *each: log_decays(*each, LIMIT), leaves, fast_mode=True)


@each_backend
def test_any_threads_give_the_same_bits_and_no_rows_none(backend):
    threads, bits = torch.get_num_threads(), []
    leaves = [t.requires_grad_() for t in arguments(torch.bfloat16, 4, 600, 96)]
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            with use_backend(backend):
                g = log_decays(*leaves, LIMIT)
            bits.append([g, *torch.autograd.grad(g.square().sum(), leaves)])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, two) for one, two in zip(*bits, strict=True))
    with use_backend(backend):
        g = log_decays(leaves[0][:, :0], leaves[1], LIMIT)
        (slope,) = torch.autograd.grad(g.sum(), leaves[1:])
    assert g.shape == (4, 0, 96)
    assert not bool(slope.any())


@each_backend
def test_large_numbers_have_no_gradient(backend):
    x = torch.tensor([-1e30, 100.0, 0.0, torch.inf, -torch.inf]).view(1, 5, 1).requires_grad_()
    with use_backend(backend):
        g = log_decays(x, torch.zeros(1), 40.0)
        (slope,) = torch.autograd.grad(g.sum(), x)
    assert bool(g.isfinite().all())
    assert slope.flatten().tolist() == [0, 0, -1, 0, 0]
