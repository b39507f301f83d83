"""ODE-RNN: SciPy between the inputs, PyTorch's GRU at each."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch.testing import assert_close

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import GRU, ODERNN

WIDTH, STATE = 3, 4


def layer(**options):
    torch.manual_seed(0)
    options = {"d_state": STATE, "d_hidden": 7, "dtype": torch.float64} | options
    mixer = ODERNN(WIDTH, **options)
    with torch.no_grad():  # a field that moves
        for linear in (mixer.inner, mixer.outer):
            if linear is not None:
                linear.weight.mul_(4)
                linear.bias.normal_(std=0.3)
        if mixer.log_rate is not None:
            mixer.log_rate.copy_(torch.linspace(-1, 1, STATE))
    return mixer


def signal(batch=2, time=4):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, time, WIDTH, dtype=torch.float64, generator=generator)
    return x, 0.2 + torch.rand(batch, time, dtype=torch.float64, generator=generator)


def by_parts(mixer, x, dt, between):
    """One row: the state after every input, and ``between(h, dt)`` before each."""
    h, found = torch.zeros(STATE, dtype=torch.float64), []
    for x_t, s in zip(x, dt, strict=True):
        h = mixer.gru(x_t[None], between(h, s)[None])[0]
        found.append(h)
    return torch.stack(found)


def test_a_fine_solver_between_updates_of_a_gru():
    mixer, (x, dt) = layer(solver="rk4", substeps=32), signal()
    p = {n: v.detach().numpy() for n, v in mixer.named_parameters()}

    def slope(_, h):
        z = np.tanh(p["inner.weight"] @ h + p["inner.bias"])
        return p["outer.weight"] @ z + p["outer.bias"]

    def between(h, s):
        start = h.detach().numpy()
        end = solve_ivp(slope, (0, float(s)), start, rtol=1e-11, atol=1e-12)
        return torch.from_numpy(end.y[:, -1])

    y, last = mixer(x, dt=dt)
    for row in range(2):
        h = by_parts(mixer, x[row], dt[row], between)
        assert_close(y[row], mixer.out_proj(h), rtol=1e-6, atol=1e-7)
        assert_close(last[row], h[-1], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("solver", "order"), [("euler", 1), ("midpoint", 2), ("rk4", 4), ("rk4_38", 4)]
)
def test_each_solver_has_its_order(solver, order):
    x, dt = signal(1)
    true = layer(solver="rk4", substeps=64)(x, dt=dt)[1]
    errors = [
        (layer(solver=solver, substeps=n)(x, dt=dt)[1] - true).abs().max().item() for n in (8, 16)
    ]
    assert abs(np.log2(errors[0] / errors[1]) - order) < 0.25, errors


def test_decay_between_updates_of_a_gru():
    mixer, (x, dt) = layer(between="decay"), signal(1)
    rate = mixer.log_rate.exp()
    _, last = mixer(x, dt=dt)
    true = by_parts(mixer, x[0], dt[0], lambda h, s: h * torch.exp(-s * rate))
    assert_close(last[0], true[-1])


def test_without_time_it_is_a_gru():
    mixer, (x, dt) = layer(), signal()
    gru = GRU(WIDTH, d_state=STATE, dtype=torch.float64)
    gru.load_state_dict(
        {f"{n}_l0": p for n, p in mixer.gru.named_parameters()}
        | {f"out_proj.{n}": p for n, p in mixer.out_proj.named_parameters()}
    )
    y, last = mixer(x, dt=0 * dt)
    y_gru, last_gru = gru(x)
    assert_close(y, y_gru)
    assert_close(last, last_gru)


def test_initial_values():
    torch.manual_seed(0)
    mixer, decay = ODERNN(64), ODERNN(64, between="decay")
    assert abs(mixer.inner.weight.std().item() - 0.1) < 0.005
    assert not mixer.outer.bias.any()
    assert mixer.gru.weight_hh.abs().max() <= 1 / 8
    assert_close(decay.log_rate, torch.full((64,), math.log(0.001)))
    assert decay.inner is None


@pytest.mark.unchecked
def test_options_that_are_none():
    with pytest.raises(UnknownNameError, match="no ODERNN between named"):
        ODERNN(4, between="jump")
    with pytest.raises(UnknownNameError, match="no ODERNN solver named"):
        ODERNN(4, solver="heun")
    with pytest.raises(ArgumentError, match="substeps must be"):
        ODERNN(4, substeps=0)
