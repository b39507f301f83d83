"""Attentive recurrent network against PyTorch's cells and attention, step after step."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from linrnn.errors import LinrnnError
from linrnn.mixers import ARN

CELLS = {"gru": nn.GRUCell, "lstm": nn.LSTMCell, "tanh": nn.RNNCell}


def make(**options):
    torch.manual_seed(0)
    layer = ARN(6, **{"n_heads": 2, "d_head": 4, "dtype": torch.float64, **options})
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def transcription(layer, x):
    cell = CELLS[layer.cell](8, 6, dtype=torch.float64)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    weights = {name: getattr(layer, name) for name in names}
    k, v = (z.transpose(1, 2) for z in layer.heads(x))
    h = x.new_zeros(len(x), 6)
    state, ys = (h, h) if layer.cell == "lstm" else h, []
    for t in range(x.shape[1]):
        q = layer.q_proj(h).view(len(x), 1, 2, 4).transpose(1, 2)
        c = F.scaled_dot_product_attention(q, k[:, :, : t + 1], v[:, :, : t + 1])
        c = c.transpose(1, 2).flatten(1)
        state = torch.func.functional_call(cell, weights, (c, state))
        h = state[0] if layer.cell == "lstm" else state
        y = h
        if layer.fusion == "gated":
            lam = layer.gate(torch.cat([x[:, t], h], -1)).sigmoid()
            y = lam * x[:, t] + (1 - lam) * h
        ys.append(y)
    return torch.stack(ys, 1)


@pytest.mark.parametrize("cell", ["gru", "lstm", "tanh"])
@pytest.mark.parametrize("fusion", ["gated", "plain"])
def test_equals_the_cells_and_the_attention_of_pytorch(cell, fusion):
    layer = make(cell=cell, fusion=fusion)
    x = torch.randn(2, 9, 6, dtype=torch.float64, requires_grad=True)
    y, expected = layer(x)[0], transcription(layer, x)
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    got, wanted = (
        torch.autograd.grad(z.square().sum(), [x, *layer.parameters()], retain_graph=True)
        for z in (y, expected)
    )
    torch.testing.assert_close(got, wanted)


def test_the_first_step_reads_itself_alone():
    layer, x = make(fusion="plain", cell="tanh"), torch.randn(3, 1, 6, dtype=torch.float64)
    value = layer.heads(x)[1].flatten(2)
    expected = (value @ layer.weight_ih.mT + layer.bias_ih + layer.bias_hh).tanh()
    torch.testing.assert_close(layer(x)[0], expected)


def test_nan_reaches_all_later_steps_of_its_sequence_and_no_other():
    layer, x = make(), torch.randn(2, 12, 6, dtype=torch.float64)
    x[0, 4] = float("nan")
    reset = torch.zeros(2, 12, dtype=torch.bool)
    reset[:, 8] = True
    bad = layer(x, reset=reset)[0].isnan().any(-1)
    assert bad[0].tolist() == [False] * 4 + [True] * 4 + [False] * 4
    assert not bad[1].any()


@pytest.mark.unchecked
def test_constructor_words_its_errors():
    with pytest.raises(LinrnnError, match="no ARN cell named 'rnn'"):
        ARN(4, cell="rnn")
    with pytest.raises(LinrnnError, match="no ARN fusion named 'sum'"):
        ARN(4, fusion="sum")
