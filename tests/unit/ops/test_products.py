"""Products inside of ops against NumPy in float64, their gradients, and their memory."""

import numpy as np
import pytest
import torch

from linrnn.compute import native
from linrnn.ops import use_backend
from linrnn.ops.conv import cauchy as cauchy_module
from linrnn.ops.conv._block_carry import carry, carry_back
from linrnn.ops.conv._dplr_powers import _PRODUCT as POWERS
from linrnn.ops.conv._dplr_powers import Matrices
from linrnn.ops.conv.cauchy import cauchy
from linrnn.ops.conv.vandermonde import table, vandermonde

TILE = 2**15
TIMES = (1, 2, 3, 16, 17, 100, 1100)
BACKENDS = ["tree"] if native.load()[0] is None else ["cpu", "tree"]


@pytest.fixture(autouse=True, params=BACKENDS)
def backend(request):
    with use_backend(request.param):
        yield request.param


def drawn(*shape, dtype=torch.complex128, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def bases(channels, modes, dtype=torch.complex128):
    z = drawn(channels, modes, dtype=dtype, seed=1)
    return 0.99 * torch.sgn(z) if z.is_complex() else 0.99 * torch.tanh(z)


def poles(channels, modes):
    z = drawn(channels, modes, seed=2)
    return torch.complex(-0.01 - z.real.abs(), 3 * z.imag)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dtype", [torch.complex128, torch.float64])
def test_vandermonde_is_the_sum_of_powers(dtype, shared, time):
    c, a = drawn(2, 3, 5, dtype=dtype), bases(1 if shared else 3, 5, dtype)
    powers = a.numpy()[..., None] ** np.arange(time)
    expected = np.einsum("rhm,hmt->rht", c.numpy(), np.broadcast_to(powers, (3, 5, time))).real
    np.testing.assert_allclose(vandermonde(c, a, time), expected, rtol=1e-10, atol=1e-11)


def test_vandermonde_of_nothing_is_empty():
    assert vandermonde(drawn(2, 3, 5), bases(3, 5), 0).shape == (2, 3, 0)


def fractions(v, w, angle):
    """In complex128, both of each pair, as they are written down."""
    z = np.exp(-1j * angle.numpy())

    def half(v, w):
        return (v[..., None] / ((1 - z) - (1 + z) * w[..., None])).sum(-2)

    v, w = v.numpy(), w.numpy()
    return half(v, w) + half(v.conj(), w.conj())


@pytest.mark.parametrize("length", [1, 2, 9, 64, 300])
def test_cauchy_is_the_sum_of_fractions(length, monkeypatch):
    monkeypatch.setattr(cauchy_module, "TILE", 5 * 3 * 7)  # seven nodes at a time
    v, w = drawn(2, 3, 5), poles(3, 5)
    angle = 2 * torch.pi * torch.arange(length // 2 + 1, dtype=torch.float64) / length
    np.testing.assert_allclose(cauchy(v, w, angle), fractions(v, w, angle), rtol=1e-10, atol=1e-12)


def test_cauchy_in_float32_is_as_exact_beside_a_pole():
    """Poles a thousandth off the axis, nodes next to them: the difference is what matters."""
    w = torch.complex(torch.full((1, 4), -1e-3), torch.tensor([[0.1, 1.0, 3.0, 900.0]])).to(
        torch.complex128
    )
    beside = torch.tensor([1, 1 - 1e-6, 1 + 1e-6])[:, None]
    angle = (2 * w.imag.atan() * beside).flatten()
    v = drawn(1, 1, 4)
    expected = fractions(v, w, angle)
    error = np.abs(cauchy(v.to(torch.complex64), w, angle).numpy() - expected) / np.abs(expected)
    assert error.max() < 2e-6


def test_gradients_of_both_orders(monkeypatch):
    monkeypatch.setattr(cauchy_module, "TILE", 2 * 3 * 2)
    c, a = drawn(2, 2, 3).requires_grad_(), bases(2, 3).requires_grad_()
    v, w = drawn(2, 2, 3).requires_grad_(), poles(2, 3).requires_grad_()
    angle = torch.linspace(0, torch.pi, 5, dtype=torch.float64)

    def real(v, w):
        return torch.view_as_real(cauchy(v, w, angle))

    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda c, a: vandermonde(c, a, 7), (c, a), fast_mode=True)
        assert check(real, (v, w), fast_mode=True)


def numbers_of(a, b, c, p, q):
    """For each channel the matrix that multiplies real rows for a step, and b and c."""
    half, parts = a.shape[-1], (x.detach().numpy() for x in (a, b, c, p, q))
    basis = np.eye(2 * half)[:, ::2] + 1j * np.eye(2 * half)[:, 1::2]

    def real(z, sign=1):
        return np.stack([z.real, sign * z.imag], -1).reshape(*z.shape[:-1], -1)

    for a_, b_, c_, p_, q_ in zip(*parts, strict=True):
        yield real(basis * a_ - (basis @ q_.T).real @ p_), real(b_), real(c_, -1)


def low_rank(rank, modes, dtype=torch.complex128):
    a, b, c = bases(2, modes), drawn(2, modes, seed=3), drawn(2, modes, seed=4)
    p, q = (0.2 * drawn(2, rank, modes, seed=seed) for seed in (5, 6))
    return [x.to(dtype).requires_grad_() for x in (a, b, c, p, q)]


@pytest.mark.parametrize(("time", "most"), [(1, 8), (8, 8), (19, 8), (70, 32)])
@pytest.mark.parametrize(("rank", "modes"), [(1, 5), (2, 3), (1, 18)])
def test_powers_of_low_rank_are_those_of_a_dense_matrix(rank, modes, time, most):
    system = low_rank(rank, modes)
    found = [x.detach().numpy() for x in Matrices.of(system, time, most, torch.float64)]
    size, power = min(time, most), np.linalg.matrix_power
    after = Matrices.of(system, time, most, torch.float64).after(system[2], time).detach()
    for h, (A, b, c) in enumerate(numbers_of(*system)):
        into = np.stack([b @ power(A, j) for j in range(size)])
        expected = [into @ c, into[::-1], np.stack([power(A, j + 1) @ c for j in range(size)])]
        expected += [power(A, size), power(A, time % size)][: 2 if time % size else 1]
        for got, wanted in zip(found, expected, strict=False):
            np.testing.assert_allclose(got[h], wanted, rtol=1e-10, atol=1e-11)
        np.testing.assert_allclose(after[h], power(A, time) @ c, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("rest", [0, 3])
def test_gradients_of_the_powers_of_low_rank(rest):
    def call(*system):
        return tuple(x for x in POWERS(*system, 4, rest, torch.float64) if x.numel())

    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(call, low_rank(2, 3), fast_mode=True)


def test_products_in_float32_are_those_of_float64_rounded():
    """Sums and their gradients on every backend, of more than one block of all that is blocked."""
    system, c, a = low_rank(1, 18), drawn(2, 2, 40), bases(2, 40)
    v, w, angle = drawn(4, 2, 40), poles(2, 40), torch.linspace(0, torch.pi, 130).double()
    calls = [
        lambda low, *x: POWERS(*x, 16, 3, torch.float32 if low else torch.float64),
        lambda low, c, a: (vandermonde(c.to(torch.complex64) if low else c, a, 300),),
        lambda low, v, w: (
            torch.view_as_real(cauchy(v.to(torch.complex64) if low else v, w, angle)),
        ),
    ]
    for call, given in zip(calls, (system, (c, a), (v, w)), strict=True):
        given = [x.detach().requires_grad_() for x in given]
        results = []
        for low in (False, True):
            ys = call(low, *given)
            weights = [torch.cos(torch.arange(y.numel())).view(y.shape) for y in ys]
            results.append(
                [
                    *ys,
                    *torch.autograd.grad(
                        ys, given, [w.to(y) for w, y in zip(weights, ys, strict=True)]
                    ),
                ]
            )
        for one, two in zip(*results, strict=True):
            assert (one - two).abs().max() <= 1e-5 * one.abs().max()


def largest_allocation(call):
    """Bytes of the largest result of any operator in a call and its gradient."""
    with torch.profiler.profile(profile_memory=True) as profile:
        call().abs().sum().backward()
    return max(e.cpu_memory_usage for e in profile.events() if e.name.startswith("aten::"))


def test_no_array_of_modes_times_length_is_ever_held(monkeypatch):
    monkeypatch.setattr(cauchy_module, "TILE", TILE)
    channels, modes, time = 4, 32, 2**13
    whole = channels * modes * time * 4  # of real numbers in float32
    c = drawn(1, channels, modes, dtype=torch.complex64).requires_grad_()
    a = bases(channels, modes).requires_grad_()
    assert largest_allocation(lambda: vandermonde(c, a, time)) < whole / 8
    w = poles(channels, modes).requires_grad_()
    angle = torch.linspace(0, torch.pi, time, dtype=torch.float64)
    assert largest_allocation(lambda: cauchy(c, w, angle)) < whole / 4


def test_memory_kept_for_the_gradient_is_that_of_the_arguments():
    c = drawn(1, 4, 32, dtype=torch.complex64).requires_grad_()
    w, angle = poles(4, 32).requires_grad_(), torch.linspace(0, 3, 2**12, dtype=torch.float64)
    sizes = []
    keep = torch.autograd.graph.saved_tensors_hooks(
        lambda t: sizes.append(t.numel()) or t, lambda t: t
    )
    with keep:
        cauchy(c, w, angle)
    assert max(sizes) <= 4 * 2**12


@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 33])
def test_table_of_powers_and_its_gradients(count):
    a = bases(2, 3).requires_grad_()
    expected = a.detach().numpy()[:, None] ** np.arange(count)[:, None]
    np.testing.assert_allclose(table(a, count, a.dtype).detach(), expected, rtol=1e-12)
    assert table(a, count, torch.complex64).dtype == torch.complex64
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda a: table(a, count, a.dtype), a, fast_mode=True)


