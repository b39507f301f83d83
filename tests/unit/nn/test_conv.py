"""The causal convolution against torch.nn.Conv1d, in pieces and with resets."""

import pytest
import torch

from linrnn.errors import ArgumentError
from linrnn.nn import CausalConv, recall


def make(width=4, bias=True):
    return CausalConv(3, width, bias=bias, dtype=torch.float64)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_equals_conv1d_with_padding_on_the_left(width, bias):
    conv, peer = make(width, bias), torch.nn.Conv1d(3, 3, width, groups=3, bias=bias).double()
    with torch.no_grad():
        peer.weight.copy_(conv.weight[:, None])
        if bias:
            peer.bias.copy_(conv.bias)
    x = torch.randn(2, 9, 3, dtype=torch.float64)
    padded = torch.nn.functional.pad(x.mT, (width - 1, 0))
    torch.testing.assert_close(conv(x, conv.init_state(2))[0], peer(padded).mT)


@pytest.mark.parametrize("cut", [0, 1, 2, 8, 9])
def test_pieces_and_steps_equal_one_call(cut):
    conv, x = make(), torch.randn(2, 9, 3, dtype=torch.float64)
    past = torch.randn(2, 3, 3, dtype=torch.float64)
    whole, end = conv(x, past)
    first, middle = conv(x[:, :cut], past)
    second, last = conv(x[:, cut:], middle)
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    torch.testing.assert_close(last, end)
    for t in range(9):
        y, past = conv.step(x[:, t], past)
        torch.testing.assert_close(y, whole[:, t])
    torch.testing.assert_close(past, end)


def test_packed_sequences_equal_separate_ones():
    conv, x = make(), torch.randn(1, 9, 3, dtype=torch.float64)
    past = torch.randn(1, 3, 3, dtype=torch.float64)
    reset = torch.zeros(1, 9, dtype=torch.bool)
    reset[:, [2, 3, 7]] = True
    y, last = conv(x, past, reset)
    parts = [conv(x[:, :2], past)]
    parts += [conv(part, conv.init_state(1)) for part in x[:, 2:].split([1, 4, 2], 1)]
    torch.testing.assert_close(y, torch.cat([p[0] for p in parts], 1))
    torch.testing.assert_close(last, parts[-1][1])


def test_nothing_passes_a_reset():
    x = torch.full((1, 4, 1), float("nan"))
    x[:, 2:] = 1
    reset = torch.tensor([[False, False, True, False]])
    assert recall(x, torch.zeros(1, 2, 1), 2, reset)[:, 2:].eq(0).all()


def test_width_must_be_positive():
    with pytest.raises(ArgumentError, match="width"):
        CausalConv(3, 0)
