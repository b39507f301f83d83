"""Recurrent Delta Net against NumPy, and against the rule of fla where nothing is fed back."""

import numpy as np
import pytest
import torch
from fla_naive import naive
from scipy.special import expit, softmax

from linrnn.errors import ArgumentError
from linrnn.mixers import RecurrentDeltaNet


def transcribed(layer, x):
    """One sequence (time, d_model) by the printed equation."""
    H, K, V = layer.n_heads, layer.d_key, layer.d_value
    W, R = layer.heads.proj.weight.detach().numpy(), layer.R.detach().numpy()
    S, y, reads = np.zeros((H, K, V)), np.zeros((H, V)), []
    for x_t in x:
        for h in range(H):
            z = W.reshape(H, -1, x.shape[1])[h] @ x_t + np.tanh(y[h]) @ R[h]
            q, k, v, b = np.split(z, [K, 2 * K, 2 * K + V])
            q, k = softmax(q), softmax(k)
            S[h] += expit(b) * np.outer(k, v - k @ S[h])
            y[h] = q @ S[h]
        reads.append(y.ravel().copy())
    out = layer.out.out_proj.weight.detach().numpy()
    return np.stack(reads) @ out.T / V**0.5, S, y


@pytest.mark.parametrize("options", [{}, {"n_heads": 2, "d_key": 4, "d_value": 3}])
def test_equals_the_printed_equation(options):
    torch.manual_seed(0)
    layer = RecurrentDeltaNet(6, dtype=torch.float64, **options)
    with torch.no_grad():
        layer.heads.proj.weight.mul_(3)
    x = torch.randn(40, 6, dtype=torch.float64)
    y, state = layer(x[None])
    got = y, state["memory"], state["read"]
    for ours, theirs in zip(got, transcribed(layer, x.numpy()), strict=True):
        np.testing.assert_allclose(ours[0].detach(), theirs, rtol=1e-9, atol=1e-11)


def test_without_feedback_it_is_the_rule_of_fla_with_gradients():
    loop = naive("delta_rule/naive.py")
    torch.manual_seed(0)
    layer = RecurrentDeltaNet(6, n_heads=2)
    layer.R.detach().zero_()
    x = torch.randn(2, 30, 6, requires_grad=True)
    q, k, v, b = layer.heads(x)[0].transpose(1, 2).split([3, 3, 3, 1], -1)
    # they divide by the root of the channels as well
    rule = loop.delta_rule_recurrence(q.softmax(-1), k.softmax(-1), v, b.sigmoid())[0]
    theirs, ours = layer.out.out_proj(rule.transpose(1, 2).flatten(2)), layer(x)[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (ours, theirs)]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-6)


def test_feedback_starts_as_published():
    layer = RecurrentDeltaNet(256, n_heads=4)
    assert layer.R.std().item() == pytest.approx(1 / 8, rel=0.02)


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(ArgumentError, match="RecurrentDeltaNet: d_key"):
        RecurrentDeltaNet(8, d_key=0)
