"""The keys of RWKV-7 against NumPy in float64, and their gradients."""

import numpy as np
import pytest
import torch

from linrnn.compute import native
from linrnn.ops import use_backend
from linrnn.ops.matrix.low_rank_keys import low_rank_keys

BACKENDS = ["cpu", "tree"] if native.load()[0] is not None else ["tree"]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}
OPTIONS = {"heads": 3, "scale": -0.6}
each_backend = pytest.mark.parametrize("backend", BACKENDS)


def drawn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def arguments(batch=2, time=70, channels=3 * 21):
    rows = [drawn(batch, time, channels, seed=i) for i in range(3)]
    return [*rows, drawn(channels, seed=3), drawn(channels, seed=4)]


def equation(key, rate, decay, direction, relax, heads, scale, eps=1e-12):
    key, rate, decay, direction, relax = (
        t.detach().double().numpy() for t in (key, rate, decay, direction, relax)
    )
    s = 1 / (1 + np.exp(-rate))
    c = (key * direction).reshape(*key.shape[:2], heads, -1)
    c = (c / np.sqrt((c**2).sum(-1, keepdims=True) + eps)).reshape(key.shape)
    return key * (1 + (s - 1) * relax), -c, c * s, scale / (1 + np.exp(-decay))


def assert_close(results, expected, tolerance):
    for y, true in zip(results, expected, strict=True):
        error = np.abs(y.detach().double().numpy() - true).max()
        assert error <= tolerance * np.abs(true).max()


@each_backend
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_keys_are_their_equation(dtype, backend):
    tensors = [t.to(dtype) for t in arguments()]
    with use_backend(backend):
        results = low_rank_keys(*tensors, **OPTIONS)
        (one, *_) = low_rank_keys(*(t[:, :1] if t.ndim > 1 else t for t in tensors), **OPTIONS)
    assert [y.dtype for y in results[:3]] == [dtype] * 3
    assert results[3].dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
    assert_close(results, equation(*tensors, **OPTIONS), TOLERANCE[dtype])
    assert_close([one], [equation(*tensors, **OPTIONS)[0][:, :1]], TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_gradients_are_those_of_the_definition(dtype):
    rounded = [t.to(dtype) for t in arguments()]
    gradients = []
    for exact, backend in ((dtype, BACKENDS[0]), (torch.float64, "tree")):
        leaves = [t.to(exact).requires_grad_() for t in rounded]
        with use_backend(backend):
            results = low_rank_keys(*leaves, **OPTIONS)
        into = [drawn(*y.shape, seed=5 + i).to(dtype).to(y.dtype) for i, y in enumerate(results)]
        gradients.append(torch.autograd.grad(results, leaves, into))
    for got, true in zip(*gradients, strict=True):
        assert got.dtype == dtype
        scale = float(true.abs().max())
        assert float((got.double() - true).abs().max()) <= 4 * TOLERANCE[dtype] * scale


def test_derivatives_of_both_orders():
    leaves = [t.requires_grad_() for t in arguments(1, 3, 6)]
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda *each: low_rank_keys(*each, **OPTIONS), leaves, fast_mode=True)


@each_backend
def test_any_strides_mixed_dtypes_and_several_threads(backend):
    key, rate, decay, direction, relax = arguments(time=300, channels=96)
    spread = torch.stack([key, -key], -1).flatten(-2)[..., ::2].float().requires_grad_()
    tensors = spread, rate.bfloat16(), decay.mT.contiguous().mT.float(), direction, relax.float()
    tensors = [t.detach().requires_grad_() for t in tensors]
    threads, bits = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            with use_backend(backend):
                results = low_rank_keys(*tensors, **OPTIONS, dtype=torch.bfloat16)
            into = [torch.ones_like(y).mT.contiguous().mT for y in results]
            gradients = torch.autograd.grad(results, tensors, into)
            assert [g.dtype for g in gradients] == [t.dtype for t in tensors]
            bits.append([*results, *gradients])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, two) for one, two in zip(*bits, strict=True))
    assert_close(results, equation(*tensors, **OPTIONS), TOLERANCE[torch.bfloat16])


@each_backend
def test_a_key_of_zeros_has_a_finite_gradient(backend):
    tensors = [t.float().requires_grad_() for t in arguments(1, 5, 6)]
    with torch.no_grad():
        tensors[0].zero_()
    with use_backend(backend):
        results = low_rank_keys(*tensors, **OPTIONS)
    gradients = torch.autograd.grad(sum(y.sum() for y in results), tensors)
    assert all(bool(t.isfinite().all()) for t in (*results, *gradients))


@each_backend
@pytest.mark.parametrize("shape", [(0, 4, 6), (2, 0, 6)])
def test_no_rows(backend, shape):
    rows = [drawn(*shape).requires_grad_() for _ in range(3)]
    vectors = [drawn(6).requires_grad_() for _ in range(2)]
    with use_backend(backend):
        results = low_rank_keys(*rows, *vectors, **OPTIONS)
        gradients = torch.autograd.grad(sum(y.sum() for y in results), [*rows, *vectors])
    assert all(y.shape == shape for y in results)
    assert all(not bool(g.any()) for g in gradients)
