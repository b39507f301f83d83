"""SRWM against NumPy, its limits, its start and errors."""

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax

from linrnn.errors import ArgumentError
from linrnn.mixers import SRWM


def transcribed(layer, x):
    """One sequence (time, d_model) by the printed equation."""
    H, d, out = layer.n_heads, layer.d_head, layer.out.out_proj.weight.detach().numpy()
    W, ys = layer.W.detach().numpy().copy(), []
    for x_t in x.reshape(len(x), H, d):
        y = []
        for h in range(H):
            u = softmax(x_t[h]) if layer.input_softmax else x_t[h]
            y_h, q, k, b = np.split(u @ W[h], [d, 2 * d, 3 * d])
            q, k, beta = softmax(q), softmax(k), expit(b)
            rates = np.repeat(beta, [d, d, d, 4])
            W[h] = W[h] + np.outer(k, (q @ W[h] - k @ W[h]) * rates)
            y.append(y_h)
        ys.append(out @ np.concatenate(y))
    return np.stack(ys), W - layer.W.detach().numpy()


@pytest.mark.parametrize("options", [{}, {"n_heads": 2, "input_softmax": True, "beta_init": 0.0}])
def test_equals_the_printed_equation(options):
    torch.manual_seed(0)
    layer = SRWM(6, dtype=torch.float64, **options)
    x = torch.randn(40, 6, dtype=torch.float64)
    y, shift = layer(x[None])
    want, change = transcribed(layer, x.numpy())
    np.testing.assert_allclose(y[0].detach(), want, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(shift[0].detach(), change, rtol=1e-9, atol=1e-11)


def test_without_a_rate_it_is_a_linear_map():
    layer, x = SRWM(6, n_heads=2, input_softmax=True), torch.randn(2, 9, 6)
    with torch.no_grad():
        layer.W[..., -4:] = -200
    u = x.unflatten(-1, (2, 3)).softmax(-1)
    y = torch.einsum("bthd,hde->bthe", u, layer.W[..., :3]).flatten(2)
    torch.testing.assert_close(layer(x)[0], layer.out.out_proj(y))


def test_gradients_flow_through_every_change():
    layer = SRWM(4, n_heads=2, dtype=torch.float64)
    x = torch.randn(1, 5, 4, dtype=torch.float64, requires_grad=True)
    shift = layer.init_state(1).normal_().mul_(0.1).requires_grad_()
    run = lambda x, shift, W: torch.func.functional_call(layer, {"W": W}, (x, shift))  # noqa: E731
    assert torch.autograd.gradcheck(run, (x, shift, layer.W.detach().requires_grad_()))


def test_starts_as_published():
    torch.manual_seed(0)
    layer = SRWM(512, n_heads=8)
    assert layer.W[..., :-4].std().item() == pytest.approx(1 / 8, rel=0.02)
    assert layer.W[..., -4:].std().item() == pytest.approx(1 / 8, rel=0.1)
    assert layer.W[..., -4:].mean().item() == pytest.approx(-1, abs=0.02)
    assert SRWM(32).n_heads == 2
    assert SRWM(40).n_heads == 1


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(ArgumentError, match=r"SRWM: n_heads must divide the d_model of 8, got 3"):
        SRWM(8, n_heads=3)
