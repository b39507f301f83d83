"""HiPPO-RNN against its equation, with steps from SciPy, and its initial statistics."""

from itertools import pairwise
from math import log

import numpy as np
import pytest
import torch
from scipy.linalg import expm, solve
from scipy.signal import cont2discrete
from scipy.stats import kstest
from transcribed import livelier, sigmoid, weights

from linrnn.errors import LinrnnError
from linrnn.mixers import HiPPO
from linrnn.mixers import hippo as module
from linrnn.nn.hippo import hippo

OPTIONS = {"d_state": 4, "d_memory": 2, "order": 5, "theta": 7.0}


def steps(measure, rule, k):
    """The matrices of step k, as the public code makes them."""
    order = 6 if measure == "fout" else 5
    A, B = (x.numpy() for x in hippo(measure, order))
    if measure != "legs":
        rule = "backward_diff" if rule == "backward" else rule
        return cont2discrete((A, B[:, None], B[None], 0), 1 / 7, rule)[:2]
    if k == 0:
        return np.zeros((5, 5)), np.eye(5)[:, :1]
    if rule == "backward":
        return solve(np.eye(5) - A / k, np.eye(5)), solve(np.eye(5) - A / k, B / k)[:, None]
    if rule == "zoh":
        a = expm(A * (log(k + 1) - log(k)))
        return a, solve(A, a @ B - B)[:, None]
    eye = np.eye(5)
    return solve(eye - A / k / 2, eye + A / k / 2), solve(eye - A / k / 2, B / k)[:, None]


def transcribed(p, x, measure, rule):
    h, c, ys = np.zeros(4), np.zeros((2, 6 if measure == "fout" else 5)), []
    for k, x_t in enumerate(x):
        f = p["f_x.weight"] @ x_t + p["f_x.bias"] + p["f_h"] @ h
        a, b = steps(measure, rule, k)
        c = c @ a.T + f[:, None] * b.T
        u = p["u_x.weight"] @ x_t + p["u_x.bias"] + p["u_c"] @ c.reshape(-1)
        gate = sigmoid(u[4:])
        h = (1 - gate) * h + gate * np.tanh(u[:4])
        ys.append(p["out_proj.weight"] @ h + p["out_proj.bias"])
    return np.stack(ys)


@pytest.mark.parametrize("rule", ["bilinear", "backward", "zoh"])
@pytest.mark.parametrize("measure", ["legs", "legt", "lagt", "fout"])
def test_equals_a_transcription_that_begins_anew_at_resets(measure, rule, monkeypatch):
    """Also where matrices are made for a few steps at a time, as those of large orders are."""
    torch.manual_seed(0)
    options = {**OPTIONS, "measure": measure, "discretisation": rule}
    options |= {"order": 6} if measure == "fout" else {}
    layer = livelier(HiPPO(3, dtype=torch.float64, **options))
    p, x = weights(layer), torch.randn(2, 12, 3, dtype=torch.float64)
    whole = np.stack([transcribed(p, row.numpy(), measure, rule) for row in x])
    close = {"rtol": 0, "atol": 1e-11}
    for table in (module.TABLE, 4 * 25):
        monkeypatch.setattr(module, "TABLE", table)
        torch.testing.assert_close(layer(x)[0], torch.from_numpy(whole), **close)
    reset = torch.zeros(2, 12, dtype=torch.bool)
    reset[0, [4, 5]] = reset[1, 9] = True
    wanted = [
        np.concatenate([transcribed(p, row[i:j].numpy(), measure, rule) for i, j in pairwise(cuts)])
        for row, cuts in zip(x, ([0, 4, 5, 12], [0, 9, 12]), strict=True)
    ]
    y, last = layer(x, reset=reset)
    torch.testing.assert_close(y, torch.from_numpy(np.stack(wanted)), **close)
    if measure == "legs":
        assert last["position"].tolist() == [7, 3]


