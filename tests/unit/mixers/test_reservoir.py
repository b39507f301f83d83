"""The echo state network against its equation, and what is known of such reservoirs."""

import numpy as np
import pytest
import torch
from transcribed import check, weights

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import Reservoir


@pytest.mark.parametrize("activation", ["tanh", "linear"])
def test_equals_a_transcription(activation):
    torch.manual_seed(0)
    options = {"activation": activation, "leak": 0.3, "bias_scale": 0.5, "dtype": torch.float64}
    layer = Reservoir(3, d_state=4, **options)
    p = weights(layer)
    f = np.tanh if activation == "tanh" else lambda z: z

    def step(states, x, dt):
        (h,) = states
        h = 0.7 * h + 0.3 * f(p["W"] @ h + p["V"] @ x + p["b"])
        return p["out_proj.weight"] @ h + p["out_proj.bias"], [h]

    check(layer, step, 1)


@pytest.mark.parametrize("density", [1.0, 0.1, 1e-9])
def test_initial_weights_have_the_stated_radius_connections_and_scales(density):
    torch.manual_seed(0)
    options = {"density": density, "input_scale": 3.0, "bias_scale": 0.2}
    layer = Reservoir(50, d_state=200, spectral_radius=0.7, **options, dtype=torch.float64)
    radius = np.abs(np.linalg.eigvals(layer.W.numpy())).max()
    assert radius == pytest.approx(0.7, rel=1e-9)
    heard = {1.0: 200, 0.1: 20, 1e-9: 1}[density]
    assert torch.equal((layer.W != 0).sum(1), torch.full((200,), heard))
    assert layer.V.std().item() == pytest.approx(3 * 50**-0.5, rel=0.03)
    assert layer.b.std().item() == pytest.approx(0.2, rel=0.15)


def test_nothing_but_the_map_to_another_width_learns():
    assert [n for n, p in Reservoir(4).named_parameters() if p.requires_grad] == []
    learns = [n for n, p in Reservoir(4, d_state=6).named_parameters() if p.requires_grad]
    assert learns == ["out_proj.weight", "out_proj.bias"]


def apart(radius, x):
    """How far two states of one reservoir are from each other after the same inputs."""
    torch.manual_seed(0)
    layer = Reservoir(x.shape[-1], d_state=100, spectral_radius=radius, dtype=torch.float64)
    h = torch.randn(2, 100, dtype=torch.float64)
    _, (one, other) = layer(x.expand(2, -1, -1), h)
    return float((one - other).norm())


def test_echo_state_property():
    """T19: states meet under the same input below a radius of 1, and not above without input."""
    x = torch.randn(1, 400, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert apart(0.9, x) < 1e-6
    assert apart(0.9, torch.zeros_like(x)) < 1e-6
    assert apart(1.5, torch.zeros_like(x)) > 1e-2


def capacity(layer, delays, steps=20_000, washout=500):
    """Sum over delays of the share of the input's variance that the best linear readout finds."""
    u = np.random.default_rng(0).uniform(-1, 1, steps)
    h, _ = layer(torch.from_numpy(u)[None, :, None])
    z = h[0, washout:].detach().numpy()
    z = np.linalg.qr(z - z.mean(0))[0]  # which an ill-conditioned reservoir needs
    found = 0.0
    for k in range(delays):
        target = u[washout - k : steps - k]
        target = target - target.mean()
        found += np.sum((z.T @ target) ** 2) / np.sum(target**2)
    return found


class Wide(torch.nn.Module):
    """A reservoir that hears one channel, with its states as they are."""

    def __init__(self, n, **options):
        super().__init__()
        self.layer = Reservoir(n, d_state=n, dtype=torch.float64, **options)

    def forward(self, u):
        return self.layer(torch.nn.functional.pad(u, (0, self.layer.d_model - 1)))


def test_memory_capacity_is_at_most_the_number_of_states():
    """T19: that of a linear reservoir is about N, that of a tanh less, and none above."""
    n = 20
    torch.manual_seed(0)
    linear = capacity(Wide(n, activation="linear", spectral_radius=0.95), 150)
    bent = capacity(Wide(n, spectral_radius=0.95, input_scale=4.0), 150)
    assert 0.97 * n < linear <= 1.02 * n
    assert bent < 0.8 * n


@pytest.mark.unchecked
def test_errors():
    for name, value in (("leak", 0.0), ("density", 1.5)):
        with pytest.raises(ArgumentError, match=rf"Reservoir: {name} must be in \(0, 1\], got"):
            Reservoir(4, **{name: value})
    with pytest.raises(ArgumentError, match="spectral_radius must be positive"):
        Reservoir(4, spectral_radius=0.0)
    with pytest.raises(UnknownNameError, match="activation named 'relu'"):
        Reservoir(4, activation="relu")
