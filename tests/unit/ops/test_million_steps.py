"""A million steps at |a| = 1 - 1e-7, against SciPy's recursive filter in double precision."""

import functools

import numpy as np
import pytest
import torch
from scipy.signal import lfilter

from linrnn.ops import backend_report, linear_scan

STEPS, CHANNELS = 1_000_000, 4
MOST = 4.0  # times the error of the same loop in the same dtype


def backends():
    """Those of this CPU; the reference is a loop in Python, of minutes."""
    return [name for name in ("cpu", "tree") if backend_report()[name] == "available"]


def loop(a, b, dtype):
    """The recurrence step by step, in ``dtype``: ``h_t = b_t + a h_{t-1}``, two roundings."""
    one = np.ones(1, dtype)
    rows = [
        lfilter(one, np.array([1, -d], dtype), x.astype(dtype)) for d, x in zip(a, b.T, strict=True)
    ]
    return np.stack(rows, 1)


def adjoint(a, h, into_h, dtype):
    """Gradients of a constant ``a`` and of ``b``: the same recurrence against time."""
    grad_b = loop(a.conj(), into_h[::-1], dtype)[::-1]
    grad_a = (grad_b[1:].astype(np.complex128) * h[:-1].conj()).sum(0)
    return (grad_a if np.iscomplexobj(h) else grad_a.real), grad_b


def arguments(dtype):
    """Decays of that modulus and inputs, rounded to ``dtype``, and the numbers as NumPy's."""
    g = torch.Generator().manual_seed(0)
    a = torch.full((CHANNELS,), 1 - 1e-7, dtype=torch.float64)
    if dtype.is_complex:
        a = torch.polar(a, torch.linspace(0.1, 3.0, CHANNELS, dtype=torch.float64))
    b, into_h = (torch.randn(STEPS, CHANNELS, dtype=dtype, generator=g) for _ in "bh")
    return a.to(dtype), b, into_h


def error(got, truth):
    """The largest, in parts of the largest number there is."""
    return float(np.abs(got - truth).max() / np.abs(truth).max())


def scan(backend, a, b, into_h):
    a, b = a.clone().requires_grad_(), b[None].clone().requires_grad_()
    decay = a if a.ndim == 1 else a[None]
    h, final = linear_scan(decay, b, backend=backend)
    assert torch.equal(final[0], h[0, -1])
    grads = torch.autograd.grad(h, [a, b], into_h[None])
    return h[0].detach().numpy(), grads[0].numpy(), grads[1][0].numpy()


@functools.cache
def by_loops(dtype):
    """Outputs and gradients in double precision, and by the same loop in ``dtype``."""
    a, b, into_h = (x.numpy() for x in arguments(dtype))
    wide, same = (np.complex128, np.complex64) if dtype.is_complex else (np.float64, np.float32)
    assert (np.abs(np.abs(a.astype(wide)) - (1 - 1e-7)) < 6e-8).all()
    truth, plain = loop(a.astype(wide), b.astype(wide), wide), loop(a, b, same)
    true_grads = adjoint(a.astype(wide), truth, into_h.astype(wide), wide)
    return (truth, *true_grads), (plain, *adjoint(a, plain, into_h, same))


def errors(dtype, backend, *, varying=False):
    """Errors of outputs and of the gradients of ``a`` and ``b``: of a backend, and of the loop."""
    a, b, into_h = arguments(dtype)
    h, grad_a, grad_b = scan(backend, a.expand(STEPS, -1) if varying else a, b, into_h)
    if varying:
        grad_a = grad_a.astype(np.complex128 if dtype.is_complex else np.float64).sum(0)
    truth, plain = by_loops(dtype)
    return [
        (error(got, true), error(same_loop, true))
        for got, same_loop, true in zip((h, grad_a, grad_b), plain, truth, strict=True)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("varying", [False, True], ids=["constant", "varying"])
@pytest.mark.parametrize("backend", backends())
def test_million_steps_are_as_exact_as_the_loop(backend, varying, dtype):
    for name, (ours, of_loop) in zip(
        ("h", "grad a", "grad b"), errors(dtype, backend, varying=varying), strict=True
    ):
        assert of_loop > 1e-7, f"{name}: the loop makes no error, so nothing is measured"
        assert ours <= MOST * of_loop, f"{name}: {ours:.1e}, the loop {of_loop:.1e}"


def test_shorter_memory_would_be_noticed():
    a, b, _ = arguments(torch.float32)
    (truth, *_), (plain, *_) = by_loops(torch.float32)
    shorter = linear_scan(a * (1 - 3e-7), b[None])[0][0].numpy()
    assert error(shorter, truth) > MOST * error(plain, truth)
