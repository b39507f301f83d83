"""The dense linear RNN against SciPy, a loop, and the LRU in the basis of its eigenvectors."""

import numpy as np
import pytest
import torch
from scipy.signal import dlsim, lfilter

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import LRU, LinearRNN
from linrnn.ops import use_backend
from linrnn.testing._mixer_laws import compare, results, signal


def both_forms(**options):
    torch.manual_seed(0)
    chunked = LinearRNN(**options)
    loop = LinearRNN(form="loop", **options)
    loop.load_state_dict(chunked.state_dict())
    return chunked, loop


@pytest.mark.parametrize("form", LinearRNN.forms)
def test_forward_equals_scipy_dlsim(form):
    torch.manual_seed(0)
    layer = LinearRNN(2, d_state=3, form=form, dtype=torch.float64)
    A, B, C, D = (getattr(layer, n).detach().numpy() for n in "ABCD")
    x = torch.randn(1, 30, 2, dtype=torch.float64)
    _, expected, _ = dlsim((A, B, C @ A, C @ B + np.diag(D), 1.0), x[0].numpy())
    np.testing.assert_allclose(layer(x)[0][0].detach().numpy(), expected, rtol=1e-11, atol=1e-11)


def test_forward_of_one_channel_equals_scipy_lfilter():
    layer = LinearRNN(1, dtype=torch.float64)
    with torch.no_grad():
        layer.A.fill_(-0.9)
    a, b, c, d = (getattr(layer, n).item() for n in "ABCD")
    x = torch.randn(1, 50, 1, dtype=torch.float64)
    expected = c * lfilter([b], [1, -a], x[0, :, 0].numpy()) + d * x[0, :, 0].numpy()
    np.testing.assert_allclose(layer(x)[0][0, :, 0].detach().numpy(), expected, rtol=1e-11)


