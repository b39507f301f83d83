"""CfC: the equations of its public code, in NumPy and as its package has them."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import CfC
from published.cfc import theirs_of

WIDTH, STATE = 3, 5
each_mode = pytest.mark.parametrize("mode", ["default", "pure", "no_gate"])


def layer(**options):
    torch.manual_seed(0)
    options = {"d_state": STATE, "backbone_units": 7, "dtype": torch.float64} | options
    mixer = CfC(WIDTH, **options)
    with torch.no_grad():
        for name, p in mixer.named_parameters():
            if name in ("w_tau", "A"):
                p.add_(torch.linspace(-0.5, 0.5, STATE))
    return mixer


def signal(batch=2, time=6):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, time, WIDTH, dtype=torch.float64, generator=generator)
    return x, 0.2 + 2 * torch.rand(batch, time, dtype=torch.float64, generator=generator)


def states(mixer, x, dt, act):
    """All states, from zero, by the equation."""
    p = {n: v.detach().numpy() for n, v in mixer.named_parameters()}

    def linear(name, z):
        return z @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    h, found = np.zeros((len(x), STATE)), []
    for t in range(x.shape[1]):
        z, tau = np.concatenate([x[:, t], h], 1), dt[:, t, None]
        for i in range(mixer.backbone_layers):
            z = act(linear(f"backbone.{i}", z))
        g = linear("heads.g", z)
        if mixer.mode == "pure":
            h = p["A"] - p["A"] * np.exp(-tau * (abs(p["w_tau"]) + abs(g))) * g
        else:
            s = 1 / (1 + np.exp(-linear("heads.a", z) * tau - linear("heads.b", z)))
            keep = 1 if mixer.mode == "no_gate" else 1 - s
            h = np.tanh(g) * keep + s * np.tanh(linear("heads.h", z))
        found.append(h)
    return np.stack(found, 1)


@each_mode
@pytest.mark.parametrize("layers", [1, 3])
def test_every_step_is_the_equation(mode, layers):
    mixer, (x, dt) = layer(mode=mode, backbone_layers=layers), signal()
    y, last = mixer(x, dt=dt)
    h = states(mixer, x.numpy(), dt.numpy(), lambda z: 1.7159 * np.tanh(0.666 * z))
    out = torch.from_numpy(h) @ mixer.out_proj.weight.t() + mixer.out_proj.bias
    assert_close(y, out)
    assert_close(last, torch.from_numpy(h[:, -1]))


@pytest.mark.parametrize(
    ("activation", "act"),
    [
        ("relu", lambda z: np.maximum(z, 0)),
        ("tanh", np.tanh),
        ("silu", lambda z: z / (1 + np.exp(-z))),
    ],
)
def test_backbones_have_other_activations(activation, act):
    mixer, (x, dt) = layer(activation=activation, mode="no_gate"), signal()
    _, last = mixer(x, dt=dt)
    assert_close(last, torch.from_numpy(states(mixer, x.numpy(), dt.numpy(), act)[:, -1]))


@each_mode
def test_the_public_package_gives_the_same_numbers_and_gradients(mode):
    cells = pytest.importorskip("ncps.torch")
    mixer, (x, dt) = layer(mode=mode), signal()
    cell = cells.CfCCell(WIDTH, STATE, mode=mode, backbone_units=7).double()
    cell.load_state_dict(theirs_of(dict(mixer.named_parameters()), cell))
    h, xs = torch.zeros(2, STATE, dtype=torch.float64), x.clone().requires_grad_()
    for t in range(x.shape[1]):
        _, h = cell(xs[:, t], h, dt[:, t, None])
    mine = x.clone().requires_grad_()
    _, last = mixer(mine, dt=dt)
    assert_close(last, h)
    h.square().sum().backward()
    last.square().sum().backward()
    assert_close(mine.grad, xs.grad)
    assert_close(mixer.heads["g"].weight.grad, cell.ff1.weight.grad)


def test_initial_values():
    torch.manual_seed(0)
    mixer = CfC(64, mode="pure")
    W = mixer.backbone[0].weight
    bound = (6 / (128 + 128)) ** 0.5
    assert W.shape == (128, 128)
    assert abs(W.std().item() / (bound / 3**0.5) - 1) < 0.02
    assert W.abs().max() <= bound
    assert not mixer.w_tau.any()
    assert (mixer.A == 1).all()


def test_a_state_stays_between_minus_one_and_one():
    mixer = layer()
    _, last = mixer(*([v * 1e3 for v in signal()][:1]), dt=signal()[1] * 1e3)
    assert last.abs().max() <= 1


@pytest.mark.unchecked
def test_options_that_are_none():
    with pytest.raises(UnknownNameError, match="no CfC mode named"):
        CfC(4, mode="liquid")
    with pytest.raises(UnknownNameError, match="no CfC activation named"):
        CfC(4, activation="sin")
    with pytest.raises(ArgumentError, match="backbone_layers must be"):
        CfC(4, backbone_layers=0)
