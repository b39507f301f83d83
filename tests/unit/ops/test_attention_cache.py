"""Attention over a cache: what is visible, what is kept, and in how many pieces it is computed."""

import pytest
import torch

from linrnn.mixers import GAU, Attention
from linrnn.ops import attention
from linrnn.ops.attention import READS, attend, positions, remember

EACH = pytest.mark.parametrize("make", [Attention, GAU], ids=lambda m: m.__name__)


def test_positions_count_from_the_last_reset():
    reset = torch.tensor([[0, 0, 1, 0, 1, 1, 0], [0] * 7, [1, 0, 0, 0, 0, 0, 0]]).bool()
    got = positions(torch.tensor([3, 5, 8]), 7, reset)
    assert got.tolist() == [[3, 4, 0, 1, 0, 0, 1], [5, 6, 7, 8, 9, 10, 11], [0, 1, 2, 3, 4, 5, 6]]
    assert positions(torch.tensor([3]), 2, None).tolist() == [[3, 4]]


def test_remember_keeps_a_window_and_zeroes_what_is_hidden():
    cache = torch.tensor([[[1.0], [float("nan")]], [[3.0], [4.0]]])
    new = torch.tensor([[[5.0], [6.0]], [[7.0], [8.0]]])
    reset = torch.tensor([[True, False], [False, False]])
    last = torch.tensor([1, 3])
    entries = torch.cat([cache, new], 1)
    kept = remember(entries, last, reset, None)
    assert kept[..., 0].tolist() == [[0, 0, 5, 6], [3, 4, 7, 8]]
    assert remember(entries, last, reset, 4)[..., 0].tolist() == [[0, 5, 6], [4, 7, 8]]
    assert remember(entries, last, None, 2)[..., 0].tolist() == [[6], [8]]
    assert remember(entries, last, None, 1).shape == (2, 0, 1)


def sums(q, k, v, visible):
    """Unnormalised attention that lets every key in, so that what it returns counts them."""
    if visible is None:
        visible = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril()
    return torch.where(visible, 1.0, 0.0) @ v


@pytest.fixture
def counting(monkeypatch):
    monkeypatch.setitem(READS, "sums", sums)


@pytest.mark.usefixtures("counting")
def test_each_step_sees_itself_and_so_many_before():
    v = 2.0 ** torch.arange(6).view(1, 6, 1)
    q, sight = torch.zeros(1, 4, 1), torch.tensor([[2, 0, 1, 4]])
    y = attend("sums", q, v, v, sight, window=None, whole=False)
    assert y.flatten().tolist() == [4 + 2 + 1, 8, 16 + 8, 32 + 16 + 8 + 4 + 2]
    whole = attend("sums", v, v, v, torch.arange(6)[None], window=None, whole=True)
    assert whole.flatten().tolist() == [1, 3, 7, 15, 31, 63]


@pytest.mark.usefixtures("counting")
def test_nan_reaches_the_steps_that_see_it_and_no_other():
    v = torch.ones(1, 6, 1)
    k = v.clone()
    k[0, 3] = float("inf")
    y = attend("sums", v, k, v, torch.tensor([[0, 1, 2, 3, 0, 2]]), window=None, whole=False)
    assert y.isnan().flatten().tolist() == [False, False, False, True, False, True]
    y = attend("sums", v, k, v, torch.arange(6)[None], window=None, whole=True)
    assert y.isnan().flatten().tolist() == [False, False, False, True, True, True]


def read_with_gradients(layer, x, state, reset):
    x = x.clone().requires_grad_()
    y, last = layer(x, state, reset=reset)
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    loss = (y * weight).sum() + last["v"].pow(2).sum()
    return y, last, torch.autograd.grad(loss, [x, *layer.parameters()])


@EACH
@pytest.mark.parametrize("window", [None, 1, 3, 9, 60])
def test_pieces_equal_the_whole(make, window, monkeypatch):
    """37 queries in pieces of 4 or more, over a cache, with resets: the numbers of one piece."""
    torch.manual_seed(0)
    layer = make(4, window=window, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.5)  # the scores of a fresh GAU are about 1e-9
    state = layer(torch.randn(2, 11, 4, dtype=torch.float64))[1]
    state = {key: value.detach() for key, value in state.items()}
    x = torch.randn(2, 37, 4, dtype=torch.float64)
    reset = torch.zeros(2, 37, dtype=torch.bool)
    reset[0, [5, 23]] = True
    for mask in (None, reset):
        expected = read_with_gradients(layer, x, state, mask)
        with monkeypatch.context() as patch:
            patch.setattr(attention, "QUERIES", 16)
            pieces = read_with_gradients(layer, x, state, mask)
        torch.testing.assert_close(pieces, expected, rtol=1e-10, atol=1e-12)


