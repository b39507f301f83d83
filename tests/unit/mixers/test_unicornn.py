"""UnICORNN against its equation; volume, reversal, energy."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from transcribed import check, livelier, sigmoid, state_jacobian, weights

from linrnn import RNN, SequenceModel
from linrnn.errors import ArgumentError
from linrnn.mixers import UnICORNN
from linrnn.testing import MIXER_PROPERTIES

F64 = {"dtype": torch.float64}


def test_equals_a_transcription():
    torch.manual_seed(0)
    layer = livelier(UnICORNN(3, step_size=0.7, alpha=1.3, **F64))
    p = weights(layer)

    def step(states, x, dt):
        y, z = states
        s = 0.7 * dt * sigmoid(p["c"])
        z = z - s * (np.tanh(p["w"] * y + p["V.weight"] @ x + p["V.bias"]) + 1.3 * y)
        y = y + s * z
        return y, [y, z]

    check(layer, step, 2)


def test_a_step_keeps_the_volume_and_is_undone():
    torch.manual_seed(0)
    layer = livelier(UnICORNN(4, step_size=0.9, alpha=2.0, **F64))
    start = {name: torch.randn(1, 4, **F64) for name in ("y", "z")}
    x = torch.randn(1, 300, 4, **F64)
    for steps in (1, 300):
        jacobian = state_jacobian(layer, start, steps, x[:, :steps])
        assert torch.linalg.det(jacobian).item() == pytest.approx(1, abs=1e-8)
    y, z = layer(x, start)[1].values()
    s = 0.9 * layer.c.sigmoid()
    for u in layer.V(x).unbind(1)[::-1]:
        y = y - s * z
        z = z + s * (torch.tanh(layer.w * y + u) + 2.0 * y)
    torch.testing.assert_close({"y": y, "z": z}, start, rtol=0, atol=1e-9)


def test_without_a_force_the_energy_of_symplectic_euler_is_kept():
    layer = UnICORNN(2, step_size=0.5, alpha=3.0, **F64)
    with torch.no_grad():
        for p in (layer.w, layer.V.weight, layer.V.bias):
            p.zero_()
    s, state, found = 0.5 * layer.c.sigmoid(), {"y": torch.ones(1, 2, **F64)}, []
    state["z"] = torch.full((1, 2), -0.4, **F64)
    for _ in range(50):
        y, z = state["y"], state["z"]
        found.append(z**2 + 3 * y**2 - 3 * s * y * z)
        _, state = layer(torch.randn(1, 20, 2, **F64), state)
    torch.testing.assert_close(torch.cat(found), found[0].expand(50, 2), rtol=1e-12, atol=0)


def test_gradients_through_time_neither_vanish_nor_explode():
    torch.manual_seed(0)
    layer = UnICORNN(8, **F64)
    x = torch.randn(1, 2000, 8, **F64, requires_grad=True)
    (grad,) = torch.autograd.grad(layer(x)[0][:, -1].sum(), x)
    size = grad.norm(dim=-1)[0]
    assert size[:200].mean().item() / size[-400:-200].mean().item() == pytest.approx(1, rel=0.5)


def test_initial_distributions():
    layer = UnICORNN(2048, d_state=1024)
    w, c = layer.w.detach(), layer.c.detach()
    assert kstest(w, "uniform").pvalue > 0.01
    assert kstest(5 * (c + 0.1), "uniform").pvalue > 0.01
    bound = (6 / 65 / 2048) ** 0.5  # gain sqrt(2 / (1 + 8^2))
    assert layer.V.weight.abs().max().item() == pytest.approx(bound, rel=1e-3)
    assert not layer.V.bias.any()


def published_stack(layers, x):
    """The paper's network of several layers, one sequence (time, d_input), in NumPy."""
    y, z = ([np.zeros(len(p["w"])) for p in layers] for _ in range(2))
    found = []
    for u in x:
        for n, p in enumerate(layers):
            below = u if n == 0 else y[n - 1]
            s = p["step"] * sigmoid(p["c"])
            force = np.tanh(p["w"] * y[n] + p["V"] @ below + p["b"]) + p["alpha"] * y[n]
            z[n] = z[n] - s * force
            y[n] = y[n] + s * z[n]
        found.append(y[-1].copy())
    return np.stack(found)


def numbers(mixer):
    p = weights(mixer)
    own = {"V": p["V.weight"], "b": p["V.bias"], "step": mixer.step_size, "alpha": mixer.alpha}
    return {"w": p["w"], "c": p["c"], **own}


def three_layers():
    """Steps and frequencies of their own, as published for some tasks."""
    torch.manual_seed(0)
    return tuple(
        livelier(UnICORNN(5, step_size=step, alpha=alpha, **F64))
        for step, alpha in ((0.3, 1.0), (0.9, 0.5), (0.6, 2.0))
    )


def test_the_published_stack_is_a_model_without_norms_and_skips():
    plain = {"block": "bare", "norm": "none", "skip": False, "pool": "last"}
    net = SequenceModel(3, 4, mixer=three_layers(), d_model=5, n_layers=3, **plain, **F64)
    x = torch.randn(2, 40, 3, **F64)
    layers, e = [numbers(m) for m in net.mixers], weights(net.encoder)
    assert len({p["step"] for p in layers}) == 3
    # one linear map after another: the V of the first layer
    layers[0]["b"] = layers[0]["V"] @ e["bias"] + layers[0]["b"]
    layers[0]["V"] = layers[0]["V"] @ e["weight"]
    head = weights(net.head)
    for row, y in zip(x, net(x)[0], strict=True):
        want = head["weight"] @ published_stack(layers, row.numpy())[-1] + head["bias"]
        np.testing.assert_allclose(y.detach(), want, rtol=1e-10, atol=1e-12)


def test_the_published_stack_is_an_rnn():
    rnn = RNN(three_layers(), 5, 5, 3, batch_first=True, **F64)
    x = torch.randn(2, 40, 5, **F64)
    y, _ = rnn(x)
    layers = [numbers(cell.mixer) for cell in rnn.cells]
    for row, found in zip(x, y, strict=True):
        want = published_stack(layers, row.numpy())
        np.testing.assert_allclose(found.detach(), want, rtol=1e-10, atol=1e-12)


@pytest.mark.unchecked
def test_two_layers_learn_with_steps_of_one():
    MIXER_PROPERTIES["trains"](partial(UnICORNN, step_size=1.0, alpha=1.0))


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(ArgumentError, match="alpha must be at least 0 and finite, got -1"):
        UnICORNN(4, alpha=-1)
    with pytest.raises(ArgumentError, match="step_size must be positive and finite, got 0"):
        UnICORNN(4, step_size=0)
