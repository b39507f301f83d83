"""The gated feed-forward network against its equation and its published starts."""

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import LinrnnError
from linrnn.nn import GatedMLP

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": lambda x: x * x.sigmoid(),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_equation(activation, bias):
    torch.manual_seed(0)
    layer = GatedMLP(4, d_inner=5, bias=bias, activation=activation, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    z = torch.randn(2, 3, 4, dtype=torch.float64)
    g, u, d = layer.gate, layer.up, layer.down
    b, c, e = (m.bias for m in (g, u, d)) if bias else (0, 0, 0)
    gate = ACTIVATIONS[activation](z @ g.weight.T + b)
    torch.testing.assert_close(layer(z), (gate * (z @ u.weight.T + c)) @ d.weight.T + e)


STARTS = {
    "lecun": (1 / 200, 2 / 3 / 600),
    "small": (0.4 / 200, 4 / 9 / 200),
    "small_inner": (0.4 / 200, 4 / 9 / 600),
}


@pytest.mark.parametrize("init", STARTS)
def test_starts_as_published(init):
    torch.manual_seed(0)
    layer, (inner, outer) = GatedMLP(200, init=init, n_layers=3), STARTS[init]
    assert layer.down.weight.shape == (200, 600)
    for linear, variance in ((layer.gate, inner), (layer.up, inner), (layer.down, outer)):
        assert linear.weight.var().item() == pytest.approx(variance, rel=0.03)
        assert not linear.bias.any()


BAD = [
    ({"d_inner": 0}, "GatedMLP: d_inner must be an integer of at least 1, got 0"),
    ({"init": "zero"}, "init.*zero"),
    ({"activation": "no"}, "activation.*no"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), BAD)
def test_constructor_words_its_errors(options, message):
    with pytest.raises(LinrnnError, match=message):
        GatedMLP(4, **options)
