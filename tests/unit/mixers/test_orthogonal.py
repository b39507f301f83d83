"""exp_rnn, sco_rnn, unitary_rnn and nn_rnn: their matrices, and the recurrence in NumPy."""

from math import pi

import numpy as np
import pytest
import scipy.linalg
import torch

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import NNRNN, ExpRNN, ScoRNN, UnitaryRNN, load
from linrnn.mixers._families.orthogonal import skew

NAMES = ("exp_rnn", "sco_rnn", "unitary_rnn", "nn_rnn")


def make(name, **options):
    torch.manual_seed(0)
    layer = load(name)(3, d_state=6, dtype=torch.double, **options)
    with torch.no_grad():
        for parameter in layer.parameters():  # away from what is zero at first
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def array(x):
    return x.detach().resolve_conj().numpy()


def signal(steps=7):
    return torch.randn(2, steps, 3, generator=torch.Generator().manual_seed(1), dtype=torch.double)


def expected_matrix(layer):
    """W from its parameters, by SciPy and NumPy."""
    if isinstance(layer, UnitaryRNN):
        phases = np.exp(1j * array(layer.theta))
        v = array(layer.v)[:, 0] + 1j * array(layer.v)[:, 1]
        mirror = [np.eye(6) - 2 * np.outer(x, x.conj()) / np.vdot(x, x).real for x in v]
        dft = np.fft.fft(np.eye(6)) / np.sqrt(6)
        turn = np.eye(6)[array(layer.permutation)]
        d1, d2, d3 = map(np.diag, phases)
        return d3 @ mirror[1] @ dft.conj().T @ d2 @ turn @ mirror[0] @ dft @ d1
    A = np.zeros((6, 6))
    A[np.triu_indices(6, 1)] = array(layer.skew)
    A -= A.T
    if isinstance(layer, ScoRNN):
        return np.linalg.inv(np.eye(6) + A) @ (np.eye(6) - A) @ np.diag([-1, -1, -1, 1, 1, 1])
    P = scipy.linalg.expm(A)
    if isinstance(layer, ExpRNN):
        return P
    form = np.zeros((6, 6))
    for i in range(3):
        c, s = np.cos(array(layer.theta)[i]), np.sin(array(layer.theta)[i])
        form[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = array(layer.gamma)[i] * np.array(
            [[c, -s], [s, c]]
        )
    for (i, j), block in zip(((0, 1), (0, 2), (1, 2)), array(layer.above), strict=True):
        form[2 * i : 2 * i + 2, 2 * j : 2 * j + 2] = block
    return P @ form @ P.T


@pytest.mark.parametrize("name", NAMES)
def test_the_recurrence_is_that_of_the_paper(name):
    layer = make(name)
    W = expected_matrix(layer)
    np.testing.assert_allclose(array(layer.transition()), W, rtol=1e-11, atol=1e-12)
    x, b = signal(), array(layer.b)
    y, last = layer(x)
    u = array(layer.T(x))
    u = u[..., :6] + 1j * u[..., 6:] if name == "unitary_rnn" else u
    h, states = np.zeros_like(u[:, 0]), []
    for t in range(x.shape[1]):
        a = u[:, t] + h @ W.T
        h = a / np.abs(a) * np.maximum(np.abs(a) + b, 0)
        states.append(h)
    h = np.stack(states, 1)
    np.testing.assert_allclose(array(last), h[:, -1], rtol=1e-10, atol=1e-12)
    h = np.concatenate([h.real, h.imag], -1) if name == "unitary_rnn" else h
    weight, bias = array(layer.out_proj.weight), array(layer.out_proj.bias)
    np.testing.assert_allclose(array(y), h @ weight.T + bias, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["exp_rnn", "sco_rnn", "unitary_rnn"])
def test_without_input_and_bias_the_norm_of_the_state_stays(name):
    layer = make(name)
    torch.nn.init.zeros_(layer.b)
    state = layer(signal())[1]
    _, last = layer(torch.zeros(2, 50, 3, dtype=torch.double), state)
    torch.testing.assert_close(last.norm(dim=-1), state.norm(dim=-1), rtol=1e-12, atol=0)


def test_the_matrix_is_orthogonal_after_a_thousand_updates():
    torch.manual_seed(0)
    layer = ExpRNN(6, dtriv=100)
    optimiser = torch.optim.Adam(layer.parameters(), lr=1e-2)
    wanted = torch.linalg.qr(torch.randn(6, 6))[0]
    for _ in range(1000):
        optimiser.zero_grad()
        loss = (layer.transition() - wanted).square().sum()
        loss.backward()
        optimiser.step()
        layer.after_update()
    W = layer.transition()
    assert (W - torch.eye(6)).abs().max() > 0.3  # it has moved
    torch.testing.assert_close(W.mT @ W, torch.eye(6), rtol=0, atol=1e-5)


def test_a_dynamic_basis_moves_and_changes_nothing():
    layer = make("exp_rnn", dtriv=3)
    before = layer.transition()
    for _ in range(2):
        layer.after_update()
    assert layer.skew.abs().max() > 0
    layer.after_update()
    assert layer.skew.abs().max() == 0
    torch.testing.assert_close(layer.transition(), before)
    torch.testing.assert_close(layer.base, before)
    assert int(layer.state_dict()["updates"]) == 3


@pytest.mark.parametrize(
    ("name", "init", "low", "high"),
    [
        ("exp_rnn", "henaff", 0, pi),
        ("exp_rnn", "cayley", 0, pi / 2),
        ("sco_rnn", "cayley", 0, pi / 2),
    ],
)
def test_initial_angles_are_spread_as_published(name, init, low, high):
    torch.manual_seed(0)
    options = {"n_negative": 0} if name == "sco_rnn" else {}
    layer = load(name)(4, d_state=400, init=init, **options)
    angles = torch.linalg.eigvals(layer.transition()).angle().abs().sort().values
    uniform = torch.linspace(low, high, 400)
    assert (angles - uniform).abs().max() < 0.12 * (high - low)
    assert layer.b.abs().max() <= 0.01


def test_a_non_normal_matrix_has_the_eigenvalues_of_its_blocks():
    layer = make("nn_rnn")
    found = np.sort_complex(np.linalg.eigvals(array(layer.transition())))
    values = array(layer.gamma) * np.exp(1j * array(layer.theta))
    np.testing.assert_allclose(found, np.sort_complex(np.r_[values, values.conj()]), rtol=1e-9)
    torch.manual_seed(0)
    V = NNRNN(6, dtype=torch.double).transition()
    torch.testing.assert_close(V.mT @ V, torch.eye(6, dtype=torch.double))


def test_negative_entries_give_the_eigenvalue_minus_one():
    layer = ScoRNN(4, d_state=4, n_negative=3, dtype=torch.double)
    torch.nn.init.zeros_(layer.skew)
    assert torch.linalg.eigvals(layer.transition()).real.sort().values.tolist() == [-1, -1, -1, 1]


def test_entries_of_a_skew_matrix_are_counted():
    assert skew(torch.randn(15)).shape == (6, 6)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nn_rnn", {"d_state": 5}, "NNRNN: d_state must be even, got 5"),
        ("exp_rnn", {"d_state": 1}, "ExpRNN: d_state must be at least 2, got 1"),
        ("exp_rnn", {"dtriv": 0}, "ExpRNN: dtriv must be"),
        ("sco_rnn", {"n_negative": 5}, "n_negative must be from 0 to d_state=4, got 5"),
        ("sco_rnn", {"init": "henkel"}, "no ScoRNN init named 'henkel'"),
    ],
)
def test_options_that_do_not_fit_are_refused(name, options, message):
    with pytest.raises((ArgumentError, UnknownNameError), match=message):
        load(name)(4, **options)


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e30])
def test_a_reflection_is_that_of_its_direction_and_none_at_zero(size):
    torch.manual_seed(0)
    layer = UnitaryRNN(4, d_state=6)
    with torch.no_grad():
        layer.v.mul_(size)
    W = layer.transition()
    torch.testing.assert_close(W.mH @ W, torch.eye(6, dtype=W.dtype), rtol=0, atol=1e-5)
    y, _ = layer(torch.randn(2, 9, 4))
    grads = torch.autograd.grad(y.sum(), tuple(layer.parameters()))
    assert all(bool(g.isfinite().all()) for g in grads)
