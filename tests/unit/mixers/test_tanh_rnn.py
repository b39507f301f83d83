"""The tanh RNN against torch.nn.RNN with copied weights, and its resets."""

import numpy as np
import pytest
import torch
from torch import nn

from linrnn.dynamics import lyapunov_exponents, step_jacobians
from linrnn.errors import ArgumentError
from linrnn.mixers import TanhRNN
from linrnn.ops.cell.dense_recurrence import recurrence
from linrnn.testing._mixer_laws import compare, results, signal


def torch_rnn(layer, nonlinearity):
    """PyTorch's layer with our weights."""
    N, D = layer.B.shape
    theirs = nn.RNN(D, N, nonlinearity=nonlinearity, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        theirs.weight_hh_l0.copy_(layer.A)
        theirs.weight_ih_l0.copy_(layer.B)
        theirs.bias_hh_l0.zero_()
        theirs.bias_ih_l0.zero_()
        if layer.b is not None:
            theirs.bias_ih_l0.copy_(layer.b)
    return theirs


@pytest.mark.parametrize("bias", [True, False])
def test_equals_torch_with_copied_weights(bias):
    torch.manual_seed(0)
    layer = TanhRNN(5, d_state=7, bias=bias, dtype=torch.float64)
    if bias:
        nn.init.normal_(layer.b)
    theirs = torch_rnn(layer, "tanh")
    x = torch.randn(3, 17, 5, dtype=torch.float64, requires_grad=True)
    h0 = torch.randn(3, 7, dtype=torch.float64)
    y, last = layer(x, h0)
    h, expected_last = theirs(x, h0[None])
    expected = h @ layer.C.T + layer.D * x
    torch.testing.assert_close((y, last), (expected, expected_last[0]), rtol=1e-12, atol=1e-12)
    weight = torch.randn_like(y)
    got = torch.autograd.grad((y * weight).sum(), [x, layer.A, layer.B])
    sources = [x, theirs.weight_hh_l0, theirs.weight_ih_l0]
    torch.testing.assert_close(got, torch.autograd.grad((expected * weight).sum(), sources))
    assert (layer.b is not None) == bias


def test_rows_reset_at_their_own_steps_and_forget_nan():
    layer = TanhRNN(4, dtype=torch.float64)
    x, h0 = signal(3, 9, 4), signal(3, 4, seed=2)
    x[2, 3] = float("nan")
    h0[1] = float("inf")
    reset = torch.zeros(3, 9, dtype=torch.bool)
    reset[1, 0] = reset[2, 4] = reset[2, 5] = True
    y, last = layer(x, h0, reset=reset)
    torch.testing.assert_close(y[:1], layer(x[:1], h0[:1])[0])
    torch.testing.assert_close(y[1:2], layer(x[1:2])[0])
    torch.testing.assert_close(y[2:, 4:5], layer(x[2:, 4:5])[0])
    torch.testing.assert_close(y[2:, 5:], layer(x[2:, 5:])[0])
    torch.testing.assert_close(last[2:], layer(x[2:, 5:])[1])


def test_long_sequence_of_steps_is_the_sequence():
    layer = TanhRNN(3, d_state=2, dtype=torch.float64)
    x, h0 = signal(2, 12, 3), signal(2, 2, seed=2).requires_grad_()

    def steps(x, h):
        ys = []
        for x_t in x.unbind(1):
            y_t, h = layer.step(x_t, h)
            ys.append(y_t)
        return torch.stack(ys, 1), h

    compare("steps", results(steps, layer, x, h0), results(layer, layer, x, h0), 2**10)


def test_state_stays_below_one():
    _, last = TanhRNN(8)(1e4 * torch.randn(2, 50, 8))
    assert (last.abs() <= 1).all()


def test_initial_weights_have_the_stated_variances():
    torch.manual_seed(0)
    layer = TanhRNN(200, d_state=300)
    for weight, variance in ((layer.A, 1 / 300), (layer.B, 2 / 500), (layer.C, 2 / 500)):
        assert weight.var().item() == pytest.approx(variance, rel=0.03)
    assert not layer.b.any()


def test_an_orthogonal_start_keeps_sizes_and_leaves_the_rest_as_it_was():
    layers = []
    for init in ("glorot", "orthogonal"):
        torch.manual_seed(0)
        layers.append(TanhRNN(4, d_state=30, init=init))
    A = layers[1].A.detach()
    torch.testing.assert_close(A @ A.T, torch.eye(30), rtol=0, atol=1e-5)
    assert layers[1].B.equal(layers[0].B)
    assert layers[1].D.equal(layers[0].D)
    assert TanhRNN(4, init="orthogonal", dtype=torch.bfloat16).A.dtype == torch.bfloat16


def limit_cycle(gain, d_state=2, low=20.0, high=20.0):
    """A layer on its way around, and the state it is in."""
    torch.manual_seed(0)
    options = {"init": "limit_cycle", "gain": gain, "min_period": low, "max_period": high}
    layer = TanhRNN(1, d_state=d_state, **options, dtype=torch.float64)
    h = torch.full((1, d_state), 0.3, dtype=torch.float64)
    return layer, layer(torch.zeros(1, 500, 1, dtype=torch.float64), h)[1].detach()


@pytest.mark.parametrize(
    ("gain", "amplitude", "period", "second"),
    [(1.05, 0.424, 20.04, -0.099), (1.10, 0.570, 20.14, -0.197), (1.50, 0.917, 23.08, -0.993)],
)
def test_a_limit_cycle_is_neither_left_nor_expanded(gain, amplitude, period, second):
    """T16: Lyapunov exponents (0, below 0), at the size and the period measured elsewhere."""
    layer, h = limit_cycle(gain)
    steps = 3000
    x = torch.zeros(steps, 1, dtype=torch.float64)
    found = lyapunov_exponents(step_jacobians(layer, x, h))
    assert abs(found[0]) < 1e-3
    assert found[1].item() == pytest.approx(second, abs=2e-3)
    path = recurrence(torch.zeros(1, steps, 1).double(), [h], layer._weights(), None, "tanh")[0][0]
    assert path.abs().max().item() == pytest.approx(amplitude, abs=2e-3)
    turned = torch.atan2(path[:, 1], path[:, 0]).detach().numpy()
    rate = (np.unwrap(turned)[-1] - turned[0]) / (steps - 1)
    assert 2 * np.pi / rate == pytest.approx(period, abs=0.02)


@pytest.mark.parametrize("gain", [1.1, 0.9])
def test_a_gradient_is_of_order_one_after_ten_thousand_steps_on_a_limit_cycle(gain):
    layer, h = limit_cycle(gain, 8, 10.0, 50.0)
    h.requires_grad_()
    last = layer(torch.zeros(1, 10_000, 1, dtype=torch.float64), h)[1][0]
    J = torch.stack([torch.autograd.grad(one, h, retain_graph=True)[0][0] for one in last])
    largest = float(torch.linalg.matrix_norm(J, 2))
    assert 0.3 < largest < 3 if gain > 1 else largest < 1e-300


def test_limit_cycles_begin_with_rotations_of_the_stated_periods_and_a_weak_input():
    torch.manual_seed(0)
    layer = TanhRNN(50, d_state=401, init="limit_cycle", gain=1.2, min_period=4.0, max_period=64.0)
    values = torch.linalg.eigvals(layer.A.detach().double())
    turning = values[values.imag > 0]
    torch.testing.assert_close(turning.abs(), torch.full((200,), 1.2).double(), rtol=1e-5, atol=0)
    logs = (2 * torch.pi / turning.angle()).log2()
    assert 2 <= logs.min() < 2.1 < 5.9 < logs.max() <= 6
    assert logs.mean().item() == pytest.approx(4, abs=0.3)
    assert not layer.A[400].any()
    assert layer.B.std().item() == pytest.approx(0.1 * 50**-0.5, rel=0.03)


@pytest.mark.unchecked
def test_constructor_words_its_errors():
    with pytest.raises(ArgumentError, match="must satisfy 2 < min_period <= max_period, got min"):
        TanhRNN(4, min_period=9.0, max_period=3.0)
    with pytest.raises(ArgumentError, match="TanhRNN: gain must be positive"):
        TanhRNN(4, gain=0.0)
    with pytest.raises(ArgumentError, match="TanhRNN: d_state must be an integer of at least 1"):
        TanhRNN(4, d_state=-2)
