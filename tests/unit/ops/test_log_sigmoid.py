"""Logarithms of sigmoids against PyTorch's in float64, and their gradients."""

import pytest
import torch
import torch.nn.functional as F

from linrnn.compute import native
from linrnn.ops import use_backend
from linrnn.ops.matrix.log_sigmoid import log_sigmoid
from linrnn.testing._derivatives import check_derivatives

BACKENDS = ["cpu", "tree"] if native.load()[0] is not None else ["tree"]
ROUNDING = {torch.float64: 1e-15, torch.float32: 4e-7, torch.bfloat16: 2**-8, torch.float16: 2**-11}
SCALE = 1 / 16
each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_dtype = pytest.mark.parametrize("dtype", ROUNDING)


def drawn(dtype, *shape, seed=0):
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (20 * x).to(dtype)  # far into both tails


@each_backend
@each_dtype
def test_they_are_their_equation(dtype, backend):
    x = drawn(dtype, 2, 75, 37)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    with use_backend(backend):
        for part in (x, x[:, :1], x[:0], x.mT.contiguous().mT, x[..., ::2]):
            g = log_sigmoid(part, SCALE)
            assert g.dtype is wide
            true = SCALE * F.logsigmoid(part.double())
            rtol = ROUNDING[wide]
            torch.testing.assert_close(g.double(), true, rtol=rtol, atol=0)


@each_backend
@each_dtype
def test_gradients_are_those_of_the_equation(dtype, backend):
    x = drawn(dtype, 2, 75, 37).requires_grad_()
    exact = x.detach().double().requires_grad_()
    into = drawn(torch.float64, 2, 75, 37, seed=1)
    with use_backend(backend):
        g = log_sigmoid(x, SCALE)
    (slope,) = torch.autograd.grad(g, x, into.to(g.dtype))
    (true,) = torch.autograd.grad(SCALE * F.logsigmoid(exact), exact, into)
    assert slope.dtype is dtype
    tiny = 1e-7 if dtype is torch.float16 else 1e-30  # what has no smaller numbers
    torch.testing.assert_close(slope.double(), true, rtol=2 * ROUNDING[dtype], atol=tiny)


@each_backend
def test_infinities_and_nan(backend):
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0]).expand(1, 2, 4)
    with use_backend(backend):
        y = log_sigmoid(x)
    torch.testing.assert_close(y, F.logsigmoid(x), equal_nan=True)


@pytest.mark.unchecked
def test_derivatives():
    check_derivatives(
        "log_sigmoid", lambda x: log_sigmoid(x, SCALE), {"x": drawn(torch.float64, 2, 4, 6) / 20}
    )
