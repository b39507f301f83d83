"""NoisyRNN: its equation with the noise that was drawn, none in evaluation, its variance."""

from functools import partial

import numpy as np
import pytest
import torch
from transcribed import livelier, weights

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import LipschitzRNN, NoisyRNN
from linrnn.ops import cell_scan

F64 = {"dtype": torch.float64}


def drawn(noise, shape, seed=3):
    torch.manual_seed(seed)
    first = torch.randn(shape, **F64).numpy()
    return (first,) if noise == "em" else (first, torch.rand(shape, **F64).numpy())


@pytest.mark.parametrize("noise", ["em", "code"])
@pytest.mark.parametrize("uneven", [False, True])
def test_training_equals_a_transcription_with_the_noise_of_the_seed(noise, uneven):
    torch.manual_seed(0)
    sizes = {"step_size": 0.4, "sigma_add": 0.3, "sigma_mult": 0.6, "gamma_A": 0.2}
    layer = livelier(NoisyRNN(3, noise=noise, **sizes, **F64))
    p, (A, W) = weights(layer), (M.detach().numpy() for M in layer.transitions())
    x = torch.randn(1, 12, 3, **F64)
    dt = 0.2 + torch.rand(1, 12, **F64) if uneven else torch.ones(1, 12, **F64)
    xi = drawn(noise, (1, 12, 3))
    h, wanted = np.zeros(3), []
    for t in range(12):
        f = A @ h + np.tanh(W @ h + p["V.weight"] @ x[0, t].numpy() + p["V.bias"])
        s = 0.4 * dt[0, t].item()
        if noise == "em":
            h = h + s * f + s**0.5 * (0.3 + 0.6 * f) * xi[0][0, t]
        else:
            times = 1 - 0.6 * xi[1][0, t]
            h = h + dt[0, t].item() * p["d"] * times * f + 0.3 * xi[0][0, t]
        wanted.append(h)
    torch.manual_seed(3)
    y, _ = layer(x, dt=dt if uneven else None)
    torch.testing.assert_close(y[0], torch.from_numpy(np.stack(wanted)), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("noise", ["em", "code"])
def test_evaluation_and_no_noise_are_a_lipschitz_rnn(noise):
    torch.manual_seed(0)
    other = LipschitzRNN(4, step_size=0.1, init_std=4, **F64)
    x = torch.randn(2, 20, 4, **F64)
    wanted, _ = other(x)
    for train, sigma in ((False, 0.5), (True, 0.0)):
        layer = NoisyRNN(4, noise=noise, sigma_add=sigma, sigma_mult=sigma, **F64).train(train)
        layer.load_state_dict(other.state_dict(), strict=False)
        torch.testing.assert_close(layer(x)[0], wanted, rtol=1e-13, atol=1e-14)
        state = layer(x[:, :7])[1]
        torch.testing.assert_close(layer(x[:, 7:], state)[0], wanted[:, 7:])


@pytest.mark.parametrize("form", ["loop", "native"])
def test_every_form_has_the_same_noise(form, monkeypatch):
    torch.manual_seed(0)
    layer, x = livelier(NoisyRNN(4, sigma_add=0.3, **F64)), torch.randn(2, 9, 4, **F64)
    torch.manual_seed(5)
    found = [layer(x)[0]]
    monkeypatch.setattr("linrnn.mixers._families.cell_rnn.cell_scan", partial(cell_scan, form=form))
    torch.manual_seed(5)
    found.append(layer(x)[0])
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-13)


@torch.no_grad()
def test_the_variance_is_that_of_ornstein_and_uhlenbeck():
    layer = NoisyRNN(256, step_size=0.05, sigma_add=0.4, sigma_mult=0.0, gamma_A=2.0, **F64)
    for p in layer.parameters():
        p.zero_()
    layer.M_W.copy_(torch.eye(256) * layer.gamma_W / (2 * (1 - layer.beta_W)))  # W = 0
    torch.manual_seed(0)
    y, _ = layer(torch.zeros(1, 2000, 256))
    a = 1 - 0.05 * 2.0  # h <- a h + sqrt(step) sigma xi
    wanted = 0.05 * 0.4**2 / (1 - a**2)
    assert y[0, 200:].var().item() == pytest.approx(wanted, rel=0.02)


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(ArgumentError, match="sigma_add must be at least 0 and finite, got -1"):
        NoisyRNN(4, sigma_add=-1)
    with pytest.raises(UnknownNameError, match="noise"):
        NoisyRNN(4, noise="none")


@pytest.mark.parametrize("noise", ["em", "code"])
def test_a_time_of_zero_has_a_gradient(noise):
    layer = NoisyRNN(4, noise=noise).train()
    dt = torch.zeros(2, 9).requires_grad_()
    (grad,) = torch.autograd.grad(layer(torch.randn(2, 9, 4), dt=dt)[0].sum(), dt)
    assert grad.isfinite().all()
