"""Columns against a loop, against PyTorch's LSTM, and against the traces as published."""

import pytest
import torch
from plain_loop import check_equal, lead_out

from linrnn.errors import LinrnnError
from linrnn.mixers import Columnar


def transcription(layer, x):
    """One step after another."""
    u = (x @ layer.in_proj.weight.T + layer.in_proj.bias).view(len(x), 4, -1)
    started = layer.learn_initial
    h, c = (layer.h0, layer.c0) if started else torch.zeros_like(u[0, :2])
    found = []
    for t in range(len(x)):
        i, f, g, o = u[t] + layer.r * h
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        found.append(h)
    return lead_out(layer, torch.stack(found))


@pytest.mark.parametrize("options", [{}, {"d_state": 5}, {"learn_initial": True}], ids=str)
def test_equals_a_transcription_split_and_whole_gradients_too(options):
    check_equal(Columnar(3, dtype=torch.float64, **options), transcription)


def test_each_column_is_an_lstm_of_one_unit():
    torch.manual_seed(0)
    layer, x = Columnar(3, dtype=torch.float64), torch.randn(2, 20, 3, dtype=torch.float64)
    y, state = layer(x)
    for column in range(3):
        theirs = torch.nn.LSTM(3, 1, batch_first=True, dtype=torch.float64)
        with torch.no_grad():
            theirs.weight_ih_l0.copy_(layer.in_proj.weight[column::3])
            theirs.weight_hh_l0.copy_(layer.r[:, column, None])
            theirs.bias_ih_l0.copy_(layer.in_proj.bias[column::3])
            theirs.bias_hh_l0.zero_()
        expected, (_, c) = theirs(x)
        torch.testing.assert_close(y[..., column], expected[..., 0])
        torch.testing.assert_close(state["c"][:, column], c[0, :, 0])


def test_gradient_is_that_of_the_published_traces():
    """One column, two traces for each parameter: the derivatives of c and of h."""
    torch.manual_seed(0)
    layer, x = Columnar(1, dtype=torch.float64), torch.randn(1, 30, 1, dtype=torch.float64)
    delta = torch.randn(30, dtype=torch.float64)
    (layer(x)[0].flatten() * delta).sum().backward()
    w, b, r = (p.detach().flatten() for p in (layer.in_proj.weight, layer.in_proj.bias, layer.r))
    h, c = torch.zeros(2, dtype=torch.float64)
    T_h, T_c = torch.zeros(2, 3, 4, dtype=torch.float64)  # of w, r and b, in each gate
    total = torch.zeros(3, 4, dtype=torch.float64)
    for t in range(30):
        u = x[0, t, 0]
        a = w * u + r * h + b
        (i, f, o), g = torch.sigmoid(a[[0, 1, 3]]), torch.tanh(a[2])
        slope = torch.stack([i * (1 - i), f * (1 - f), 1 - g * g, o * (1 - o)])
        direct = torch.stack([u, h, torch.ones_like(u)])
        # d[k][p, q]: of gate k by the parameter of kind p in gate q
        d = [slope[k] * (direct[:, None] * torch.eye(4).double()[k] + r[k] * T_h) for k in range(4)]
        T_c = f * T_c + c * d[1] + i * d[2] + g * d[0]
        c = f * c + i * g
        T_h = o * (1 - torch.tanh(c) ** 2) * T_c + torch.tanh(c) * d[3]
        h = o * torch.tanh(c)
        total += delta[t] * T_h
    for ours, theirs in zip(
        (layer.in_proj.weight, layer.r, layer.in_proj.bias), total, strict=True
    ):
        torch.testing.assert_close(ours.grad.flatten(), theirs, rtol=1e-10, atol=1e-12)


def test_a_column_sees_no_other():
    torch.manual_seed(0)
    layer, x = Columnar(4, dtype=torch.float64), torch.randn(1, 9, 4, dtype=torch.float64)
    before, _ = layer(x)
    with torch.no_grad():
        layer.r[:, 2] += 1
        layer.in_proj.weight[2::4] += 1
    after, _ = layer(x)
    assert (before != after).any(0).any(0).tolist() == [False, False, True, False]


@pytest.mark.unchecked
def test_constructor_words_its_errors():
    with pytest.raises(LinrnnError, match="Columnar: d_state must be an integer of at least 1"):
        Columnar(4, d_state=0)
