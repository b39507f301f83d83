"""Memories of continuous time at uneven times, against their equations written out in float64."""

import pytest
import torch
import torch.nn.functional as F

from linrnn.mixers import LMU, LSSL, HiPPO
from linrnn.mixers.lmu import lmu_system
from linrnn.nn.discretise import dense
from linrnn.nn.hippo import hippo
from linrnn.nn.lti import each_step

D, T = 3, 7


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def times():
    return torch.tensor([[0.5, 2.0, 0.0, 1.0, 1e6, 0.3, 4.0]], dtype=torch.float64)


@pytest.mark.parametrize("rule", ["zoh", "euler"])
def test_lmu_moves_its_window_by_the_time(rule):
    layer = LMU(D, d_state=4, d_memory=2, order=5, theta=30.0, discretisation=rule).double()
    x, dt = draw(1, T, D), times().clamp(max=9.0)
    h, m, outputs = torch.zeros(4).double(), torch.zeros(2, 5).double(), []
    for x_t, step in zip(x[0], dt[0], strict=True):
        a, b = dense(*lmu_system(5), step / 30.0, rule)
        w = layer.E_x @ x_t + layer.E_h @ h + layer.E_m @ m.flatten()
        m = m @ a.T + w[:, None] * b
        h = torch.tanh(layer.W_x @ x_t + layer.W_h @ h + layer.W_m @ m.flatten())
        outputs.append(layer.out_proj(h))
    torch.testing.assert_close(layer(x, dt=dt)[0][0], torch.stack(outputs))


@pytest.mark.parametrize("measure", ["legs", "legt", "lagt", "fout"])
def test_hippo_moves_its_memory_by_the_time(measure):
    options = {"measure": measure, "theta": 5.0, "d_memory": 2, "order": 4}
    layer = HiPPO(D, **options, discretisation="backward", dtype=torch.float64)
    x, dt = draw(1, T, D), times()
    A, B = hippo(measure, 4, beta=1.0)
    h, c, outputs, elapsed = torch.zeros(D).double(), torch.zeros(2, 4).double(), [], 0.0
    for x_t, step in zip(x[0], dt[0].tolist(), strict=True):
        f = layer.f_x(x_t) + layer.f_h @ h
        if measure == "legs" and elapsed == 0:
            c = F.pad(f[:, None], (0, 3))
        else:
            length = step / elapsed if measure == "legs" else step / 5.0
            a, b = dense(A, B, torch.tensor(length).double(), "backward")
            c = c @ a.T + f[:, None] * b
        elapsed += step
        candidate, gate = (layer.u_x(x_t) + layer.u_c @ c.flatten()).chunk(2)
        h = torch.lerp(h, candidate.tanh(), gate.sigmoid())
        outputs.append(h)
    y, state = layer(x, dt=dt)
    torch.testing.assert_close(y[0], layer.out_proj(torch.stack(outputs)))
    if measure == "legs":
        assert state["position"].tolist() == [elapsed]


@pytest.mark.parametrize("rule", ["bilinear", "backward", "zoh"])
def test_a_memory_of_all_the_past_has_no_unit_of_time(rule):
    layer = HiPPO(D, order=5, discretisation=rule, dtype=torch.float64)
    x, dt = draw(2, T, D), times()[:, [0, 1, 3, 5, 6, 0, 1]].expand(2, -1)
    torch.testing.assert_close(layer(x, dt=1e3 * dt)[0], layer(x, dt=dt)[0])
    torch.testing.assert_close(layer(x, dt=torch.full_like(dt, 1e-3))[0], layer(x)[0])


@pytest.mark.parametrize(
    "options", [{}, {"alpha": 1.0}, {"measure": "legt"}, {"measure": "lagt", "learn_A": True}]
)
def test_lssl_multiplies_its_steps_by_the_time(options):
    layer = LSSL(D, d_state=4, n_outputs=2, dt_min=0.1, dt_max=0.5, **options).double()
    x, dt = draw(1, T, D), times()
    A, B = layer.continuous()
    h, outputs = torch.zeros(D, 4).double(), []
    for x_t, step in zip(x[0], dt[0], strict=True):
        a, b = dense(A, B, step * layer.log_dt.exp(), layer.alpha)
        h = torch.einsum("dnm,dm->dn", a, h) + b * x_t[:, None]
        s = torch.einsum("dmn,dn->dm", layer.C, h) + layer.D * x_t[:, None]
        outputs.append(layer.out(F.gelu(s.flatten())))
    torch.testing.assert_close(layer(x, dt=dt)[0][0], torch.stack(outputs))


@pytest.mark.parametrize("cls", [LMU, HiPPO, LSSL])
def test_gradients_of_times_from_nothing_to_a_million_are_numbers(cls):
    for gap in (0.0, 1e-6, 1.0, 1e6):
        layer, x = cls(D), torch.randn(2, T, D, requires_grad=True)
        dt = torch.full((2, T), gap, requires_grad=True)
        y, _ = layer(x, dt=dt)
        grads = torch.autograd.grad(y.square().sum(), [x, dt, *layer.parameters()])
        assert all(g.isfinite().all() for g in grads)


def test_a_step_beyond_all_memory_forgets_it():
    A, B = lmu_system(8)
    lengths = torch.tensor([[1e3, 1e12]], dtype=torch.float64)
    (first, _), (last, pushed) = each_step(A, B, lengths, "zoh")
    assert first.abs().max() < 1e-12
    assert last.abs().max() < 1e-12
    torch.testing.assert_close(pushed[0], -torch.linalg.solve(A, B), rtol=1e-9, atol=1e-9)
