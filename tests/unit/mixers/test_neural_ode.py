"""Neural ODE: what SciPy's solver gives, at the order of each method."""

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch.testing import assert_close

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import NeuralODE

WIDTH, STATE = 3, 4


def layer(**options):
    torch.manual_seed(0)
    options = {"d_state": STATE, "d_hidden": 7, "dtype": torch.float64} | options
    mixer = NeuralODE(WIDTH, **options)
    with torch.no_grad():  # a field that moves
        for linear in (mixer.in_proj, mixer.inner, mixer.outer):
            linear.weight.mul_(4)
            if linear.bias is not None:
                linear.bias.normal_(std=0.3)
    return mixer


def signal(batch=2, time=4):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, time, WIDTH, dtype=torch.float64, generator=generator)
    return x, 0.2 + torch.rand(batch, time, dtype=torch.float64, generator=generator)


def solved(mixer, x, dt):
    """The states of one row, by SciPy."""
    p = {n: v.detach().numpy() for n, v in mixer.named_parameters()}
    h, found = np.zeros(STATE), []
    for x_t, s in zip(x, dt, strict=True):
        u = p["in_proj.weight"] @ x_t + p["in_proj.bias"]

        def slope(_, h, u=u):
            z = np.tanh(p["inner.weight"] @ h + u)
            return p["outer.weight"] @ z + p["outer.bias"]

        h = solve_ivp(slope, (0, s), h, rtol=1e-11, atol=1e-12).y[:, -1]
        found.append(h)
    return torch.from_numpy(np.stack(found))


def test_a_fine_solver_gives_the_solution_over_every_gap():
    mixer, (x, dt) = layer(substeps=32), signal()
    y, last = mixer(x, dt=dt)
    for row in range(2):
        h = solved(mixer, x[row].numpy(), dt[row].numpy())
        assert_close(y[row], mixer.out_proj(h), rtol=1e-7, atol=1e-8)
        assert_close(last[row], h[-1], rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(
    ("solver", "order"), [("euler", 1), ("midpoint", 2), ("rk4", 4), ("rk4_38", 4)]
)
def test_each_solver_has_its_order(solver, order):
    x, dt = signal(1)
    true = solved(layer(), x[0].numpy(), dt[0].numpy())[-1]
    errors = []
    for substeps in (8, 16):
        _, last = layer(solver=solver, substeps=substeps)(x, dt=dt)
        errors.append((last[0] - true).abs().max().item())
    assert abs(np.log2(errors[0] / errors[1]) - order) < 0.25, errors


def test_initial_values():
    torch.manual_seed(0)
    mixer = NeuralODE(64)
    for linear in (mixer.in_proj, mixer.inner, mixer.outer):
        assert abs(linear.weight.std().item() - 0.1) < 0.005
        assert linear.bias is None or not linear.bias.any()


@pytest.mark.unchecked
def test_options_that_are_none():
    with pytest.raises(UnknownNameError, match="no NeuralODE solver named"):
        NeuralODE(4, solver="dopri5")
    with pytest.raises(ArgumentError, match="substeps must be"):
        NeuralODE(4, substeps=0)