@pytest.mark.parametrize("sizes", [(3, 2, 5, 4), (1, 1, 1, 1), (2, 3, 0, 4), (2, 0, 3, 4)])
@pytest.mark.parametrize("dtype", [torch.complex128, torch.float64])
def test_states_of_blocks_are_carried_in_place(dtype, sizes):
    channels, sequences, blocks, modes = sizes
    left, first = drawn(*sizes, dtype=dtype), drawn(channels, sequences, modes, dtype=dtype, seed=1)
    decay = bases(channels, modes, dtype)
    given = [x.clone().requires_grad_() for x in (left, first, decay)]
    h, before = given[1], []
    for n in range(blocks):
        before.append(h)
        h = given[2][:, None] * h + given[0][:, :, n]
    grads = [drawn(*sizes, dtype=dtype, seed=2), drawn(*first.shape, dtype=dtype, seed=3)]
    states = torch.stack(before, 2) if before else 0 * given[0]
    expected = torch.autograd.grad((states, h), given, grads, materialize_grads=True)

    last = carry(left, first, decay)
    torch.testing.assert_close((left, last), (states.detach(), h.detach()))
    of_first, of_decay = carry_back(grads[0], left, grads[1], decay)
    torch.testing.assert_close((grads[0], of_first, of_decay), expected)


def test_states_of_blocks_are_read_from_any_memory():
    left, decay = drawn(3, 2, 5, 4), bases(3, 4)
    turned = drawn(2, 3, 4, seed=1).transpose(0, 1).conj()
    expected = carry(left.clone(), turned.resolve_conj().contiguous(), decay)
    last = carry(left, turned, decay.T.contiguous().T)
    torch.testing.assert_close(last, expected)
