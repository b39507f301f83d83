"""Mao's decaying fast weights against NumPy and the loop of fla, golden numbers, their start."""

import numpy as np
import pytest
import torch
from fla_naive import naive
from scipy.special import expit
from scipy.stats import kstest

from linrnn.errors import ArgumentError
from linrnn.mixers import Mao


def transcribed(layer, x):
    """One sequence (time, d_model) by the printed equation."""
    H, K, V = layer.n_heads, layer.d_key, layer.d_value
    weight, own, bias, out = (
        p.detach().numpy()
        for p in (
            layer.heads.proj.weight,
            layer.gates.proj.weight,
            layer.gates.proj.bias,
            layer.out.out_proj.weight,
        )
    )
    S, ys = np.zeros((H, K, V)), []
    for x_t in x:
        q, k, v = np.split(weight @ x_t, [H * K, 2 * H * K])
        z, f = np.split(expit(own @ x_t + bias), [H * K])
        q, k, v, z, f = (part.reshape(H, -1) for part in (q, k, v, z, f))
        S = z[:, :, None] * f[:, None, :] * S + k[:, :, None] * v[:, None, :]
        ys.append(out @ np.einsum("hkv,hk->hv", S, q).ravel())
    return np.stack(ys), S


@pytest.mark.parametrize("options", [{}, {"n_heads": 2, "d_key": 4, "d_value": 3}])
def test_equals_the_printed_equation(options):
    torch.manual_seed(0)
    layer = Mao(6, dtype=torch.float64, **options)
    x = torch.randn(50, 6, dtype=torch.float64)
    y, state = layer(x[None])
    want, memory = transcribed(layer, x.numpy())
    np.testing.assert_allclose(y[0].detach(), want, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(state["memory"][0].detach(), memory, rtol=1e-9, atol=1e-11)


def test_without_decays_of_values_it_is_the_loop_of_fla_with_gradients():
    loop = naive("gla/naive.py")
    torch.manual_seed(0)
    layer = Mao(6, n_heads=2, d_key=3)
    H, K = 2, 3
    with torch.no_grad():
        layer.gates.proj.weight[H * K :] = 0
        layer.gates.proj.bias[H * K :] = 100
    x = torch.randn(2, 40, 6, requires_grad=True)
    q, k, v = layer.heads(x)
    z, _ = layer.gates(x)
    o = loop.naive_recurrent_gla(q * K**0.5, k, v, torch.nn.functional.logsigmoid(z))[0]
    theirs, ours = layer.out.out_proj(o.flatten(2)), layer(x)[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (ours, theirs)]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


def test_golden_numbers():
    layer = Mao(1, dtype=torch.float64)
    with torch.no_grad():
        for linear in (layer.heads.proj, layer.out.out_proj):
            linear.weight.fill_(1)
        layer.gates.proj.weight.zero_()
        layer.gates.proj.bias.zero_()
    y, _ = layer(torch.ones(1, 3, 1, dtype=torch.float64))
    assert y.flatten().tolist() == [1, 1.25, 1.3125]


def test_gates_start_uniform():
    torch.manual_seed(0)
    layer = Mao(8, n_heads=4, d_key=1, d_value=2)
    biases = []
    for _ in range(500):
        layer.reset_parameters()
        biases.append(layer.gates.proj.bias.detach().double().sigmoid())
    for gate, least in zip(torch.stack(biases).split([4, 8], 1), (1 / 4, 1 / 8), strict=True):
        assert kstest((gate.flatten() - least) / (1 - 2 * least), "uniform").pvalue > 0.01


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(ArgumentError, match="d_key"):
        Mao(8, d_key=0)
