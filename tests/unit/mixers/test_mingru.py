"""minGRU against a NumPy loop, the public implementation, golden values, and its options."""

from functools import partial

import numpy as np
import pytest
import torch
from minGRU_pytorch import minGRU as PublicMinGRU
from scipy.stats import kstest

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import MinGRU
from linrnn.testing import check_property

MODELS = [{}, {"positive": False}, {"form": "log"}]


def numpy_g(a):
    return np.where(a >= 0, a + 0.5, 1 / (1 + np.exp(-np.minimum(a, 0))))


def numpy_mingru(layer, x, h):
    """One step at a time from the equations."""
    W = layer.in_proj.weight.detach().double().numpy()
    bias = np.zeros(len(W)) if layer.in_proj.bias is None else layer.in_proj.bias.detach().numpy()
    (W_h, W_z), (b_h, b_z) = np.split(W, 2), np.split(bias, 2)
    states = []
    for t in range(x.shape[1]):
        v = x[:, t] @ W_h.T + b_h
        z = 1 / (1 + np.exp(-(x[:, t] @ W_z.T + b_z)))
        h = (1 - z) * h + z * (numpy_g(v) if layer.positive else v)
        states.append(h)
    return np.stack(states, 1)


def golden(layer):
    """The layer on inputs (cos t, sin t), t = 1..5: gate cos t, candidate sin t, from 1/2."""
    with torch.no_grad():
        layer.in_proj.weight.copy_(
            torch.eye(2, dtype=torch.float64).flip(0).repeat_interleave(2, 0)
        )
    t = torch.arange(1, 6, dtype=torch.float64)
    x = torch.stack([t.cos(), t.sin()], -1)[None]
    return layer(x, torch.full((1, 2), 0.5, dtype=torch.float64))[0][0, :, 0].detach()


