"""minLSTM against a NumPy loop, the public implementation, minGRU, golden values, its options."""

from functools import partial

import numpy as np
import pytest
import torch
from minGRU_pytorch.minLSTM import minLSTM as PublicMinLSTM
from scipy.stats import kstest

from linrnn.errors import ArgumentError
from linrnn.mixers import MinGRU, MinLSTM
from linrnn.testing import check_property

MODELS = [
    {"positive": positive, "normalise": normalise, "form": form}
    for positive in (True, False)
    for normalise in (True, False)
    for form in (("scan", "log") if positive else ("scan",))
]


def numpy_sigmoid(a):
    return 1 / (1 + np.exp(-a))


def numpy_minlstm(layer, x, h):
    """One step at a time from the equations."""
    W_h, W_f, W_i = np.split(layer.in_proj.weight.detach().numpy(), 3)
    states = []
    for t in range(x.shape[1]):
        v = x[:, t] @ W_h.T
        f, i = numpy_sigmoid(x[:, t] @ W_f.T), numpy_sigmoid(x[:, t] @ W_i.T)
        if layer.normalise:
            f, i = f / (f + i), i / (f + i)
        if layer.positive:
            v = np.where(v >= 0, v + 0.5, numpy_sigmoid(v))
        h = f * h + i * v
        states.append(h)
    return np.stack(states, 1)


@pytest.mark.parametrize("options", MODELS, ids=str)
def test_forward_equals_a_loop_in_numpy(options):
    torch.manual_seed(0)
    layer = MinLSTM(5, dtype=torch.float64, **options)
    x = 3 * torch.randn(2, 40, 5, dtype=torch.float64)
    h0 = torch.rand(2, 5, dtype=torch.float64)
    expected = numpy_minlstm(layer, x.numpy(), h0.numpy())
    y, last = layer(x, h0)
    np.testing.assert_allclose(y.detach().numpy(), expected, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(last.detach().numpy(), expected[:, -1], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("form", ["scan", "log"])
def test_forward_and_gradients_equal_the_public_implementation(form):
    """From a state of 0; given one, that implementation applies g to it again."""
    torch.manual_seed(0)
    public = PublicMinLSTM(8, expansion_factor=2.0).double()
    layer = MinLSTM(8, expansion=2.0, form=form, dtype=torch.float64)
    with torch.no_grad():
        layer.in_proj.weight.copy_(public.to_hidden_and_f_i_gate.weight)
        layer.out_proj.weight.copy_(public.to_out.weight)
    x = torch.randn(2, 30, 8, dtype=torch.float64)
    y, _ = layer(x, torch.full((2, 16), 1e-30, dtype=torch.float64))
    expected = public(x)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-9)
    y.square().sum().backward()
    expected.square().sum().backward()
    grad = public.to_hidden_and_f_i_gate.weight.grad
    torch.testing.assert_close(layer.in_proj.weight.grad, grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("positive", [True, False])
def test_opposite_gates_make_a_mingru(positive):
    torch.manual_seed(0)
    layer = MinLSTM(4, positive=positive, dtype=torch.float64)
    gru = MinGRU(4, positive=positive, dtype=torch.float64)
    with torch.no_grad():
        W_h, W_f, W_i = layer.in_proj.weight.chunk(3)
        W_i.copy_(-W_f)
        gru.in_proj.weight.copy_(torch.cat([W_h, -W_f]))
    x = 5 * torch.randn(3, 50, 4, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0], gru(x)[0], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("form", ["scan", "log"])
def test_golden_values(form):
    """Candidate sin t, forget gate cos t, input gate -cos t, t = 1..5, from 1/2."""
    expected = [0.8097599942, 1.1710177822, 0.7846765003, 0.4785642703, 0.3920213110]
    layer = MinLSTM(2, form=form, dtype=torch.float64)
    rows = [[0, 1], [0, 1], [1, 0], [1, 0], [-1, 0], [-1, 0]]
    with torch.no_grad():
        layer.in_proj.weight.copy_(torch.tensor(rows))
    t = torch.arange(1, 6, dtype=torch.float64)
    x = torch.stack([t.cos(), t.sin()], -1)[None]
    y, _ = layer(x, torch.full((1, 2), 0.5, dtype=torch.float64))
    torch.testing.assert_close(
        y[0, :, 0].detach(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("form", ["scan", "log"])
def test_gates_that_both_underflow_still_sum_to_one(form):
    """At -200 both sigmoids are 0 in float32; their ratio is 1 and stays 1."""
    layer = MinLSTM(1, form=form)
    with torch.no_grad():
        layer.in_proj.weight.copy_(torch.tensor([[0.0], [1.0], [1.0]]))
    x = torch.full((1, 3, 1), -200.0)
    h0 = torch.ones(1, 1)
    y, _ = layer(x, h0)
    torch.testing.assert_close(y.flatten(), torch.tensor([0.75, 0.625, 0.5625]))
    y_t, _ = layer.step(x[:, 0], h0)
    torch.testing.assert_close(y_t, y[:, 0])


@pytest.mark.parametrize("options", MODELS, ids=str)
@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "edges"])
def test_every_model_keeps_the_laws(options, law):
    def make(**other):
        layer = MinLSTM(**{**options, **other})
        if not layer.positive:
            layer.forms = ("scan",)  # the law asks the instance which forms there are
        return layer

    check_property(law, make)


@pytest.mark.unchecked
def test_log_form_refuses_a_candidate_of_either_sign():
    with pytest.raises(ArgumentError, match="MinLSTM: form must be 'scan' where positive=False"):
        MinLSTM(4, form="log", positive=False)


@pytest.mark.parametrize("gates", ["refine", "ur"])
@pytest.mark.parametrize("options", [{}, {"form": "log"}, {"positive": False}], ids=str)
def test_a_refined_gate_equals_the_printed_one(gates, options):
    """g = 2 r f + (1 - 2 r) f^2, a sequence and its steps."""
    layer = MinLSTM(3, gates=gates, bias=True, dtype=torch.float64, **options)
    x, h = torch.randn(2, 14, 3).double(), torch.rand(2, 3).double()
    v, gate, r = layer.in_proj(x).chunk(3, -1)
    f, r = gate.sigmoid(), r.sigmoid()
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
    check_property(law, partial(MinLSTM, gates="ur", bias=True))


def test_memories_start_uniform_up_to_t_max():
    layer = MinLSTM(400, gates="chrono", t_max=200, bias=True)
    biases = layer.in_proj.bias.detach().double().split(400)
    memory = 1 + biases[1].exp()
    assert kstest((memory - 2) / 198, "uniform").pvalue > 0.01
    with pytest.raises(ArgumentError, match="bias must be True for gates='chrono', got False"):
        MinLSTM(4, gates="chrono", t_max=9)


def test_gates_start_spread_evenly_and_what_refines_them_against():
    _, gate, r = MinLSTM(400, gates="ur", bias=True).in_proj.bias.detach().double().split(400)
    assert kstest(gate.sigmoid(), "uniform").pvalue > 0.01
    torch.testing.assert_close(r, -gate)
    torch.testing.assert_close(
        *(b.neg() if i else b for i, b in enumerate(uniform_biases())), rtol=1e-5, atol=1e-6
    )
    with pytest.raises(ArgumentError, match="normalise must be True for gates='ur', got False"):
        MinLSTM(4, gates="ur", bias=True, normalise=False)


def uniform_biases():
    """The biases of f and i without a refine gate."""
    return MinLSTM(40, gates="uniform", bias=True).in_proj.bias.detach().split(40)[1:]