def test_naive_lru_in_the_basis_of_the_eigenvectors_is_the_same_layer():
    """``A = P diag(lam) P^-1``: the second row of the ablation can do all that the first can."""
    torch.manual_seed(0)
    dense = LinearRNN(3, d_state=8, dtype=torch.float64)
    lru = LRU(3, d_state=8, parametrisation="naive", gamma=False, dtype=torch.float64)
    lam, P = np.linalg.eig(dense.A.detach().numpy())
    assert (lam.imag != 0).any()  # pairs of conjugates among them
    B = np.linalg.solve(P, dense.B.detach().numpy())
    C = dense.C.detach().numpy() @ P
    with torch.no_grad():
        lru.lam_re.copy_(torch.from_numpy(lam.real))
        lru.lam_im.copy_(torch.from_numpy(lam.imag))
        lru.B.copy_(torch.from_numpy(np.stack([B.real, B.imag], 1)))
        lru.C.copy_(torch.from_numpy(np.stack([C.real, -C.imag], -1)))
        lru.D.copy_(dense.D)
    x, h0 = torch.randn(2, 40, 3, dtype=torch.float64), torch.randn(2, 8, dtype=torch.float64)
    y, last = dense(x, h0)
    basis = torch.from_numpy(P)
    z, z_last = lru(x, torch.linalg.solve(basis, h0.to(basis.dtype).mT).mT)
    torch.testing.assert_close(z, y, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(z_last @ basis.mT, last.to(basis.dtype), rtol=1e-9, atol=1e-9)


def test_eigenvalues_are_those_of_numpy():
    layer = LinearRNN(7, dtype=torch.float64)
    expected = np.sort_complex(np.linalg.eigvals(layer.A.detach().numpy()))
    np.testing.assert_allclose(np.sort_complex(layer.eigenvalues().detach().numpy()), expected)
    assert LinearRNN(3, dtype=torch.bfloat16).eigenvalues().dtype == torch.complex64


@pytest.mark.parametrize("time", [127, 256, 301])
def test_long_sequences_are_chunked_without_a_trace(time):
    """At 256 steps and more the powers of A end and a loop takes over."""
    chunked, loop = both_forms(d_model=6, d_state=5, dtype=torch.float64)
    reset = torch.zeros(3, time, dtype=torch.bool)
    reset[0, 17] = reset[1, 0] = reset[1, time - 1] = reset[2, 100:104] = True
    x, h0 = signal(3, time, 6), signal(3, 5, seed=2).requires_grad_()
    for mask in (None, reset):
        got, expected = (
            results(lambda x, h, m=m, mask=mask: m(x, h, reset=mask), m, x, h0)
            for m in (chunked, loop)
        )
        compare(f"{time} steps", got, expected, 2**14)


def test_powers_of_A_cost_no_accuracy():
    """In float32 the tree is as close to float64 as the loop is, or closer."""
    chunked, loop = both_forms(d_model=32)
    exact = LinearRNN(32, dtype=torch.float64)
    exact.load_state_dict(chunked.state_dict())
    x = torch.randn(2, 300, 32)
    truth = exact(x.double())[0]
    with use_backend("tree"):
        errors = [(chunked(x)[0] - truth).norm()]
    errors.append((loop(x)[0] - truth).norm())
    assert errors[0] <= errors[1]


@pytest.mark.parametrize("form", LinearRNN.forms)
def test_nothing_is_clipped(form):
    layer = LinearRNN(1, form=form, dtype=torch.float64)
    with torch.no_grad():
        layer.A.fill_(1.5)
    _, last = layer(torch.zeros(1, 600, 1, dtype=torch.float64), torch.ones(1, 1).double())
    assert last.item() == pytest.approx(1.5**600, rel=1e-10)


def test_reset_stops_growth_that_would_overflow():
    chunked, loop = both_forms(d_model=3)
    for layer in (chunked, loop):
        with torch.no_grad():
            layer.A.mul_(1.7 / layer.eigenvalues().abs().max())
    reset = (torch.arange(700) % 70 == 0).expand(2, -1)
    x = torch.randn(2, 700, 3)
    got, expected = (m(x, reset=reset)[0] for m in (chunked, loop))
    assert got.isfinite().all()
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())
    assert not chunked(x)[0].isfinite().all()  # without resets nothing hides the overflow


def test_reset_forgets_nan():
    layer = LinearRNN(3, dtype=torch.float64)
    x = torch.randn(1, 40, 3, dtype=torch.float64)
    x[0, 10] = float("nan")
    x.requires_grad_()
    reset = torch.zeros(1, 40, dtype=torch.bool)
    reset[0, 23] = True
    y, last = layer(x, torch.full((1, 3), float("inf")).double(), reset=reset)
    torch.testing.assert_close(y[:, 23:], layer(x[:, 23:])[0])
    (grad,) = torch.autograd.grad(last.sum(), [x])
    assert not grad[:, :23].any()
    assert grad[:, 23:].all()


def test_initial_weights_have_the_stated_variances():
    torch.manual_seed(0)
    layer = LinearRNN(200, d_state=100)
    for weight, variance in ((layer.A, 1 / 100), (layer.B, 2 / 300), (layer.C, 2 / 300)):
        assert weight.var().item() == pytest.approx(variance, rel=0.05)
        assert abs(weight.mean().item()) < 4 * (variance / weight.numel()) ** 0.5
    square = layer.eigenvalues().abs().square()  # circular law: uniform by area on the disk
    assert square.max().item() == pytest.approx(1, abs=0.3)
    assert (square < 0.5).float().mean().item() == pytest.approx(0.5, abs=0.1)


@pytest.mark.unchecked
def test_constructor_words_its_errors():
    with pytest.raises(ArgumentError, match="d_state must be an integer of at least 1, got 0"):
        LinearRNN(4, d_state=0)
    with pytest.raises(UnknownNameError, match=r"no LinearRNN form named 'lop'. Did you mean"):
        LinearRNN(4, form="lop")
