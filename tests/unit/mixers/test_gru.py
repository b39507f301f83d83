"""The GRU against torch.nn.GRU with the same weights, and its resets against separate calls."""

from functools import partial

import pytest
import torch
from torch import nn

from linrnn.errors import ArgumentError, DTypeError, ShapeError, UnknownNameError
from linrnn.mixers import GRU
from linrnn.ops.cell.cell_scan import forms
from linrnn.ops.cell.dense_recurrence import CELLS
from linrnn.testing import check_property


def arguments(cell, size):
    """Arguments for a call of a cell, of one row and two steps."""
    given = {name: torch.ones(1, 2, size) for name in cell.inputs}
    given |= {name: torch.ones(size) for name in cell.constants}
    return given | {name: torch.ones(size, size) for name in cell.matrices}


def grads(y, last, sources):
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return torch.autograd.grad((y * weight).sum() + last.pow(2).sum(), sources)


@pytest.mark.parametrize("bias", [True, False])
def test_equals_torch_with_copied_weights(bias):
    torch.manual_seed(0)
    theirs = nn.GRU(5, 5, batch_first=True, bias=bias, dtype=torch.float64)
    ours = GRU(5, bias=bias, dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 17, 5, dtype=torch.float64, requires_grad=True)
    h0 = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    y, last = ours(x, h0)
    expected_y, expected_last = theirs(x, h0[None])
    torch.testing.assert_close(y, expected_y, rtol=0, atol=1e-14)
    torch.testing.assert_close(last, expected_last[0], rtol=0, atol=1e-14)
    names = [n for n, _ in theirs.named_parameters()]
    got = grads(y, last, [x, h0, *(ours.get_parameter(n) for n in names)])
    expected = grads(expected_y, expected_last, [x, h0, *(theirs.get_parameter(n) for n in names)])
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)


def test_projects_another_hidden_size():
    torch.manual_seed(0)
    theirs = nn.GRU(4, 7, batch_first=True, dtype=torch.float64)
    ours = GRU(4, d_state=7, dtype=torch.float64)
    missing, unexpected = ours.load_state_dict(theirs.state_dict(), strict=False)
    assert (missing, unexpected) == (["out_proj.weight", "out_proj.bias"], [])
    x = torch.randn(2, 9, 4, dtype=torch.float64)
    y, last = ours(x)
    expected, expected_last = theirs(x)
    torch.testing.assert_close(y, ours.out_proj(expected))
    torch.testing.assert_close(last, expected_last[0])


def test_equation_of_the_docstring():
    torch.manual_seed(0)
    layer = GRU(3, dtype=torch.float64)
    x, h = torch.randn(1, 6, 3, dtype=torch.float64), torch.randn(1, 3, dtype=torch.float64)
    y, _ = layer(x, h)
    for t in range(6):
        wr, wz, wn = (x[:, t] @ layer.weight_ih_l0.T + layer.bias_ih_l0).chunk(3, 1)
        ur, uz, un = (h @ layer.weight_hh_l0.T + layer.bias_hh_l0).chunk(3, 1)
        r, z = torch.sigmoid(wr + ur), torch.sigmoid(wz + uz)
        h = (1 - z) * torch.tanh(wn + r * un) + z * h
        torch.testing.assert_close(y[:, t], h)


def before_the_product(layer, x, h):
    """The reset gate on h, one step at a time."""
    y, D = [], layer.d_state
    U, c = layer.weight_hh_l0, layer.bias_hh_l0
    for x_t in x.unbind(1):
        wr, wz, wn = (x_t @ layer.weight_ih_l0.T + layer.bias_ih_l0).chunk(3, 1)
        ur, uz = (h @ U[: 2 * D].T + c[: 2 * D]).chunk(2, 1)
        r, z = 1 / (1 + torch.exp(-(wr + ur))), 1 / (1 + torch.exp(-(wz + uz)))
        n = torch.tanh(wn + (r * h) @ U[2 * D :].T + c[2 * D :])
        h = (1 - z) * n + z * h
        y.append(h)
    return torch.stack(y, 1), h


def test_reset_before_the_product_equals_a_transcription_gradients_too():
    torch.manual_seed(0)
    layer = GRU(3, reset_gate="before", dtype=torch.float64)
    x, h0 = (torch.randn(2, *s, dtype=torch.float64, requires_grad=True) for s in ((9, 3), (3,)))
    expected, expected_last = before_the_product(layer, x, h0)
    first, state = layer(x[:, :4], h0)
    rest, last = layer(x[:, 4:], state)
    y = torch.cat([first, rest], 1)
    torch.testing.assert_close((y, last), (expected, expected_last), rtol=0, atol=1e-14)
    sources = [x, h0, *layer.parameters()]
    got, want = grads(y, last, sources), grads(expected, expected_last, sources)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)
    assert forms(CELLS["gru_before"], **arguments(CELLS["gru_before"], 3))["native"] is None


@pytest.mark.parametrize("law", ["reset_and_packing", "gradients", "round_trip", "low_precision"])
def test_reset_before_the_product_keeps_the_laws(law):
    check_property(law, partial(GRU, reset_gate="before"))


def resets():
    """Three rows that begin anew at steps of their own: never, at the first, at two others."""
    reset = torch.zeros(3, 9, dtype=torch.bool)
    reset[1, 0] = reset[2, 4] = reset[2, 5] = True
    return reset


def test_rows_reset_at_their_own_steps_and_forget_nan():
    torch.manual_seed(0)
    layer = GRU(4, d_state=5, dtype=torch.float64)
    x, h0 = torch.randn(3, 9, 4, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    x[2, 3] = float("nan")
    h0[1] = float("inf")
    y, last = layer(x, h0, reset=resets())
    torch.testing.assert_close(y[:1], layer(x[:1], h0[:1])[0])
    torch.testing.assert_close(y[1:2], layer(x[1:2])[0])
    torch.testing.assert_close(y[2:, :3], layer(x[2:, :3], h0[2:])[0])
    assert y[2, 3].isnan().all()
    torch.testing.assert_close(y[2:, 4:5], layer(x[2:, 4:5])[0])
    torch.testing.assert_close(y[2:, 5:], layer(x[2:, 5:])[0])
    torch.testing.assert_close(last[2:], layer(x[2:, 5:])[1])


@pytest.mark.unchecked
def test_compiled_resets_equal_eager_ones():
    layer = GRU(4)
    x = torch.randn(3, 9, 4)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, reset=resets())[0], layer(x, reset=resets())[0])


def test_gradient_flows_in_evaluation_mode():
    layer = GRU(4).eval()
    layer(torch.randn(2, 5, 4))[0].sum().backward()
    assert layer.weight_hh_l0.grad.any()


def test_initial_parameters_are_uniform():
    torch.manual_seed(0)
    layer = GRU(64, d_state=100)
    for weight in (layer.weight_ih_l0, layer.weight_hh_l0, layer.out_proj.weight):
        assert weight.abs().max() <= 0.1
        assert weight.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.03)


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(ArgumentError, match="GRU: d_state must be an integer of at least 1, got 0"):
        GRU(4, d_state=0)
    with pytest.raises(UnknownNameError, match=r"reset_gate.*'never'"):
        GRU(4, reset_gate="never")
    with pytest.raises(DTypeError, match=r"GRU.forward: reset must be boolean, got torch.int64"):
        GRU(4)(torch.ones(1, 3, 4), reset=torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(
        ShapeError, match=r"reset must have shape \(batch=1, time=3\), got \(1, 2\)"
    ):
        GRU(4)(torch.ones(1, 3, 4), reset=torch.zeros(1, 2, dtype=torch.bool))
