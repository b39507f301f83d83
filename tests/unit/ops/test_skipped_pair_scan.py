"""Pairs between two linear maps and a skip: one gradient, as exact as those of its parts."""

import copy

import pytest
import torch
import torch.nn.functional as F

import linrnn
from linrnn.ops import use_backend
from linrnn.ops.half_linear import available
from linrnn.ops.linear import skipped_pair_scan as module
from linrnn.ops.linear.skipped_pair_scan import skipped_pair_scan

tiles = pytest.mark.skipif(not available(), reason="no matrix tiles")
NAMES = ["y", "last", "x", "B", "a", "first", "C", "D"]
#: Measured: at most 0.0062 of the norm, in the gradient of a transition.
ALLOWED = 0.012


@pytest.fixture(autouse=True)
def products_of_any_size(monkeypatch):
    """Count no product as too small for tiles."""
    monkeypatch.setattr(module, "worth_tiles", lambda x, n_out: available())


def drawn(batch, time, d_model, modes, d_out=None):
    generator = torch.Generator().manual_seed(time)

    def numbers(*shape):
        return torch.randn(*shape, generator=generator)

    a = torch.polar(torch.rand(modes, generator=generator) * 0.2 + 0.79, numbers(modes))
    first = torch.complex(numbers(batch, modes), numbers(batch, modes))
    B, C = numbers(2 * modes, d_model) * d_model**-0.5, numbers(d_model, 2 * modes) * modes**-0.5
    return [numbers(batch, time, d_model), B, a, first, C, numbers(d_model)]


def results(leaves, reset=None, *, half):
    leaves = [x.detach().requires_grad_() for x in leaves]
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        y, last = skipped_pair_scan(*leaves, reset)
    generator = torch.Generator().manual_seed(1)
    into = torch.randn(y.shape, generator=generator).to(y.dtype)
    grads = torch.autograd.grad([y, last], leaves, [into, last.detach()])
    return [y.detach(), last.detach(), *grads]


def doubled(leaves):
    return [x.to(torch.complex128 if x.is_complex() else torch.float64) for x in leaves]


def distance(got, true):
    error = torch.linalg.vector_norm(got.to(true.dtype) - true)
    return float(error / torch.linalg.vector_norm(true).clamp_min(1e-12))


def by_parts(monkeypatch, leaves, reset):
    with monkeypatch.context() as patch:
        patch.setattr(module, "_as_one", lambda *leaves: False)
        return results(leaves, reset, half=True)


@tiles
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(
    "shape", [(1, 2, 1, 1), (3, 75, 37, 20), (2, 130, 64, 33), (17, 33, 100, 8)]
)
def test_all_results_are_as_exact_as_by_parts(monkeypatch, shape, cut):
    leaves = drawn(*shape)
    reset = torch.rand(shape[:2], generator=torch.Generator().manual_seed(2)) < 0.1 if cut else None
    true = results(doubled(leaves), reset, half=False)
    got, parts = results(leaves, reset, half=True), by_parts(monkeypatch, leaves, reset)
    for name, x, part, exact in zip(NAMES, got, parts, true, strict=True):
        assert x.dtype is part.dtype
        assert distance(x, exact) < max(1.5 * distance(part, exact), 1e-6), name
    assert any(not torch.equal(*pair) for pair in zip(got[2:], parts[2:], strict=True))


@tiles
def test_threads_have_the_same_bits():
    leaves, before, found = drawn(3, 200, 96, 50), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            found.append(results(leaves, half=True))
    finally:
        torch.set_num_threads(before)
    # products of PyTorch's may differ with the threads; sums over all rows may not
    assert all(torch.equal(*pair) for pair in zip(found[0], found[2], strict=True))
    assert all(distance(*pair) < 1e-2 for pair in zip(found[0], found[1], strict=True))


@tiles
def test_parts_that_need_no_gradient_get_none():
    x, *remaining = drawn(2, 20, 16, 8)
    leaves = [t.requires_grad_() for t in remaining]
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = skipped_pair_scan(x, *leaves)
    y.sum().backward()
    assert x.grad is None
    assert all(t.grad is not None and t.grad.isfinite().all() for t in leaves)


@tiles
def test_gradients_can_be_differentiated_again():
    leaves = [t.requires_grad_() for t in drawn(2, 20, 16, 8)]
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = skipped_pair_scan(*leaves)
    (slope,) = torch.autograd.grad(y.square().sum(), leaves[0], create_graph=True)
    plain = results(leaves, half=True)
    assert slope.requires_grad
    (curve,) = torch.autograd.grad(slope.square().sum(), leaves[1])
    assert curve.isfinite().all()
    assert len(plain) == len(NAMES)


@pytest.mark.parametrize("half", [False, True])
def test_other_calls_are_the_maps_and_the_scan(half):
    x, B, a, first, C, D = drawn(2, 20, 16, 8)
    with use_backend("tree"), torch.autocast("cpu", torch.bfloat16, enabled=half):
        y, _ = skipped_pair_scan(x, B, a, first, C, D)
    h, pairs = first, []
    b = torch.view_as_complex(F.linear(x, B).unflatten(-1, (8, 2)))
    for t in range(20):
        h = a * h + b[:, t]
        pairs.append(torch.view_as_real(h).flatten(1))
    exact = F.linear(torch.stack(pairs, 1), C) + D * x
    assert distance(y, exact) < (ALLOWED if half else 1e-5)


@tiles
@pytest.mark.parametrize("name", ["lru", "s5"])
def test_layers_are_as_exact_as_their_products(monkeypatch, name):
    calls, original = [], module._as_one
    monkeypatch.setattr(module, "_as_one", lambda *t: calls.append(original(*t)) or calls[-1])
    torch.manual_seed(0)
    layer = linrnn.mixers.build(name, 100, {})
    x, grad = torch.randn(2, 150, 100, requires_grad=True), torch.randn(2, 150, 100)
    exact = copy.deepcopy(layer).double()
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = layer(x)
    got = torch.autograd.grad(y, [x, *layer.parameters()], grad)
    true = torch.autograd.grad(
        exact(leaf := x.detach().double().requires_grad_())[0],
        [leaf, *exact.parameters()],
        grad.double(),
    )
    assert calls == [True, False]
    assert max(distance(*pair) for pair in zip(got, true, strict=True)) < ALLOWED
