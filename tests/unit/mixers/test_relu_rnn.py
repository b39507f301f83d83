"""The ReLU RNN against torch.nn.RNN with copied weights, and its two initialisations."""

import pytest
import torch
from torch import nn

from linrnn.errors import UnknownNameError
from linrnn.mixers import ReLURNN


@pytest.mark.parametrize("bias", [True, False])
def test_equals_torch_with_copied_weights(bias):
    torch.manual_seed(0)
    layer = ReLURNN(5, bias=bias, dtype=torch.float64)
    theirs = nn.RNN(5, 5, nonlinearity="relu", batch_first=True, bias=bias, dtype=torch.float64)
    with torch.no_grad():
        theirs.weight_hh_l0.copy_(layer.A)
        theirs.weight_ih_l0.copy_(layer.B)
        if bias:
            layer.b.copy_(theirs.bias_ih_l0)
            theirs.bias_hh_l0.zero_()
    x = torch.randn(3, 17, 5, dtype=torch.float64, requires_grad=True)
    h0 = torch.randn(3, 5, dtype=torch.float64)
    y, last = layer(x, h0)
    h, expected_last = theirs(x, h0[None])
    expected = h @ layer.C.T + layer.D * x
    torch.testing.assert_close((y, last), (expected, expected_last[0]), rtol=1e-12, atol=1e-12)
    weight = torch.randn_like(y)
    got = torch.autograd.grad((y * weight).sum(), [x, layer.A, layer.B])
    sources = [x, theirs.weight_hh_l0, theirs.weight_ih_l0]
    torch.testing.assert_close(got, torch.autograd.grad((expected * weight).sum(), sources))


def test_identity_keeps_what_it_has_read():
    layer = ReLURNN(4, init="identity", dtype=torch.float64)
    assert torch.equal(layer.A, torch.eye(4, dtype=torch.float64))
    x = torch.rand(2, 30, 4, dtype=torch.float64)
    with torch.no_grad():
        layer.B.abs_()
    _, last = layer(x)
    torch.testing.assert_close(last, x.sum(1) @ layer.B.T)


def test_glorot_is_the_default():
    torch.manual_seed(0)
    layer = ReLURNN(300)
    assert layer.A.var().item() == pytest.approx(1 / 300, rel=0.03)
    assert not layer.b.any()


def test_nothing_is_clipped():
    layer = ReLURNN(1, dtype=torch.float64)
    with torch.no_grad():
        layer.A.fill_(1.5)
    _, last = layer(torch.zeros(1, 100, 1, dtype=torch.float64), torch.ones(1, 1).double())
    assert last.item() == pytest.approx(1.5**100, rel=1e-10)


@pytest.mark.unchecked
def test_constructor_words_its_errors():
    with pytest.raises(UnknownNameError, match=r"no ReLURNN init named 'identiy'. Did you mean"):
        ReLURNN(4, init="identiy")
