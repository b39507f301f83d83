"""Continuous-time fast weights against SciPy's solution of their differential equations."""

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.special import expit, softmax
from torch.testing import assert_close

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import CTFWP
from linrnn.nn import held_gain

F64 = {"dtype": torch.float64}
SLOPES = {
    "hebb": lambda W, k, v: np.outer(v, k),
    "oja": lambda W, k, v: np.outer(v, k - W.T @ v),
    "delta": lambda W, k, v: np.outer(v - W @ k, k),
}
each_rule = pytest.mark.parametrize("rule", SLOPES)


def layer(rule, **options):
    torch.manual_seed(0)
    mixer = CTFWP(6, rule=rule, **{"n_heads": 2, "d_key": 4, "d_value": 3} | F64 | options)
    with torch.no_grad():
        mixer.heads.proj.weight.mul_(4)
    return mixer


def signal(batch=2, time=9):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, time, 6, generator=generator, **F64)
    return x, 3 * torch.rand(batch, time, generator=generator, **F64)


def solved(mixer, x, dt, reset):
    """One row: the outputs, and W of every head at the end."""
    H, K, V = mixer.n_heads, mixer.d_key, mixer.d_value
    p = {n: v.detach().numpy() for n, v in mixer.named_parameters()}
    z = x @ p["heads.proj.weight"].T + p["heads.proj.bias"]
    parts = np.split(z, np.cumsum([H * K, H * K, H * V]), -1)
    q, k, v, s = (part.reshape(len(x), H, -1) for part in parts)
    q, k, v, s = softmax(q, -1), softmax(k, -1), np.tanh(v), expit(s)
    W, ys = np.zeros((H, V, K)), []
    for t in range(len(x)):
        for h in range(H):

            def slope(_, w, t=t, h=h):
                move = SLOPES[mixer.rule](w.reshape(V, K), k[t, h], v[t, h])
                return (s[t, h] * move).ravel()

            before = np.zeros(V * K) if reset[t] else W[h].ravel()
            path = solve_ivp(slope, (0, dt[t]), before, rtol=1e-11, atol=1e-13)
            W[h] = path.y[:, -1].reshape(V, K)
        ys.append(np.einsum("hvk,hk->hv", W, q[t]).ravel())
    return np.stack(ys) @ p["out.out_proj.weight"].T, W


@each_rule
def test_every_gap_is_solved_exactly(rule):
    mixer, (x, dt) = layer(rule), signal()
    reset = torch.zeros(2, 9, dtype=torch.bool)
    reset[1, [0, 5]] = True
    y, state = mixer(x, reset=reset, dt=dt)
    for row in range(2):
        want, W = solved(mixer, x[row].numpy(), dt[row].numpy(), reset[row].tolist())
        np.testing.assert_allclose(y[row].detach(), want, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(state[row].mT.detach(), W, rtol=1e-7, atol=1e-9)


@each_rule
def test_a_gap_in_pieces_is_the_gap(rule):
    mixer, (x, dt) = layer(rule), signal()
    y, state = mixer(x, dt=dt)
    pieces, dts = x.repeat_interleave(3, 1), (dt / 3).repeat_interleave(3, 1)
    many, last = mixer(pieces, dt=dts)
    assert_close(many[:, 2::3], y)
    assert_close(last, state)
    _, last = mixer(x, state, dt=torch.zeros_like(dt))
    assert_close(last, state)


@pytest.mark.parametrize("rule", ["oja", "delta"])
def test_the_memory_stays_bounded_at_any_gap(rule):
    torch.manual_seed(0)
    mixer = layer(rule, dtype=torch.float32)
    _, state = mixer(torch.randn(1, 3000, 6), dt=100 * torch.rand(1, 3000))
    assert state.abs().max() < 10


def test_the_gain_of_a_push_has_digits_everywhere():
    z = torch.logspace(-20, 3, 400, **F64).requires_grad_()
    gain = held_gain(z)
    (slope,) = torch.autograd.grad(gain.sum(), z)
    exact = -np.expm1(-z.detach().numpy()) / z.detach().numpy()
    np.testing.assert_allclose(gain.detach(), exact, rtol=1e-14)
    with np.errstate(all="ignore"):
        w = z.detach().numpy().astype(np.longdouble)
        true = (np.exp(-w) * (w + 1) - 1) / w**2
    true = np.where(w < 1e-3, -0.5 + w / 3 - w**2 / 8, true).astype(float)
    np.testing.assert_allclose(slope, true, rtol=1e-9)
    zero = torch.zeros(1, requires_grad=True)
    assert torch.autograd.grad(held_gain(zero), zero)[0] == -0.5


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(UnknownNameError, match="rule"):
        CTFWP(8, rule="ojas")
    with pytest.raises(ArgumentError, match="CTFWP: n_heads"):
        CTFWP(8, n_heads=0)
