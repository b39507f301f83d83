"""Longhorn against its equation in NumPy, the regression it solves, its start and its errors."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transcribed import livelier, sigmoid, weights

from linrnn.errors import ArgumentError
from linrnn.mixers import Longhorn

F64 = torch.float64


def silu(x):
    return x * sigmoid(x)


def transcription(layer, x):
    """``step`` of the authors' class, one row, one step after another."""
    p, R, N = weights(layer), layer.dt_rank, layer.d_state
    past = [np.zeros(layer.d_inner)] * layer.d_conv
    S, y = np.zeros((layer.d_inner, N)), []
    for x_t in x:
        u, z = np.split(p["in_proj.weight"] @ x_t + p.get("in_proj.bias", 0), 2)
        past = [*past[1:], u]
        taps = p["conv1d.weight"].reshape(layer.d_inner, -1)
        s = silu(sum(taps[:, i] * past[i] for i in range(layer.d_conv)) + p.get("conv1d.bias", 0))
        r, k, q = np.split(p["x_proj.weight"] @ s, [R, R + N])
        beta = sigmoid(p["dt_head.weight"] @ r + p["dt_head.bias"])
        eps = beta / (1 + beta * np.sum(k**2))
        S = S * (1 - np.outer(eps, k**2)) + s[:, None] * np.outer(eps, k)
        o = (S @ q + p["D"] * s) * silu(z)
        y.append(p["out_proj.weight"] @ o + p.get("out_proj.bias", 0))
    return np.stack(y), S


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"d_state": 3, "d_conv": 1, "dt_rank": 2},
        {"expand": 1, "bias": True, "conv_bias": False},
    ],
    ids=str,
)
def test_equals_a_transcription_whole_and_in_two_pieces(options):
    torch.manual_seed(0)
    layer = livelier(Longhorn(5, dtype=F64, **options))
    x = torch.randn(2, 20, 5, dtype=F64)
    y, state = layer(x)
    first, middle = layer(x[:, :8])
    second, _ = layer(x[:, 8:], middle)
    torch.testing.assert_close(torch.cat([first, second], 1), y, rtol=1e-11, atol=1e-12)
    for row in range(2):
        expected, S = transcription(layer, x[row].numpy())
        np.testing.assert_allclose(y[row].detach(), expected, rtol=1e-10, atol=1e-11)
        np.testing.assert_allclose(state["S"][row].detach(), S, rtol=1e-10, atol=1e-11)


def test_with_one_number_a_key_a_step_solves_its_regression():
    """Then the diagonal of the transition is all of it: the state minimises the stated sum."""
    torch.manual_seed(0)
    layer = livelier(Longhorn(2, d_state=1, d_conv=1, dtype=F64))
    x = torch.randn(1, 1, 2, dtype=F64)
    before = torch.randn(1, layer.d_inner, 1, dtype=F64)
    _, after = layer(x, {**layer.init_state(1), "S": before})
    u = layer.in_proj(x)[0, 0].chunk(2)[0]
    s = F.silu(u * layer.conv1d.weight[:, 0] + layer.conv1d.bias)
    r, k, _ = layer.x_proj(s).split([layer.dt_rank, 1, 1])
    beta = layer.dt_head(r).sigmoid()
    S = after["S"][0, :, 0].detach().requires_grad_()
    loss = (S - before[0, :, 0]).square() + beta * (S * k - s).square()
    (slope,) = torch.autograd.grad(loss.sum(), S)
    assert slope.abs().max() < 1e-12


def test_parameters_start_as_published():
    torch.manual_seed(0)
    layer = Longhorn(48)
    assert layer.dt_rank == 3
    assert layer.D.eq(1).all()
    assert not layer.dt_head.bias.any()
    assert layer.dt_head.weight.abs().max() <= 3**-0.5


def test_its_parameters_have_the_names_of_the_authors():
    names = {name for name, _ in Longhorn(4).named_parameters()}
    parts = {"conv1d.weight", "conv1d.bias", "dt_head.weight", "dt_head.bias"}
    assert names == parts | {"in_proj.weight", "x_proj.weight", "out_proj.weight", "D"}


@pytest.mark.unchecked
@pytest.mark.parametrize("option", ["d_state", "d_conv", "expand", "dt_rank"])
def test_constructor_words_its_errors(option):
    with pytest.raises(ArgumentError, match=f"Longhorn: {option} must be an integer of at least 1"):
        Longhorn(4, **{option: 0})
