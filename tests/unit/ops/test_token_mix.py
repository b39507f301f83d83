"""Mixes of inputs with the one before against NumPy in float64, and their gradients."""

import itertools

import numpy as np
import pytest
import torch

from linrnn.compute import native
from linrnn.ops import use_backend
from linrnn.ops.conv.token_mix import token_mix

BACKENDS = ["cpu", "tree"] if native.load()[0] is not None else ["tree"]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}
CASES = list(itertools.product((False, True), (False, True)))
each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_case = pytest.mark.parametrize(("moves", "resets"), CASES)


def drawn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def arguments(moves, resets, batch=2, time=150, channels=37, mixes=3):
    moved = drawn(mixes, time, batch, channels, seed=3).transpose(1, 2) if moves else None
    reset = drawn(batch, time, seed=4) > 1 if resets else None
    sizes = (batch, time, channels), (batch, 1, channels), (mixes, channels)
    return [*(drawn(*size, seed=i) for i, size in enumerate(sizes)), moved], reset


def equation(x, past, mu, moved, reset):
    x, past, mu = (t.double().numpy() for t in (x, past, mu))
    before = np.concatenate([past, x[:, :-1]], 1)
    before = before if reset is None else np.where(reset.numpy()[..., None], 0, before)
    factors = mu[:, None, None] + (0 if moved is None else moved.double().numpy())
    return x + factors * (before - x)


def in_dtype(tensors, dtype, requires_grad=False):
    return [None if t is None else t.to(dtype).requires_grad_(requires_grad) for t in tensors]


@each_case
@each_backend
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_mixes_are_their_equation(dtype, backend, moves, resets):
    tensors, reset = arguments(moves, resets)
    tensors = in_dtype(tensors, dtype)
    with use_backend(backend):
        mixes = token_mix(*tensors, reset)
    expected = equation(*tensors, reset)
    for y, true in zip(mixes, expected, strict=True):
        assert y.dtype == dtype
        error = np.abs(y.double().numpy() - true).max()
        assert error <= TOLERANCE[dtype] * np.abs(true).max()


@each_case
def test_gradients_are_those_of_the_definition(moves, resets):
    for dtype in TOLERANCE:
        tensors, reset = arguments(moves, resets)
        leaves = in_dtype(tensors, dtype, True)
        exact = in_dtype(in_dtype(tensors, dtype), torch.float64, True)
        gradients = []
        for each, backend in ((leaves, BACKENDS[0]), (exact, "tree")):
            with use_backend(backend):
                mixes = token_mix(*each, reset)
            into = [drawn(*y.shape, seed=5 + i).to(dtype).to(y.dtype) for i, y in enumerate(mixes)]
            sources = [t for t in each if t is not None]
            gradients.append(torch.autograd.grad(mixes, sources, into))
        for got, true in zip(*gradients, strict=True):
            assert got.dtype == dtype
            scale = float(true.abs().max())
            assert float((got.double() - true).abs().max()) <= TOLERANCE[dtype] * scale


@each_case
def test_derivatives_of_both_orders(moves, resets):
    tensors, reset = arguments(moves, resets, 1, 4, 2, 2)
    leaves = [t.requires_grad_() for t in tensors if t is not None]

    def mixes(x, past, mu, moved=None):
        return token_mix(x, past, mu, moved, reset)

    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(mixes, leaves, fast_mode=True)


@each_backend
def test_a_split_gives_the_same_bits(backend):
    (x, past, mu, moved), reset = arguments(True, True)
    x, past, mu, moved = in_dtype((x, past, mu, moved), torch.float32)
    with use_backend(backend):
        whole = token_mix(x, past, mu, moved, reset)
        first = token_mix(x[:, :70], past, mu, moved[:, :, :70], reset[:, :70])
        rest = token_mix(x[:, 70:], x[:, 69:70], mu, moved[:, :, 70:], reset[:, 70:])
    for y, *parts in zip(whole, first, rest, strict=True):
        assert torch.equal(y, torch.cat(parts, 1))


@each_backend
def test_any_strides_a_dtype_of_its_own_and_several_threads(backend):
    tensors, reset = arguments(True, True, channels=256, time=300)
    x, past, mu, moved = in_dtype(tensors, torch.float32)
    spread = torch.stack([x, -x], -1).flatten(-2)[..., ::2].requires_grad_()
    shared = moved[:1].expand_as(moved).requires_grad_()
    threads, bits = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            with use_backend(backend):
                mixes = token_mix(spread, past, mu, shared, reset, dtype=torch.bfloat16)
            assert {y.dtype for y in mixes} == {torch.bfloat16}
            into = [torch.ones_like(y).mT.contiguous().mT for y in mixes]
            bits.append([*mixes, *torch.autograd.grad(mixes, (spread, shared), into)])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, two) for one, two in zip(*bits, strict=True))
    expected = equation(spread.detach(), past, mu, shared.detach(), reset)
    for y, true in zip(mixes, expected, strict=True):
        error = np.abs(y.detach().float().numpy() - true).max()
        assert error <= TOLERANCE[torch.bfloat16] * np.abs(true).max()


def test_what_a_reset_hides_may_be_infinite():
    (x, past, mu, _), _ = arguments(False, False, time=70)
    x[:, 4] = torch.inf
    reset = torch.zeros(x.shape[:2], dtype=torch.bool)
    reset[:, 5] = True
    mixes = token_mix(x, past, mu, reset=reset)
    assert all(y[:, 5:].isfinite().all() for y in mixes)