@pytest.mark.parametrize("options", [*MODELS, {"bias": True}], ids=str)
def test_forward_equals_a_loop_in_numpy(options):
    torch.manual_seed(0)
    layer = MinGRU(5, dtype=torch.float64, **options)
    x = 3 * torch.randn(2, 40, 5, dtype=torch.float64)
    h0 = torch.rand(2, 5, dtype=torch.float64)
    y, last = layer(x, h0)
    expected = numpy_mingru(layer, x.numpy(), h0.numpy())
    np.testing.assert_allclose(y.detach().numpy(), expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(last.detach().numpy(), expected[:, -1], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("expansion", [1.0, 1.5])
@pytest.mark.parametrize("form", ["scan", "log"])
def test_forward_and_gradients_equal_the_public_implementation(expansion, form):
    """Which starts from a state of 0, and keeps it with an axis of time."""
    torch.manual_seed(0)
    public = PublicMinGRU(8, expansion_factor=expansion).double()
    layer = MinGRU(8, expansion=expansion, form=form, dtype=torch.float64)
    with torch.no_grad():
        layer.in_proj.weight.copy_(public.to_hidden_and_gate.weight)
        if expansion != 1:
            layer.out_proj.weight.copy_(public.to_out.weight)
    x = torch.randn(2, 30, 8, dtype=torch.float64)
    y, last = layer(x, torch.full((2, layer.d_inner), 1e-30, dtype=torch.float64))
    expected, state = public(x, return_next_prev_hidden=True)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(last, state[:, 0], rtol=1e-9, atol=1e-9)
    y.square().sum().backward()
    expected.square().sum().backward()
    grad = public.to_hidden_and_gate.weight.grad
    torch.testing.assert_close(layer.in_proj.weight.grad, grad, rtol=1e-9, atol=1e-9)
    more, _ = layer(x, last)
    torch.testing.assert_close(more, public(x, state), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", ["scan", "log"])
def test_golden_values(form):
    expected = [1.0317109907, 1.1817786210, 1.0353068716, 0.7903255576, 0.4975555692]
    layer = MinGRU(2, form=form, dtype=torch.float64)
    torch.testing.assert_close(
        golden(layer), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-10
    )


@pytest.mark.parametrize(
    "options", [{"positive": False}, {"form": "log"}, {"expansion": 1.5, "bias": True}], ids=str
)
@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "edges"])
def test_every_model_keeps_the_laws(options, law):
    def make(**other):
        layer = MinGRU(**{**options, **other})
        if not layer.positive:
            layer.forms = ("scan",)  # the law asks the instance which forms there are
        return layer

    check_property(law, make)


@pytest.mark.parametrize("options", MODELS, ids=str)
def test_saturated_gates_keep_or_replace_the_state_exactly(options):
    layer = MinGRU(1, dtype=torch.float32, **options)
    with torch.no_grad():
        layer.in_proj.weight.copy_(torch.tensor([[0.0], [1.0]]))
    replaced = 0.5 if layer.positive else 0.0
    x = torch.tensor([-1e4, -1e4, 1e4, -1e4])[None, :, None]
    y, _ = layer(x, torch.full((1, 1), 7.0))
    torch.testing.assert_close(y.flatten(), torch.tensor([7.0, 7.0, replaced, replaced]))


@pytest.mark.parametrize("form", ["scan", "log"])
def test_gradient_of_a_state_of_zero_is_the_product_of_the_decays(form):
    torch.manual_seed(0)
    layer = MinGRU(3, form=form, dtype=torch.float64)
    x = torch.randn(1, 4, 3, dtype=torch.float64)
    h0 = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(layer(x, h0)[1].sum(), h0)
    gate = x @ layer.in_proj.weight[3:].T
    torch.testing.assert_close(grad, (-gate).sigmoid().prod(1), rtol=1e-10, atol=0)


def test_state_starts_at_g_of_zero_where_it_is_positive():
    layer, x = MinGRU(4), torch.randn(2, 5, 4)
    assert not layer.init_state(2).any()
    assert torch.equal(layer(x)[0], layer(x, torch.full((2, 4), 0.5))[0])
    assert MinGRU(4, positive=False).init_state(2).unique().item() == 0.0
    assert MinGRU(4, dtype=torch.bfloat16).init_state(1).dtype == torch.float32
    assert MinGRU(4, expansion=2).init_state(3, dtype=torch.float64).shape == (3, 8)


def test_weights_are_drawn_as_a_linear_layer_draws_them():
    torch.manual_seed(3)
    layer = MinGRU(64, expansion=2, bias=True)
    assert layer.in_proj.weight.shape == (256, 64)
    assert layer.out_proj.weight.shape == (64, 128)
    assert layer.in_proj.weight.std().item() == pytest.approx((3 * 64) ** -0.5, rel=0.03)
    assert layer.in_proj.weight.abs().max() <= 64**-0.5
    before = layer.in_proj.weight.clone()
    layer.reset_parameters()
    assert not torch.equal(before, layer.in_proj.weight)
    assert MinGRU(4).out_proj is None
    assert MinGRU(4).in_proj.bias is None


BAD = [
    ({"d_model": 0}, ArgumentError, "d_model must be an integer of at least 1, got 0"),
    ({"expansion": 0.1}, ArgumentError, "at least one channel, got 0.1 of d_model=4"),
    ({"expansion": float("nan")}, ArgumentError, "at least one channel, got nan"),
    ({"form": "lag"}, UnknownNameError, "no MinGRU form named 'lag'. Did you mean 'log'?"),
    (
        {"form": "log", "positive": False},
        ArgumentError,
        "form must be 'scan' where positive=False, got 'log'",
    ),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_constructor_words_its_errors(options, error, message):
    with pytest.raises(error, match=message):
        MinGRU(**{"d_model": 4, **options})


@pytest.mark.unchecked
@pytest.mark.parametrize("shape", [(2, 5), (1, 4), (2, 1, 4)])
def test_step_refuses_a_state_of_another_shape(shape):
    with pytest.raises(ArgumentError, match=r"state must have shape \(batch=2, d_inner=4\)"):
        MinGRU(4).step(torch.ones(2, 4), torch.ones(shape))


@pytest.mark.parametrize("gates", ["refine", "ur"])
@pytest.mark.parametrize("options", [{}, {"form": "log"}, {"positive": False}], ids=str)
def test_a_refined_gate_equals_the_printed_one(gates, options):
    """g = 2 r f + (1 - 2 r) f^2, a sequence and its steps."""
    layer = MinGRU(3, gates=gates, bias=True, dtype=torch.float64, **options)
    x, h = torch.randn(2, 14, 3).double(), torch.rand(2, 3).double()
    v, gate, r = layer.in_proj(x).chunk(3, -1)
    f, r = (-gate).sigmoid(), r.sigmoid()
    g = 2 * r * f + (1 - 2 * r) * f**2
    v = torch.where(v >= 0, v + 0.5, v.sigmoid()) if layer.positive else v
    expected, state, before = [], h, h
    for t in range(14):
        before = g[:, t] * before + (1 - g[:, t]) * v[:, t]
        expected.append(before)
        y, state = layer.step(x[:, t], state)
        torch.testing.assert_close(y, before, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(layer(x, h)[0], torch.stack(expected, 1), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
def test_laws_hold_with_a_refined_gate(law):
    check_property(law, partial(MinGRU, gates="ur", bias=True))


def test_memories_start_uniform_up_to_t_max():
    layer = MinGRU(400, gates="chrono", t_max=200, bias=True)
    biases = layer.in_proj.bias.detach().double().split(400)
    memory = 1 + (-biases[1]).exp()
    assert kstest((memory - 2) / 198, "uniform").pvalue > 0.01
    with pytest.raises(ArgumentError, match="bias must be True for gates='chrono', got False"):
        MinGRU(4, gates="chrono", t_max=9)


def test_gates_start_spread_evenly_and_what_refines_them_against():
    _, gate, r = MinGRU(400, gates="ur", bias=True).in_proj.bias.detach().double().split(400)
    assert kstest(gate.sigmoid(), "uniform").pvalue > 0.01
    torch.testing.assert_close(r, gate)
