"""The gated short convolution against golden numbers and the layer of transformers."""

import pytest
import torch

from linrnn.errors import ArgumentError
from linrnn.mixers import ShortConv


def test_golden_numbers():
    """One channel; the sum of three products is written out by hand."""
    layer = ShortConv(1, dtype=torch.float64)
    with torch.no_grad():
        layer.in_proj.weight.copy_(torch.tensor([[1.0], [2.0], [0.5]]))
        layer.conv.weight.copy_(torch.tensor([[0.5, -0.25, 1.0]]))
        layer.out_proj.weight.fill_(1)
    x = torch.tensor([1.0, 3.0, -2.0, 1.0], dtype=torch.float64).view(1, 4, 1)
    y, state = layer(x)
    assert y.flatten().tolist() == [1, 26.25, -4.5, 4.5]
    assert state["conv"].flatten().tolist() == [2, 0.5]


@pytest.mark.parametrize("bias", [False, True])
def test_equals_the_layer_of_transformers_split_and_whole_gradients_too(bias):
    pytest.importorskip("transformers")
    lfm2 = pytest.importorskip("transformers.models.lfm2.modeling_lfm2")
    torch.manual_seed(0)
    config = lfm2.Lfm2Config(
        hidden_size=6, conv_L_cache=3, conv_bias=bias, num_hidden_layers=1, layer_types=["conv"]
    )
    theirs = lfm2.Lfm2ShortConv(config, 0).double()
    ours = ShortConv(6, bias=bias, dtype=torch.float64)
    weights = theirs.state_dict()
    weights["conv.weight"] = weights["conv.weight"].squeeze(1)
    ours.load_state_dict(weights)
    x = torch.randn(2, 11, 6, dtype=torch.float64, requires_grad=True)
    first, state = ours(x[:, :4])
    y = torch.cat([first, ours(x[:, 4:], state)[0]], 1)
    expected = theirs(x)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-14)
    weight = torch.randn_like(y)
    got = torch.autograd.grad((y * weight).sum(), [x, *ours.parameters()])
    names = [name for name, _ in ours.named_parameters()]
    sources = [x, *(theirs.get_parameter(name) for name in names)]
    want = torch.autograd.grad((expected * weight).sum(), sources)
    got = [g.reshape(w.shape) for g, w in zip(got, want, strict=True)]
    torch.testing.assert_close(got, [*want], rtol=1e-12, atol=1e-13)


def test_nothing_is_remembered_beyond_the_window():
    torch.manual_seed(0)
    layer = ShortConv(4, d_conv=3, dtype=torch.float64)
    x, other = torch.randn(2, 1, 9, 4, dtype=torch.float64)
    other[:, 3:] = x[:, 3:]
    one, two = layer(x)[0], layer(other)[0]
    torch.testing.assert_close(one[:, 5:], two[:, 5:], rtol=0, atol=0)
    assert (one[:, 4] - two[:, 4]).abs().max() > 1e-3


@pytest.mark.unchecked
def test_no_taps_are_refused():
    with pytest.raises(ArgumentError, match="ShortConv: d_conv must be an integer of at least 1"):
        ShortConv(4, d_conv=0)
