"""Delta RNN against NumPy, and against DeltaNet where its second memory is never written."""

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax

from linrnn.errors import ArgumentError
from linrnn.mixers import DeltaNet, DeltaRNN


def transcribed(layer, x):
    """One sequence (time, d_model) by the printed equation."""
    H, K, V = layer.n_heads, layer.d_key, layer.d_value
    z = x @ layer.heads.proj.weight.detach().numpy().T
    sizes = np.cumsum([H * K, H * K, H * V, H, H * V, H * V])
    q, k, v, beta, own_k, own_v, own_beta = (
        part.reshape(len(x), H, -1) for part in np.split(z, sizes, -1)
    )
    q, k = (np.where(a > 0, a + 1, np.exp(a)) for a in (q, k))
    q, k = (a / (a.sum(-1, keepdims=True) + 1e-6) for a in (q, k))
    S, R, y, reads = np.zeros((H, K, V)), np.zeros((H, V, V)), np.zeros((H, V)), []
    for t in range(len(x)):
        for h in range(H):
            S[h] += expit(beta[t, h]) * np.outer(k[t, h], v[t, h] - k[t, h] @ S[h])
            key = softmax(own_k[t, h])
            R[h] += expit(own_beta[t, h]) * np.outer(key, own_v[t, h] - key @ R[h])
            y[h] = q[t, h] @ S[h] + softmax(y[h]) @ R[h]
        reads.append(y.ravel().copy())
    out = layer.out.out_proj.weight.detach().numpy()
    return np.stack(reads) @ out.T / V**0.5, S, R, y


@pytest.mark.parametrize("options", [{}, {"n_heads": 2, "d_key": 4, "d_value": 3}])
def test_equals_the_printed_equation(options):
    torch.manual_seed(0)
    layer = DeltaRNN(6, dtype=torch.float64, **options)
    with torch.no_grad():
        layer.heads.proj.weight.mul_(3)
    x = torch.randn(70, 6, dtype=torch.float64)
    y, state = layer(x[None])
    got = y, state["memory"], state["recurrent"], state["read"]
    for ours, theirs in zip(got, transcribed(layer, x.numpy()), strict=True):
        np.testing.assert_allclose(ours[0].detach(), theirs, rtol=1e-9, atol=1e-11)


def test_with_an_empty_second_memory_it_is_delta_net_with_gradients():
    torch.manual_seed(0)
    layer = DeltaRNN(6, n_heads=2, dtype=torch.float64)
    plain = DeltaNet(6, n_heads=2, kind="sum", dtype=torch.float64)
    rows = [6, 6, 6, 2, 6, 6, 2]
    with torch.no_grad():
        first = layer.heads.proj.weight.split(rows)
        first[5].zero_()  # its values
        plain.heads.proj.weight.copy_(torch.cat(first[:4]))
        plain.out.out_proj.weight.copy_(layer.out.out_proj.weight)
    x = torch.randn(2, 30, 6, dtype=torch.float64, requires_grad=True)
    ours, theirs = layer(x)[0], plain(x)[0]
    torch.testing.assert_close(ours, theirs)
    grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (ours, theirs)]
    torch.testing.assert_close(*grads)


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(ArgumentError, match="DeltaRNN: n_heads"):
        DeltaRNN(8, n_heads=0)
