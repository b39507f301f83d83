"""R-Transformer against torch.nn's RNNs, window by window, and PyTorch's attention."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from linrnn.errors import LinrnnError
from linrnn.mixers import RTransformer
from linrnn.testing import check_property
from linrnn.testing._mixer_laws import NUMERIC_LAWS

THEIRS = {"gru": nn.GRU, "lstm": nn.LSTM, "tanh": nn.RNN}


def make(**options):
    torch.manual_seed(0)
    sizes = {"local": 4, "n_heads": 2, "d_head": 5, "dtype": torch.float64}
    layer = RTransformer(6, **{**sizes, **options})
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def weights(layer, number):
    """Those of an RNN, as torch.nn's cells name them."""
    return {
        name: getattr(layer, name)[number]
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    }


def windows(layer, number, u):
    """The last output of torch.nn's layer on each window (T, d_model), one call a window."""
    theirs = THEIRS[layer.cell](6, 6, batch_first=True, dtype=torch.float64)
    theirs.load_state_dict({f"{n}_l0": w for n, w in weights(layer, number).items()})
    padded = F.pad(u, (0, 0, layer.local - 1, 0))
    reads = [theirs(padded[None, t : t + layer.local])[0][0, -1] for t in range(len(u))]
    return torch.stack(reads)


def transcription(layer, x):
    """One row (T, d_model)."""
    u = z = x
    for i in range(layer.n_local):
        z = z + windows(layer, i, u)
        u = F.layer_norm(z, (6,), layer.gain[i], layer.shift[i], 1e-6)
    q, k, v = (part.transpose(0, 1) for part in layer.heads(u))
    age = torch.arange(len(x))[:, None] - torch.arange(len(x))
    seen = (age >= 0) & (age < (layer.window or len(x)))
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    return z - x + layer.o_proj(o.transpose(0, 1).flatten(1))


@pytest.mark.parametrize("cell", ["gru", "lstm", "tanh"])
@pytest.mark.parametrize("options", [{}, {"n_local": 2, "window": 5}])
def test_equals_the_layers_of_pytorch_in_each_window(cell, options):
    layer, x = make(cell=cell, **options), torch.randn(2, 11, 6, dtype=torch.float64)
    x.requires_grad_()
    y, expected = layer(x)[0], torch.stack([transcription(layer, row) for row in x])
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    got, wanted = (
        torch.autograd.grad(z.square().sum(), [x, layer.heads.proj.weight], retain_graph=True)
        for z in (y, expected)
    )
    torch.testing.assert_close(got, wanted)


def test_windows_of_one_step_are_a_cell_of_each_step():
    layer, x = make(local=1), torch.randn(2, 7, 6, dtype=torch.float64)
    layer.o_proj.weight.data.zero_()
    cell = nn.GRUCell(6, 6, dtype=torch.float64)
    cell.load_state_dict(weights(layer, 0))
    torch.testing.assert_close(layer(x)[0], cell(x.flatten(0, 1)).view_as(x))


def test_the_recurrence_sees_its_window_and_attention_what_windows_begin_with():
    layer = make(window=3)
    x = torch.randn(1, 15, 6, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(layer(x)[0][0, 14].sum(), x)
    assert grad[0].any(-1).nonzero()[0].item() == 14 - (3 - 1) - (4 - 1)


@pytest.mark.parametrize("law", NUMERIC_LAWS)
@pytest.mark.parametrize("options", [{"cell": "lstm", "n_local": 2, "window": 4}, {"local": 1}])
def test_laws_hold_with_a_bounded_cache_and_several_cells(law, options):
    check_property(law, partial(RTransformer, **options))


@pytest.mark.unchecked
def test_constructor_words_its_errors():
    with pytest.raises(LinrnnError, match="no RTransformer cell named 'rnn'"):
        RTransformer(4, cell="rnn")
    with pytest.raises(LinrnnError, match="RTransformer: local must be an integer of at least 1"):
        RTransformer(4, local=0)
    with pytest.raises(LinrnnError, match="RTransformer: window must be an integer of at least 1"):
        RTransformer(4, window=0)