@EACH
def test_window_as_long_as_the_sequence_changes_nothing(make):
    torch.manual_seed(0)
    full = make(4, dtype=torch.float64)
    windowed = make(4, window=20, dtype=torch.float64)
    windowed.load_state_dict(full.state_dict())
    x = torch.randn(2, 20, 4, dtype=torch.float64)
    torch.testing.assert_close(windowed(x)[0], full(x)[0])


@EACH
def test_window_forgets_what_lies_outside(make):
    torch.manual_seed(0)
    layer = make(4, window=5, dtype=torch.float64)
    x = torch.randn(1, 20, 4, dtype=torch.float64, requires_grad=True)
    y, state = layer(x)
    (grad,) = torch.autograd.grad(y[:, 15].sum(), x)
    seen = grad[0].any(-1).nonzero().flatten().tolist()  # a squared ReLU may drop one in between
    assert (seen[0], seen[-1]) == (11, 15)
    assert state["k"].shape[1] == 4
    assert layer.declared == {}
    assert make(4).declared.keys() == {"constant_memory"}


@EACH
def test_rows_reset_at_their_own_steps_and_forget_nan(make):
    torch.manual_seed(0)
    layer = make(4, dtype=torch.float64)
    state = layer(torch.randn(3, 5, 4, dtype=torch.float64))[1]
    state["v"] = state["v"].clone()
    state["v"][1, 2] = float("inf")
    x = torch.randn(3, 9, 4, dtype=torch.float64)
    x[2, 3] = float("nan")
    reset = torch.zeros(3, 9, dtype=torch.bool)
    reset[1, 0] = reset[2, 4] = reset[2, 5] = True
    y, last = layer(x, state, reset=reset)
    first, third = ({key: h[i : i + 1] for key, h in state.items()} for i in (0, 2))
    torch.testing.assert_close(y[:1], layer(x[:1], first)[0])
    torch.testing.assert_close(y[1:2], layer(x[1:2])[0])
    torch.testing.assert_close(y[2:, :3], layer(x[2:, :3], third)[0])
    assert y[2, 3].isnan().all()
    torch.testing.assert_close(y[2:, 4:5], layer(x[2:, 4:5])[0])
    torch.testing.assert_close(y[2:, 5:], layer(x[2:, 5:])[0])
    assert all(h.isfinite().all() for h in last.values())
    assert last["position"].tolist() == [14, 9, 4]
    x_t = torch.randn(3, 4, dtype=torch.float64)
    alone = layer.step(x_t[2:], layer(x[2:, 5:])[1])[0]
    torch.testing.assert_close(layer.step(x_t, last)[0][2:], alone)


@pytest.mark.unchecked
@EACH
def test_compiled_resets_and_pieces_equal_eager_ones(make, monkeypatch):
    monkeypatch.setattr(attention, "QUERIES", 8)
    torch.manual_seed(0)
    layer, x = make(4, window=6), torch.randn(2, 19, 4)
    reset = torch.zeros(2, 19, dtype=torch.bool)
    reset[0, [5, 7]] = True
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    y, expected = (f(x, reset=reset)[0] for f in (compiled, layer))
    torch.testing.assert_close(y, expected)
    grads = [torch.autograd.grad(z.square().sum(), [*layer.parameters()]) for z in (y, expected)]
    torch.testing.assert_close(*grads)


@pytest.mark.unchecked
@EACH
def test_keys_and_values_of_other_lengths_are_refused(make):
    layer = make(4)
    state = layer(torch.ones(1, 5, 4))[1]
    state["v"] = state["v"][:, 1:]
    message = r"state\['k'\] and state\['v'\] must hold the same number of steps, got 5 and 4"
    with pytest.raises(ValueError, match=f"{make.__name__}: {message}"):
        layer(torch.ones(1, 3, 4), state)
    with pytest.raises(ValueError, match=f"{make.__name__}: {message}"):
        layer.step(torch.ones(1, 4), state)
