"""`RNN` with marks where sequences start, and with states of zeros."""

from itertools import pairwise

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close

from linrnn import RNN, SequenceModel, mixers
from linrnn.errors import DTypeError, ShapeError
from linrnn.state import map_state
from linrnn.streaming import Sessions

NAMES = mixers.names()
each_mixer = pytest.mark.parametrize("name", NAMES)
TIME = 7
CUTS = {0: [3], 1: [2, 5], 2: []}
"""Rows to the steps at which another sequence starts."""


def rnn(name="mingru", **options):
    torch.manual_seed(0)
    build = {"batch_first": True, "dtype": torch.float64, **options}
    own = dict(mixers.load(name).in_laws)
    return RNN(name, 3, 8, 2, mixer_options=own, **build).eval()


def signal(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def marks(lengths=(TIME, TIME, TIME)):
    reset = torch.zeros(3, TIME, dtype=torch.bool)
    for row, cuts in CUTS.items():
        reset[row, [cut for cut in cuts if cut < lengths[row]]] = True
    return reset


def alone(layer, x, row, length=TIME, dt=None):
    """Each sequence of a row by itself, one after the other."""
    ends = [0, *(cut for cut in CUTS[row] if cut < length), length]
    outputs = []
    for begin, end in pairwise(ends):
        times = {} if dt is None else {"dt": dt[row, begin:end].clone()[None]}
        y, last = layer(x[row : row + 1, begin:end], **times)
        outputs.append(y[0])
    return torch.cat(outputs), last


def resets(name):
    return not any("reset" in law for law in mixers.load(name).declared)


@pytest.mark.sampled
@each_mixer
def test_a_mark_starts_a_new_sequence(name):
    layer, x = rnn(name, bidirectional=True), signal(3, TIME, 3)
    if not resets(name):
        return
    y, _ = layer(x, reset=marks())
    for row in range(3):
        assert_close(y[row], alone(layer, x, row)[0])


@pytest.mark.parametrize("name", ["mingru", "gru", "rwkv4", "attention", "lru", "s4d", "cfc"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("order", [[7, 5, 4], [4, 7, 6]])
def test_marks_of_packed_sequences(name, bidirectional, order):
    layer, x = rnn(name, bidirectional=bidirectional), signal(3, TIME, 3)
    packed, reset = (
        pack_padded_sequence(z, order, batch_first=True, enforce_sorted=False)
        for z in (x, marks(order))
    )
    output, h_n = layer(packed, reset=reset)
    y, _ = pad_packed_sequence(output, batch_first=True)
    for row, length in enumerate(order):
        expected, last = alone(layer, x, row, length)
        assert_close(y[row, :length], expected)
        if layer.hidden.form == "vector" and not bidirectional:
            assert_close(h_n[:, row], last[:, 0])


@pytest.mark.parametrize("name", ["ltc", "cfc", "lru"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_marks_beside_times(name, bidirectional):
    layer, x = rnn(name, bidirectional=bidirectional), signal(3, TIME, 3)
    dt = 0.5 + signal(3, TIME, seed=2).square()
    for row in range(3):
        expected = alone(layer, x, row, dt=dt)[0]
        assert_close(layer(x, dt=dt, reset=marks())[0][row], expected)


def test_marks_have_the_axes_of_the_input():
    x, reset = signal(3, TIME, 3), marks()
    first, second = rnn(), rnn(batch_first=False)
    y, h_n = first(x, reset=reset)
    other, h_other = second(x.transpose(0, 1), reset=reset.t())
    assert_close(other.transpose(0, 1), y)
    assert_close(h_other, h_n)
    row, h_row = first(x[1], reset=reset[1])
    assert_close(row, y[1])
    assert_close(h_row, h_n[:, 1])


def test_a_mark_at_the_first_step_forgets_the_state():
    layer, x = rnn(), signal(3, TIME, 3)
    state = layer(signal(3, TIME, 3, seed=4))[1]
    reset = torch.zeros(3, TIME, dtype=torch.bool)
    reset[1, 0] = True
    y, _ = layer(x, state, reset=reset)
    assert_close(y[1], layer(x)[0][1])
    assert_close(y[[0, 2]], layer(x, state)[0][[0, 2]])


@pytest.mark.unchecked
def test_what_is_no_mark_is_refused():
    layer, x = rnn(), signal(3, TIME, 3)
    with pytest.raises(DTypeError, match="RNN: reset must be boolean"):
        layer(x, reset=marks().long())
    with pytest.raises(ShapeError, match="RNN: reset must have shape"):
        layer(x, reset=marks()[:2])


@pytest.mark.sampled
@each_mixer
def test_rows_of_zeros_in_hx_begin_anew(name):
    """``h * (1 - done)`` makes such rows, in a tensor or in each of a pair."""
    layer, x = rnn(name), signal(3, TIME, 3)
    done = torch.tensor([0.0, 1.0, 0.0])
    state = layer(signal(3, TIME, 3, seed=4))[1]
    masked = map_state(lambda h: h * (1 - done).view(1, 3, *[1] * (h.ndim - 2)).to(h.dtype), state)
    y, _ = layer(x, masked)
    assert_close(y[1], layer(x[1:2])[0][0])
    assert_close(y[[0, 2]], layer(x, state)[0][[0, 2]])
    if not layer.hidden.grows:
        zeros = map_state(torch.zeros_like, state)
        assert_close(layer(x, zeros)[0], layer(x)[0])


@pytest.mark.sampled
@each_mixer
def test_a_stack_begins_anew_where_its_state_is_zeros(name):
    options = {"mixer_options": dict(mixers.load(name).in_laws), "pool": "mean", "conv_width": 2}
    torch.manual_seed(0)
    model = SequenceModel(3, 2, mixer=name, d_model=8, n_layers=2, **options).double().eval()
    x, state = signal(3, TIME, 3), model(signal(3, TIME, 3, seed=4))[1]
    keep = torch.tensor([1.0, 0.0, 1.0])
    masked = map_state(lambda h: h * keep.view(3, *[1] * (h.ndim - 1)).to(h.dtype), state)
    y, _ = model(x, masked)
    assert_close(y[1], model(x[1:2])[0][0])
    assert_close(y[[0, 2]], model(x, state)[0][[0, 2]])


@pytest.mark.parametrize("name", ["mingru", "minlstm", "aft", "rwkv4", "complex_rwkv", "slstm"])
def test_a_stream_joins_with_zeros(name):
    torch.manual_seed(0)
    model = SequenceModel(3, 2, mixer=name, d_model=8, n_layers=1, pool="none").eval()
    streams, x = Sessions(model), torch.randn(5, 3)
    streams.join("new")
    streams.feed({"new": x})
    streams.join("zeros", map_state(torch.zeros_like, streams.state("new")))
    streams.join("newer")
    y = streams.feed({"zeros": x, "newer": x})
    assert_close(y["zeros"], y["newer"])
    step = [streams.feed({"zeros": x_t, "newer": x_t}) for x_t in x]
    assert_close([s["zeros"] for s in step], [s["newer"] for s in step])
