"""FastGRNN against its equation and torch.nn, its bounds, its start and its errors."""

import numpy as np
import pytest
import torch
from transcribed import check, livelier, sigmoid, weights

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import FastGRNN

F64 = {"dtype": torch.float64}
ACTS = {
    "tanh": (np.tanh, sigmoid),
    "relu": (lambda a: np.maximum(a, 0), sigmoid),
    "piecewise": (lambda a: np.clip(a, -1, 1), lambda a: np.clip((a + 1) / 2, 0, 1)),
}


@pytest.mark.parametrize("nonlinearity", ACTS)
@pytest.mark.parametrize("ranks", [{}, {"w_rank": 2}, {"u_rank": 3}], ids=str)
@pytest.mark.parametrize("gated", [True, False])
def test_equals_a_transcription(gated, ranks, nonlinearity):
    torch.manual_seed(0)
    layer = FastGRNN(3, d_state=4, gated=gated, nonlinearity=nonlinearity, **ranks, **F64)
    p = weights(livelier(layer))
    W, U = (p[k] @ p[f"{k}_1"] if f"{k}_1" in p else p[k] for k in "WU")
    first, second = sigmoid(p["logits"])
    phi, sigma = ACTS[nonlinearity]

    def step(states, x, dt):
        (h,) = states
        a = W @ x + U @ h
        new = phi(a + p["b_h"])
        if gated:
            z = sigma(a + p["b_z"])
            h = (first * (1 - z) + second) * new + z * h
        else:
            h = first * new + second * h
        return p["out_proj.weight"] @ h + p["out_proj.bias"], [h]

    check(layer, step, 1)


def test_writing_all_that_is_forgotten_it_is_a_gru_whose_blocks_are_equal():
    torch.manual_seed(0)
    layer, gru = FastGRNN(5, **F64), torch.nn.GRU(5, 5, batch_first=True, **F64)
    with torch.no_grad():
        layer.logits.copy_(torch.tensor([100.0, -1000.0]))  # zeta = 1, nu = 0
        for ours, theirs in ((layer.W, gru.weight_ih_l0), (layer.U, gru.weight_hh_l0)):
            theirs.copy_(ours.normal_().repeat(3, 1))
        gru.bias_ih_l0.copy_(torch.cat([torch.full((5,), 1e4), layer.b_z, layer.b_h]))  # r = 1
        gru.bias_hh_l0.zero_()
    x = torch.randn(2, 30, 5, **F64)
    torch.testing.assert_close(layer(x)[0], gru(x)[0], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_without_a_gate_and_memory_it_is_an_elman_network(nonlinearity):
    torch.manual_seed(0)
    layer = FastGRNN(5, gated=False, nonlinearity=nonlinearity, **F64)
    rnn = torch.nn.RNN(5, 5, nonlinearity=nonlinearity, batch_first=True, **F64)
    with torch.no_grad():
        layer.logits.copy_(torch.tensor([100.0, -1000.0]))  # alpha = 1, beta = 0
        layer.W.copy_(rnn.weight_ih_l0)
        layer.U.copy_(rnn.weight_hh_l0)
        layer.b_h.copy_(rnn.bias_ih_l0 + rnn.bias_hh_l0)
    x = torch.randn(2, 30, 5, **F64)
    torch.testing.assert_close(layer(x)[0], rnn(x)[0], rtol=1e-11, atol=1e-12)


def test_an_open_gate_lets_the_state_grow_by_nu_a_step_and_nothing_by_more():
    layer = FastGRNN(4, **F64)
    with torch.no_grad():
        layer.logits.copy_(torch.tensor([0.3, -2.0]))
        layer.b_z.fill_(1e4)
        layer.b_h.fill_(1e4)
    zeta, nu = layer.logits.detach().sigmoid()
    y, _ = layer(torch.randn(1, 50, 4, **F64))
    torch.testing.assert_close(y[0, -1], (50 * nu).expand(4))
    torch.manual_seed(0)
    layer = livelier(FastGRNN(6, **F64), std=5.0)
    with torch.no_grad():
        layer.logits.copy_(torch.tensor([0.3, -2.0]))
    y, _ = layer(10 * torch.randn(4, 200, 6, **F64))
    assert (y.abs().amax((0, 2)) <= zeta + nu * torch.arange(1, 201)).all()
    assert y.abs().max() > zeta


def test_without_a_gate_the_state_stays_bounded():
    torch.manual_seed(0)
    layer = livelier(FastGRNN(6, gated=False, **F64), std=5.0)
    with torch.no_grad():
        layer.logits.copy_(torch.tensor([-2.0, 2.5]))
    alpha, beta = layer.logits.detach().sigmoid()
    x = 10 * torch.randn(4, 500, 6, **F64)
    assert 0.5 < layer(x)[0].abs().max() * (1 - beta) / alpha <= 1
    with torch.no_grad():
        layer.b_h.fill_(1e4)
    torch.testing.assert_close(layer(x)[1], (alpha / (1 - beta)).expand(4, 6))


def test_without_a_gate_a_gradient_survives_as_many_steps_as_one_over_alpha():
    """The reason for alpha and beta: (beta I + alpha D U) to a power of 1 / alpha is near I."""
    torch.manual_seed(0)
    layer = FastGRNN(8, gated=False, **F64)
    with torch.no_grad():
        layer.logits.copy_(torch.logit(torch.tensor([1e-3, 1 - 1e-3], **F64)))
    h = torch.zeros(1, 8, requires_grad=True, **F64)
    last = layer(0.1 * torch.randn(1, 1000, 8, **F64), h)[1]
    rows = [torch.autograd.grad(last[0, i], h, retain_graph=True)[0] for i in range(8)]
    values = torch.linalg.svdvals(torch.cat(rows))
    assert 0.1 < values[-1].item() <= values[0].item() < 10


@pytest.mark.parametrize(("gated", "logits"), [(True, [1.0, -4.0]), (False, [-3.0, 3.0])])
def test_initial_values_and_sizes(gated, logits):
    layer = FastGRNN(200, d_state=300, gated=gated, w_rank=100, u_rank=150)
    for weight in (layer.W, layer.W_1, layer.U, layer.U_1):
        assert weight.std().item() == pytest.approx(0.1, rel=0.03)
    assert layer.logits.tolist() == logits
    assert all((b == 1).all() for b in (layer.b_h, layer.b_z) if b is not None)
    own = sum(p.numel() for name, p in layer.named_parameters() if "out_proj" not in name)
    assert own == 100 * (200 + 300) + 150 * 2 * 300 + (1 + gated) * 300 + 2


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(ArgumentError, match="u_rank must be an integer of at least 1, got 0"):
        FastGRNN(4, u_rank=0)
    with pytest.raises(UnknownNameError, match="nonlinearity"):
        FastGRNN(4, nonlinearity="quantised")
