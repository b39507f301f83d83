"""ParaLSTM against a loop over its equation, golden numbers, Newton's method and its start."""

import pytest
import torch
from plain_loop import check_equal, lead_out

from linrnn.mixers import ParaLSTM
from linrnn.ops import use_form


def transcription(layer, x):
    f, o, n = (x @ layer.in_proj.weight.T + layer.in_proj.bias).split(layer.d_state, -1)
    (a_f, a_o, a_n), (p_f, p_o) = layer.a, layer.p
    zero = torch.zeros_like(f[0])
    c, h = (layer.c0, layer.h0) if layer.learn_initial else (zero, zero)
    outputs = []
    for t in range(len(x)):
        keep = torch.sigmoid(f[t] + a_f * h + p_f * c)
        c = keep * c + (1 - keep) * torch.tanh(n[t] + a_n * h)
        h = torch.sigmoid(o[t] + a_o * h + p_o * c) * torch.tanh(c)
        outputs.append(h)
    return lead_out(layer, torch.stack(outputs))


@pytest.mark.parametrize("options", [{}, {"d_state": 5}, {"learn_initial": True}], ids=str)
def test_equals_a_transcription_split_and_whole_gradients_too(options):
    check_equal(ParaLSTM(3, dtype=torch.float64, **options), transcription)


def test_gives_the_golden_numbers():
    layer = ParaLSTM(1, dtype=torch.float64)
    with torch.no_grad():
        layer.in_proj.weight[:, 0] = torch.tensor([0.3, 0.2, 0.6])
        layer.in_proj.bias.copy_(torch.tensor([-0.1, 0, 0.1]))
        layer.a[:, 0] = torch.tensor([0.5, -0.4, 0.7])
        layer.p[:, 0] = torch.tensor([0.2, 0.3])
    y, _ = layer(torch.tensor([1.0, 3, -2, 1], dtype=torch.float64).view(1, 4, 1))
    golden = torch.tensor([0.151346, 0.289732, -0.089708, 0.074291], dtype=torch.float64)
    torch.testing.assert_close(y.flatten(), golden, rtol=0, atol=1e-6)


def test_newton_gives_the_same_numbers_and_gradients():
    layer = ParaLSTM(4, dtype=torch.float64)
    x = torch.randn(2, 60, 4, dtype=torch.float64, requires_grad=True)
    results = []
    for form in ("loop", "newton"):
        with use_form(form):
            y, last = layer(x)
        loss = y.square().sum() + last["c"].sum() + last["h"].sum()
        grads = torch.autograd.grad(loss, [x, *layer.parameters()])
        results.append([y, last["c"], *grads])
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-11)


def test_starts_as_published():
    layer = ParaLSTM(300, d_state=500)
    for vectors in (layer.a, layer.p):
        assert vectors.std().item() == pytest.approx((0.8 / 500) ** 0.5, rel=0.05)
    b_f, b_o, b_n = layer.in_proj.bias.split(500)
    torch.testing.assert_close(b_f, -torch.linspace(0, 1, 500))
    assert not b_o.any()
    assert not b_n.any()
