"""Recurrent attention against whole windows with their masks, and its review."""

import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import LinrnnError
from linrnn.mixers import RecurrentAttentionNetwork
from linrnn.nn import rotate


def make(**options):
    torch.manual_seed(0)
    sizes = {"n_heads": 2, "d_head": 4, "segment": 4, "n_review": 2, "dtype": torch.float64}
    layer = RecurrentAttentionNetwork(6, **{**sizes, **options})
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def normed(layer, u, i):
    if layer.norm == "none":
        return u
    if layer.norm == "layer":
        return F.layer_norm(u, (6,), layer.gain[i], layer.shift[i], 1e-6)
    return F.rms_norm(u, (6,), layer.gain[i], 1e-6) + layer.shift[i]


def transcription(layer, x):
    """Windows of whole matrices [g; X], and a stack of all cells."""
    cells, ys = [layer.first.expand(len(x), -1)], []
    for part in x.split(layer.segment, 1):
        n, g = part.shape[1], cells[-1]
        q, k, v = layer.heads(torch.cat([g[:, None], part], 1))
        place = torch.arange(n + 1)[None]
        q, k, v = (z.transpose(1, 2) for z in (rotate(q, place), rotate(k, place), v))
        mask = torch.ones(n + 1, n + 1, dtype=torch.bool).tril()
        mask[0] = True  # the cell reads the window
        z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        z = layer.o_proj(z)
        y = z[:, 1:]
        if reviewed := cells[1:][-layer.n_review :]:
            q = layer.review(normed(layer, part + y, 1))[0].transpose(1, 2)
            _, k, v = (w.transpose(1, 2) for w in layer.review(torch.stack(reviewed, 1)))
            read = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            y = y + layer.review_proj(read)
        ys.append(y)
        cells.append(normed(layer, z[:, 0] + g if layer.residual else z[:, 0], 0))
    return torch.cat(ys, 1), cells


@pytest.mark.parametrize(
    "options", [{}, {"norm": "rms", "n_review": 20}, {"norm": "none"}, {"residual": False}]
)
@pytest.mark.parametrize("time", [3, 16, 18])
def test_equals_whole_windows_and_a_stack_of_cells(time, options):
    layer, x = make(**options), torch.randn(2, time, 6, dtype=torch.float64)
    y, state = layer(x)
    expected, cells = transcription(layer, x)
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    full = cells[time // layer.segment]
    if time > layer.segment:  # before the first has ended it stands in no state
        torch.testing.assert_close(state["memory"]["cell"], full, rtol=1e-10, atol=1e-10)
    sources = [layer.first, layer.heads.proj.weight]
    if time > layer.segment:
        sources += [layer.review.proj.weight, layer.review_proj.weight]
    got, wanted = (torch.autograd.grad(z.square().sum(), sources) for z in (y, expected))
    torch.testing.assert_close(got, wanted)


def test_one_window_without_a_cell_is_softmax_attention():
    layer, x = make(segment=20), torch.randn(2, 9, 6, dtype=torch.float64)
    with torch.no_grad():
        layer.first.zero_()  # key and value 0: one more weight of exp(0)
    place = torch.arange(1, 10)[None]
    q, k, v = layer.heads(x)
    q, k, v = (z.transpose(1, 2) for z in (rotate(q, place), rotate(k, place), v))
    scores = (q @ k.mT / 2).masked_fill(torch.ones(9, 9).triu(1).bool(), float("-inf"))
    weight = scores.exp() / (1 + scores.exp().sum(-1, keepdim=True))
    o = (weight @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(x)[0], layer.o_proj(o))


@pytest.mark.parametrize(("n_review", "oldest"), [(1, 16), (2, 12), (5, 0)])
def test_the_review_goes_as_far_back_as_asked(n_review, oldest):
    """Cells that keep nothing and that nobody else sees: windows are known by review alone."""
    layer = make(n_review=n_review, residual=False)
    with torch.no_grad():
        for rows in layer.heads.rows():  # of a cell all is zero then
            rows[:, 0] = 0
        layer.gain[0, 1:] = layer.shift[0, 1:] = layer.first[1:] = 0
    x = torch.randn(1, 20, 6, dtype=torch.float64, requires_grad=True)
    y = layer(torch.cat([x, torch.randn(1, 1, 6, dtype=torch.float64)], 1))[0]
    (grad,) = torch.autograd.grad(y[0, 20].sum(), x)
    assert grad[0].any(-1).nonzero()[0].item() == oldest


@pytest.mark.unchecked
def test_constructor_words_its_errors():
    with pytest.raises(
        LinrnnError,
        match="RecurrentAttentionNetwork: n_review must be an integer of at least 1, got 0",
    ):
        RecurrentAttentionNetwork(4, n_review=0)
    with pytest.raises(LinrnnError, match="no RecurrentAttentionNetwork norm named 'batch'"):
        RecurrentAttentionNetwork(4, norm="batch")
    with pytest.raises(LinrnnError, match="RecurrentAttentionNetwork: d_rotary must be even"):
        RecurrentAttentionNetwork(4, d_head=3)
