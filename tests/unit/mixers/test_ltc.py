"""LTC: the fused solver in NumPy, the public package, the equation it solves, and its bounds."""

import copy
import pickle

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch.testing import assert_close

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import LTC

WIDTH, STATE = 3, 4


def layer(**options):
    torch.manual_seed(0)
    mixer = LTC(WIDTH, **({"d_state": STATE, "dtype": torch.float64} | options))
    with torch.no_grad():  # what starts as the identity
        for name in ("input_w", "input_b", "output_w", "output_b"):
            mixer.get_parameter(name).add_(torch.randn_like(mixer.get_parameter(name)) / 4)
    return mixer


def signal(batch=2, time=5):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, time, WIDTH, dtype=torch.float64, generator=generator)
    return x, 0.2 + 2 * torch.rand(batch, time, dtype=torch.float64, generator=generator)


def parts(mixer, x):
    """Conductances from the input and from a state, and what they pull to, by name."""
    p = {n: v.detach().numpy() for n, v in mixer.named_parameters()}
    if mixer.positive == "softplus":
        p |= {n: np.log1p(np.exp(p[n])) for n in ("w", "sensory_w", "cm", "gleak")}

    def synapses(z, who):
        s = p[f"{who}w"] / (1 + np.exp(-p[f"{who}sigma"] * (z[:, :, None] - p[f"{who}mu"])))
        return s.sum(1), (s * p[f"{who}erev"]).sum(1)

    return p, synapses(p["input_w"] * x + p["input_b"], "sensory_"), synapses


def states(mixer, x, dt):
    v, found = np.zeros((len(x), STATE)), []
    for t in range(x.shape[1]):
        p, (w_in, pull_in), synapses = parts(mixer, x[:, t])
        cm_t = p["cm"] * mixer.unfolds / dt[:, t, None]
        for _ in range(mixer.unfolds):
            w, pull = synapses(v, "")
            above = cm_t * v + p["gleak"] * p["vleak"] + pull + pull_in
            v = above / (cm_t + p["gleak"] + w + w_in + mixer.epsilon)
        found.append(v)
    return np.stack(found, 1)


@pytest.mark.parametrize("options", [{}, {"unfolds": 2, "epsilon": 0.1}, {"positive": "softplus"}])
def test_every_step_is_the_fused_solver(options):
    mixer, (x, dt) = layer(**options), signal()
    y, last = mixer(x, dt=dt)
    v = torch.from_numpy(states(mixer, x.numpy(), dt.numpy()))
    read = mixer.output_w * v + mixer.output_b
    assert_close(y, read @ mixer.out_proj.weight.t() + mixer.out_proj.bias)
    assert_close(last, v[:, -1])


def test_the_public_package_gives_the_same_numbers_and_gradients():
    torch_cells = pytest.importorskip("ncps.torch")
    wirings = pytest.importorskip("ncps.wirings")
    mixer, (x, dt) = layer(), signal()
    cell = torch_cells.ltc.LTCCell(wirings.FullyConnected(STATE), WIDTH).double()
    mine = {n: p for n, p in mixer.named_parameters() if not n.startswith("out_proj")}
    cell.load_state_dict(cell.state_dict() | mine)
    v, xs = torch.zeros(2, STATE, dtype=torch.float64), x.clone().requires_grad_()
    for t in range(x.shape[1]):
        _, v = cell(xs[:, t], v, dt[:, t, None])
    ours = x.clone().requires_grad_()
    _, last = mixer(ours, dt=dt)
    assert_close(last, v)
    v.square().sum().backward()
    last.square().sum().backward()
    assert_close(ours.grad, xs.grad)
    for name in ("w", "sigma", "mu", "erev", "sensory_mu", "cm", "gleak", "vleak"):
        assert_close(mixer.get_parameter(name).grad, getattr(cell, name).grad)


def test_many_unfolds_solve_the_equation():
    """By an implicit method of order 1: half the step has half the error."""
    x, dt = signal(1, 1)
    p, (w_in, pull_in), synapses = parts(layer(), x[:, 0].numpy())

    def slope(_, v):
        w, pull = synapses(v[None], "")
        drive = p["gleak"] * (p["vleak"] - v) + (pull + pull_in)[0] - (w + w_in)[0] * v
        return drive / p["cm"]

    true = solve_ivp(slope, (0, float(dt)), np.zeros(STATE), rtol=1e-10, atol=1e-12).y[:, -1]
    errors = [abs(layer(unfolds=n)(x, dt=dt)[1][0].detach().numpy() - true).max() for n in (32, 64)]
    assert errors[1] < 0.02
    assert 1.9 < errors[0] / errors[1] < 2.1


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_no_step_leaves_the_range_of_what_pulls(scale):
    mixer, (x, dt) = layer(unfolds=1), signal(3, 50)
    y, last = mixer(scale * x, dt=scale * dt)
    assert y.isfinite().all()
    assert last.abs().max() <= 1


def test_a_gap_without_end_leads_to_the_fixed_point():
    """One long step holds v where leak and synapses, as they were before it, balance."""
    mixer, (x, _) = layer(unfolds=1), signal(2, 1)
    forever = torch.full((2, 1), 1e12, dtype=torch.float64)
    p, (w_in, pull_in), synapses = parts(mixer, x[:, 0].numpy())
    w, pull = synapses(np.zeros((2, STATE)), "")
    rest = (p["gleak"] * p["vleak"] + pull + pull_in) / (p["gleak"] + w + w_in)
    assert_close(mixer(x, dt=forever)[1], torch.from_numpy(rest), rtol=1e-6, atol=1e-8)


def test_initial_values_and_what_stays_positive():
    torch.manual_seed(0)
    mixer = LTC(64)
    assert mixer.w.min() >= 0.001
    assert abs(mixer.sigma.mean() - 5.5) < 0.1
    assert abs(mixer.sensory_mu.mean() - 0.55) < 0.01
    assert abs(mixer.sensory_erev.mean() - 1 / 3) < 0.05
    assert set(mixer.erev.flatten().tolist()) == {-1.0, 1.0}
    with torch.no_grad():
        mixer.w.sub_(0.5)
        mixer.sigma.neg_()
    mixer.after_update()
    assert mixer.w.min() == 0
    assert mixer.sigma.max() < 0  # may have either sign


def test_copies_and_pickles_have_their_cell():
    mixer, (x, dt) = layer(unfolds=3), signal()
    y = mixer(x, dt=dt)[0]
    data = pickle.dumps(mixer)
    LTC.cells.made.clear()  # as in another process
    assert_close(pickle.loads(data)(x, dt=dt)[0], y)  # noqa: S301
    assert_close(copy.deepcopy(mixer)(x, dt=dt)[0], y)


@pytest.mark.unchecked
def test_options_that_are_none():
    with pytest.raises(ArgumentError, match="LTC: unfolds must be"):
        LTC(4, unfolds=0)
    with pytest.raises(ArgumentError, match="LTC: epsilon must be"):
        LTC(4, epsilon=0.0)
    with pytest.raises(UnknownNameError, match="no LTC positive named"):
        LTC(4, positive="square")
