"""Shared tests of layers that attend to all their past."""

import torch


def read_by_steps(layer, x, state=None):
    """All outputs, and the last state."""
    state = layer.init_state(len(x)) if state is None else state
    ys = []
    for x_t in x.unbind(1):
        y_t, state = layer.step(x_t, state)
        ys.append(y_t)
    return torch.stack(ys, 1), state


def holds_however_it_is_cut(layer, time=330, cut=290):
    """Several chunks of queries in one call, in two, and single steps: outputs and states."""
    torch.manual_seed(1)
    x = torch.randn(2, time, layer.d_model, dtype=torch.float64)
    y, last = layer(x)
    first, state = layer(x[:, :cut])
    second, state = layer(x[:, cut:], state)
    near = {"rtol": 1e-10, "atol": 1e-11}
    torch.testing.assert_close(torch.cat([first, second], 1), y, **near)
    torch.testing.assert_close(state, last, **near)
    steps, state = read_by_steps(layer, x)
    torch.testing.assert_close(steps, y, **near)
    torch.testing.assert_close(state, last, **near)


def stays_in_its_sequence(layer, time=12, bad=3, reset=7):
    """NaN reaches the steps up to the next reset, none before it and none after."""
    torch.manual_seed(1)
    x = torch.randn(1, time, layer.d_model, dtype=torch.float64)
    begins = torch.zeros(1, time, dtype=torch.bool)
    begins[:, reset] = True
    clean, last = layer(x, reset=begins)
    x[:, bad] = float("nan")
    y, state = layer(x, reset=begins)
    broken = y.isnan().all(-1)[0]
    assert broken.tolist() == [bad <= t < reset for t in range(time)]
    torch.testing.assert_close(y[:, reset:], clean[:, reset:], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state, last, rtol=1e-12, atol=1e-12)
