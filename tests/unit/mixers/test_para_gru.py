"""ParaGRU against a loop over its equation, golden numbers, Newton's method and its start."""

import pytest
import torch
from plain_loop import check_equal, lead_out

from linrnn.mixers import ParaGRU
from linrnn.ops import use_form


def transcription(layer, x):
    z, r, n = (x @ layer.in_proj.weight.T + layer.in_proj.bias).split(layer.d_state, -1)
    a_z, a_r, a_n = layer.a
    h, states = layer.c0 if layer.learn_initial else torch.zeros_like(z[0]), []
    for t in range(len(x)):
        weight = torch.sigmoid(z[t] + a_z * h)
        kept = h * torch.sigmoid(r[t] + a_r * h)
        h = (1 - weight) * h + weight * torch.tanh(n[t] + a_n * kept)
        states.append(h)
    return lead_out(layer, torch.stack(states))


@pytest.mark.parametrize("options", [{}, {"d_state": 5}, {"learn_initial": True}], ids=str)
def test_equals_a_transcription_split_and_whole_gradients_too(options):
    check_equal(ParaGRU(3, dtype=torch.float64, **options), transcription)


def test_gives_the_golden_numbers():
    layer = ParaGRU(1, dtype=torch.float64)
    with torch.no_grad():
        layer.in_proj.weight[:, 0] = torch.tensor([0.3, 0.2, 0.6])
        layer.in_proj.bias.copy_(torch.tensor([-0.1, 0, 0.1]))
        layer.a[:, 0] = torch.tensor([0.5, -0.4, 0.7])
    y, _ = layer(torch.tensor([1.0, 3, -2, 1], dtype=torch.float64).view(1, 4, 1))
    golden = torch.tensor([0.332302, 0.792004, 0.147915, 0.426522], dtype=torch.float64)
    torch.testing.assert_close(y.flatten(), golden, rtol=0, atol=1e-6)


def test_newton_gives_the_same_numbers_and_gradients():
    layer = ParaGRU(4, dtype=torch.float64)
    x = torch.randn(2, 60, 4, dtype=torch.float64, requires_grad=True)
    results = []
    for form in ("loop", "newton"):
        with use_form(form):
            y, last = layer(x)
        grads = torch.autograd.grad(y.square().sum() + last.sum(), [x, *layer.parameters()])
        results.append([y, last, *grads])
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-11)


def test_starts_as_published():
    layer = ParaGRU(300, d_state=500)
    assert layer.a.std().item() == pytest.approx((0.8 / 500) ** 0.5, rel=0.05)
    assert layer.in_proj.weight.abs().max().item() == pytest.approx((6 / 800) ** 0.5, rel=1e-3)
    b_z, b_r, b_n = layer.in_proj.bias.split(500)
    torch.testing.assert_close(b_z, -torch.linspace(0, 1, 500))
    assert not b_r.any()
    assert not b_n.any()