@pytest.mark.parametrize("rule", ["bilinear", "zoh"])
def test_goes_on_from_rows_that_are_differently_far(rule):
    torch.manual_seed(0)
    layer = livelier(HiPPO(3, dtype=torch.float64, discretisation=rule, **OPTIONS))
    x = torch.randn(2, 9, 3, dtype=torch.float64)
    wanted = torch.cat([layer(x[:1])[0][:, 4:], layer(x[1:, 2:])[0][:, 2:]])
    one, two = layer(x[:1, :4])[1], layer(x[1:, 2:4])[1]
    state = {name: torch.cat([one[name], two[name]]) for name in one}
    torch.testing.assert_close(layer(x[:, 4:], state)[0], wanted, rtol=0, atol=1e-12)
    y_t, _ = layer.step(x[:, 4], state)
    torch.testing.assert_close(y_t, wanted[:, 0], rtol=0, atol=1e-12)


def test_a_reset_forgets_what_is_not_finite():
    x = torch.randn(2, 9, 3)
    x[:, 2], reset = float("nan"), torch.zeros(2, 9, dtype=torch.bool)
    reset[:, 5] = True
    layer = HiPPO(3, **OPTIONS)
    torch.testing.assert_close(layer(x, reset=reset)[0][:, 5:], layer(x[:, 5:])[0])


def test_what_is_remembered_does_not_depend_on_the_speed():
    """Twice as slow a signal has the same memory at its end: LegS has no time scale."""
    layer = HiPPO(1, d_state=1, order=8, discretisation="zoh", dtype=torch.float64)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.zero_()
        layer.f_x.weight.fill_(1.0)
    x = torch.randn(1, 30, 1, dtype=torch.float64)
    slow = layer(x.repeat_interleave(3, 1))[1]["c"]
    torch.testing.assert_close(layer(x)[1]["c"], slow, rtol=0, atol=1e-12)


def test_initial_parameters_are_the_published_ones():
    torch.manual_seed(0)
    layer = HiPPO(30, d_state=70, d_memory=40, order=5)
    bound = (3 / 100) ** 0.5
    for weight in (layer.f_x.weight, layer.f_h):
        assert kstest((weight.detach().flatten() / bound + 1) / 2, "uniform").pvalue > 1e-3
    read = 30 + 40 * 5
    for weight, fan_in in ((layer.u_x.weight, 30), (layer.u_c, 200)):
        for part, std in ((weight[:70], (2 / (fan_in + 70)) ** 0.5), (weight[70:], read**-0.5)):
            assert kstest(part.detach().flatten() / std, "norm").pvalue > 1e-3
    for bias, fan_in in ((layer.f_x.bias, 100), (layer.u_x.bias, read)):
        assert kstest((bias.detach() * fan_in**0.5 + 1) / 2, "uniform").pvalue > 1e-3


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"measure": "fourier"}, "measure"),
        ({"discretisation": "euler"}, "discretisation"),
        ({"measure": "fout", "order": 5}, "order must be even for measure='fout', got 5"),
        ({"beta": -1.0}, "beta must be at least 0 and finite, got -1.0"),
        ({"theta": 0.0}, "theta must be positive"),
        ({"order": 0}, "order must be an integer of at least 1"),
    ],
)
def test_errors(options, text):
    with pytest.raises(LinrnnError, match=text):
        HiPPO(4, **options)


@pytest.mark.parametrize(("beta", "diagonal"), [(0.0, -0.5), (0.01, -0.505)])
def test_tilts_of_the_public_code(beta, diagonal):
    """A of its "lagt" is I/2 less a triangle of ones; that of "glagt" has the tilt 0.01."""
    layer = HiPPO(4, order=5, measure="lagt", theta=1.0, beta=beta, dtype=torch.float64)
    A = diagonal * np.eye(5) - np.tril(np.ones((5, 5)), -1)
    step, into, *_ = cont2discrete((A, np.ones((5, 1)), np.ones((1, 5)), 0), 1.0, "bilinear")
    a, b = layer.memory()
    np.testing.assert_allclose(a, step, atol=1e-13)
    np.testing.assert_allclose(b, into[:, 0], atol=1e-13)
