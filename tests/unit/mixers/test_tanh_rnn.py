"""The tanh RNN against torch.nn.RNN with copied weights, and its resets."""

import pytest
import torch
from torch import nn

from linrnn.errors import ArgumentError
from linrnn.mixers import TanhRNN
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


@pytest.mark.unchecked
def test_constructor_words_its_errors():
    with pytest.raises(ArgumentError, match="TanhRNN: d_state must be an integer of at least 1"):
        TanhRNN(4, d_state=-2)
