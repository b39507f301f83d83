"""The kernel for RWKV-4's weighted mean of bfloat16 against a loop in float64, and its limits."""

import pytest
import torch

from linrnn.ops import use_backend, use_form
from linrnn.ops.cell import weighted_mean
from linrnn.ops.cell._wkv_cpu import unavailable
from linrnn.ops.cell.weighted_mean import wkv_scan
from linrnn.ops.linear.weighted_mean import EMPTY

HALF = torch.bfloat16
NAMES = ["y", "mean", "log_norm", "k", "v", "r", "decay", "bonus", "first_mean", "first_log_norm"]
kernel = pytest.mark.skipif(
    unavailable(torch.device("cpu"), HALF) is not None, reason="no products of bfloat16"
)


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Use the kernel for calls of any size."""
    monkeypatch.setattr(weighted_mean, "_WORTH", 0)


def drawn(batch, time, channels, *, start=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    k, v, r = (torch.randn(batch, time, channels, generator=generator).to(HALF) for _ in range(3))
    decay, bonus = torch.rand(2, channels, generator=generator)
    mean, norm = (torch.randn(batch, channels, generator=generator) for _ in range(2))
    if not start:
        mean, norm = torch.zeros_like(mean), torch.full_like(norm, EMPTY)
    return [2 * k, v, r, decay, bonus, mean, norm]


def results(leaves, reset=None, seed=3):
    """Outputs, final states, and gradients of all arguments from all of these."""
    leaves = [x.detach().requires_grad_() for x in leaves]
    y, last = wkv_scan(*leaves[:5], (leaves[5], leaves[6]), reset)
    generator = torch.Generator().manual_seed(seed)
    into = [torch.randn(x.shape, generator=generator).to(HALF).to(x.dtype) for x in (y, *last)]
    grads = torch.autograd.grad([y, *last], leaves, into)
    return [y.detach(), *(h.detach() for h in last), *grads]


def as_cell(leaves, reset=None):
    with use_form("native"):
        return results(leaves, reset)


def distance(got, true):
    return float((got.double() - true.double()).norm() / true.double().norm().clamp_min(1e-12))


SHAPES = [(1, 2, 1), (2, 37, 100), (3, 75, 300), (17, 9, 5), (1, 8, 16), (2, 1000, 33)]


@kernel
@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_are_as_exact_as_those_of_a_cell(shape, cut, start):
    leaves = drawn(*shape, start=start)
    reset = torch.rand(shape[:2], generator=torch.Generator().manual_seed(5)) < 0.2 if cut else None
    got, plain = results(leaves, reset), as_cell(leaves, reset)
    true = as_cell([x.double() for x in leaves], reset)
    for name, x, loop, exact in zip(NAMES, got, plain, true, strict=True):
        assert x.dtype is loop.dtype
        assert distance(x, exact) < 1.5 * distance(loop, exact) + 1e-6, name


@kernel
def test_the_kernel_is_what_computes(monkeypatch):
    calls = []
    backend = weighted_mean._WKV.backend
    monkeypatch.setattr(weighted_mean._WKV, "backend", lambda x: calls.append(x) or backend(x))
    leaves = drawn(2, 37, 100)
    pairs = list(zip(results(leaves), as_cell(leaves), strict=True))
    assert calls
    assert not all(torch.equal(*pair) for pair in pairs)


@kernel
def test_threads_and_runs_have_the_same_bits():
    leaves, before, found = drawn(2, 300, 290), torch.get_num_threads(), []
    try:
        for threads in (1, 3, 1):
            torch.set_num_threads(threads)
            found.append(results(leaves))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(*pair) for pair in zip(found[0], found[1], strict=True))
    assert all(torch.equal(*pair) for pair in zip(found[0], found[2], strict=True))


@kernel
def test_means_over_thousands_of_steps_are_as_exact_as_those_of_a_cell():
    k, v, r, decay, bonus, mean, norm = drawn(1, 4000, 8, start=False)
    leaves = [k, v, r, decay * 1e-5, bonus, mean, norm]
    got, plain, true = results(leaves), as_cell(leaves), as_cell([x.double() for x in leaves])
    for name, x, loop, exact in zip(NAMES, got, plain, true, strict=True):
        assert distance(x, exact) < 1.2 * distance(loop, exact) + 1e-6, name


@kernel
def test_large_and_absent_keys_weigh_all_or_nothing():
    k, *remaining = drawn(1, 20, 16, start=False)
    k[0, 5], k[0, 9] = 1e4, -torch.inf
    got = results([k, *remaining])
    assert all(x.isfinite().all() for x in got)
    y, _ = wkv_scan(k, *remaining[:4], tuple(remaining[4:]))
    v, r = remaining[0].float(), remaining[1].float()
    torch.testing.assert_close(y[0, 5].float(), r[0, 5].sigmoid() * v[0, 5], rtol=8e-3, atol=1e-3)


@kernel
def test_views_and_second_derivatives_are_those_of_dense_rows():
    k, v, r, *rows = drawn(2, 37, 24)
    together = torch.cat([k, v, r], -1)  # as one projection of all three
    got = results([*together.split(24, -1), *rows])
    assert all(torch.equal(*pair) for pair in zip(got, results([k, v, r, *rows]), strict=True))
    decay = rows[0].requires_grad_()
    y, _ = wkv_scan(k, v, r, decay, *rows[1:2], tuple(rows[2:]))
    (slope,) = torch.autograd.grad(y.float().square().sum(), decay, create_graph=True)
    assert slope.sum().requires_grad


@pytest.mark.parametrize("backend", ["tree", "reference"])
def test_another_backend_is_that_of_the_cell(backend):
    leaves = drawn(2, 20, 8)
    with use_backend(backend):
        got = results(leaves)
    true = as_cell([x.double() for x in leaves])
    assert max(distance(*pair) for pair in zip(got, true, strict=True)) < 1e-2


def test_float32_is_computed_as_a_cell():
    leaves = [x.float() for x in drawn(2, 20, 8)]
    pairs = zip(results(leaves), as_cell(leaves), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
