"""The time between steps, through models, packed sequences, both directions and streams."""

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close

from linrnn import RNN, SequenceModel, mixers
from linrnn.cli.list import main as list_main
from linrnn.errors import ArgumentError, DTypeError, ShapeError
from linrnn.mixers import GRU, LRU, S5, Bidirectional, CoRNN
from linrnn.state import leaves
from linrnn.streaming import Session, Sessions

TIMED = [name for name in mixers.names() if mixers.load(name).timed]
WIDTH = 4
each_timed = pytest.mark.parametrize("name", TIMED)


def signal(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def gaps(*shape):
    generator = torch.Generator().manual_seed(2)
    return 0.2 + 1.6 * torch.rand(*shape, dtype=torch.float64, generator=generator)


def model(mixer="lru", **options):
    torch.manual_seed(0)
    options = {"d_model": WIDTH, "n_layers": 2, "pool": "none", "dtype": torch.float64} | options
    return SequenceModel(3, 2, mixer=mixer, **options).eval()


def rnn(mixer="lru", **options):
    torch.manual_seed(0)
    return RNN(mixer, 3, WIDTH, 2, batch_first=True, dtype=torch.float64, **options).eval()


@pytest.mark.sampled
@each_timed
@pytest.mark.parametrize("conv_width", [0, 3])
def test_a_model_reads_times_alike_whole_and_step_by_step(name, conv_width):
    stack, x, dt = model(name, conv_width=conv_width), signal(2, 6, 3), gaps(2, 6)
    y, last = stack(x, dt=dt)
    assert not torch.allclose(y, stack(x)[0])
    state, ys = stack.init_state(2), []
    for t in range(6):
        y_t, state = stack.step(x[:, t], state, dt=dt[:, t])
        ys.append(y_t)
    assert_close(torch.stack(ys, 1), y)
    for got, expected in zip(leaves(state), leaves(last), strict=True):
        assert_close(got, expected)


def test_layers_that_count_steps_stand_beside_those_that_know_time():
    both, x, dt = model("lru,gru"), signal(2, 6, 3), gaps(2, 6)
    y, _ = both(x, dt=dt)
    z = both.blocks[0](both.encoder(x), dt=dt)[0]
    assert_close(both.head(both.blocks[1](z)[0]), y)
    y_t, _ = both.step(x[:, 0], both.init_state(2), dt=dt[:, 0])
    assert_close(y_t, y[:, 0])


def test_documents_of_a_pair_have_their_own_times():
    pairs = model(documents=2, pool="mean")
    x, dt = signal(3, 2, 6, 3), gaps(3, 2, 6)
    y, _ = pairs(x, dt=dt)
    alone, _ = pairs(x[1:2], dt=dt[1:2])
    assert_close(alone, y[1:2])
    dt[1, 1] *= 2
    changed = pairs(x, dt=dt)[0]
    assert_close(changed[[0, 2]], y[[0, 2]])
    assert not torch.allclose(changed[1], y[1])


@pytest.mark.parametrize("bidirectional", [False, True])
def test_padding_behind_a_sequence_has_any_times(bidirectional):
    stack = model("s5", bidirectional=bidirectional, pool="mean")  # a first time matters to it
    x, dt = signal(2, 6, 3), gaps(2, 6)
    lengths = torch.tensor([6, 4])
    y, _ = stack(x, lengths=lengths, dt=dt)
    dt[1, 4:] = 7.0
    assert_close(stack(x, lengths=lengths, dt=dt)[0], y)
    assert_close(stack(x[1:, :4], dt=dt[1:, :4])[0], y[1:])


@each_timed
def test_reading_backward_the_time_is_that_until_the_next_step(name):
    torch.manual_seed(0)
    both = Bidirectional.build(name, WIDTH, dtype=torch.float64, merge="concat").eval()
    x, dt = signal(2, 6, WIDTH), gaps(2, 6)
    y, _ = both(x, dt=dt)
    assert_close(y[..., :WIDTH], both.ahead(x, dt=dt)[0])
    first = torch.ones(2, 1, dtype=torch.float64)
    between = torch.cat([first, dt.flip(1)[:, :-1]], 1)
    assert_close(y[..., WIDTH:], both.back(x.flip(1), dt=between)[0].flip(1))


def test_both_directions_of_sequences_in_one_row_have_their_own_times():
    torch.manual_seed(0)
    both = Bidirectional.build("s5", WIDTH, dtype=torch.float64)
    x, dt = signal(1, 7, WIDTH), gaps(1, 7)
    reset = torch.tensor([[False, False, False, True, False, False, False]])
    y, _ = both(x, reset=reset, dt=dt)
    alone = [both(z, dt=d)[0] for z, d in zip(x.split([3, 4], 1), dt.split([3, 4], 1), strict=True)]
    assert_close(y, torch.cat(alone, 1))
    lengths = torch.tensor([5])
    y, _ = both(x, dt=dt, lengths=lengths)
    assert_close(y[:, :5], both(x[:, :5], dt=dt[:, :5])[0])


@pytest.mark.sampled
@each_timed
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("started", [False, True])
def test_packed_sequences_have_their_own_times(name, bidirectional, started):
    layers = rnn(name, bidirectional=bidirectional)
    lengths, x, dt = [3, 6, 1], signal(3, 6, 3), gaps(3, 6)
    hx = layers(x)[1] if started else None
    packed, times = (
        pack_padded_sequence(v, lengths, batch_first=True, enforce_sorted=False) for v in (x, dt)
    )
    y, h_n = layers(packed, hx, dt=times)
    y, _ = pad_packed_sequence(y, batch_first=True)
    for i, length in enumerate(lengths):
        row = (
            None if hx is None else torch.utils._pytree.tree_map(lambda h, i=i: h[:, i : i + 1], hx)
        )
        alone, last = layers(x[i : i + 1, :length], row, dt=dt[i : i + 1, :length])
        assert_close(y[i, :length], alone[0])
        for got, expected in zip(leaves(h_n), leaves(last), strict=True):
            assert_close(got[:, i : i + 1], expected)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_times_have_the_axes_of_the_input(bidirectional):
    layers, x, dt = rnn(bidirectional=bidirectional), signal(2, 6, 3), gaps(2, 6)
    y, _ = layers(x, dt=dt)
    assert not torch.allclose(y, layers(x)[0])
    assert_close(layers(x[1], dt=dt[1])[0], y[1])
    layers.batch_first = False
    assert_close(layers(x.transpose(0, 1), dt=dt.t())[0], y.transpose(0, 1))
    assert_close(layers(x[1], dt=dt[1])[0], y[1])
    ones = torch.ones_like(dt)
    assert_close(layers(x.transpose(0, 1), dt=ones.t())[0], layers(x.transpose(0, 1))[0])


def test_an_rnn_of_several_kinds_hands_times_to_those_that_know_them():
    layers, x, dt = rnn("lru,gru"), signal(2, 6, 3), gaps(2, 6)
    y, _ = layers(x, dt=dt)
    first, second = layers.cells
    u = first.mixer(first.in_proj(x), dt=dt)[0]
    z = first.glu(torch.nn.functional.gelu(u))
    assert_close(y, second.mixer(z)[0])


@each_timed
def test_a_stream_of_any_chunks_is_one_call(name):
    stack, x, dt = model(name), signal(1, 9, 3)[0], gaps(9)
    with torch.no_grad():
        whole = stack(x[None], dt=dt[None])[0][0]
    session = Session(stack, chunk=2)
    parts = [session.feed(x[0], dt[0])[None], session.feed(x[1:6], dt[1:6])]
    parts.append(session.feed(x[6:], [float(d) for d in dt[6:]]))
    assert_close(torch.cat(parts), whole)


@pytest.mark.parametrize("capacity", [None, 4])
def test_streams_have_their_own_times(capacity):
    stack, x, dt = model("s5"), signal(3, 5, 3), gaps(3, 5)
    with torch.no_grad():
        timed, counted = stack(x, dt=dt)[0], stack(x)[0]
    streams = Sessions(stack, capacity=capacity)
    for name in range(3):
        streams.join(name)
    found = [streams.feed(dict(enumerate(x[:, :2])), {0: dt[0, :2], 1: dt[1, :2]})]
    found.append(streams.feed(dict(enumerate(x[:, 2:])), dt={0: dt[0, 2:], 1: dt[1, 2:]}))
    for name, expected in enumerate([timed[0], timed[1], counted[2]]):
        assert_close(torch.cat([y[name] for y in found]), expected)


def test_the_list_marks_layers_that_know_time(capsys):
    list_main(["mixers"])
    lines = capsys.readouterr().out.splitlines()
    marked = {line.split()[0] for line in lines if line.endswith("[dt]")}
    assert marked == set(TIMED)
    assert {"lru", "s4d", "s5", "mamba"} <= marked


@pytest.mark.unchecked
def test_what_is_refused():
    x, dt = signal(2, 6, 3), gaps(2, 6)
    packed = pack_padded_sequence(x, [6, 4], batch_first=True)
    other = pack_padded_sequence(dt, [6, 5], batch_first=True)
    turned = PackedSequence(dt[:, :5].flatten(), packed.batch_sizes, torch.tensor([1, 0]))
    both = Bidirectional(GRU(3, dtype=torch.float64))
    session, streams = Session(model()), Sessions(model())
    streams.join("a")
    counting = r"dt must be None, for no layer of this model knows time, got a value\. `linrnn list"
    attempts = [
        (ArgumentError, rf"^SequenceModel\.forward: {counting}", lambda: model("gru")(x, dt=dt)),
        (
            ArgumentError,
            rf"^SequenceModel\.step: {counting}",
            lambda: model("gru").step(x[:, 0], model("gru").init_state(2), dt=dt[:, 0]),
        ),
        (ArgumentError, rf"^RNN: {counting}", lambda: rnn("gru")(x, dt=dt)),
        (
            ArgumentError,
            rf"^Session\.feed: {counting}",
            lambda: Session(model("gru")).feed(x[0], 1),
        ),
        (ArgumentError, r"^Bidirectional\.forward: dt must be None", lambda: both(x, dt=dt)),
        (ArgumentError, r"^Bidirectional.step", lambda: both.step(x[:, 0], both.init_state(2))),
        (ShapeError, r"^LRU\.forward: dt must have", lambda: model()(x, dt=dt[:, 1:])),
        (ShapeError, r"^RNN: dt must have shape", lambda: rnn()(x, dt=dt.t())),
        (DTypeError, r"^RNN: dt must be real floating point", lambda: rnn()(x, dt=dt.long())),
        (DTypeError, r"^RNN: dt must be a tensor", lambda: rnn()(x, dt=other)),
        (
            ArgumentError,
            r"^RNN: dt must be a PackedSequence.* got Tensor",
            lambda: rnn()(packed, dt=dt),
        ),
        (ArgumentError, r"with batch_sizes \[2, 2, 2, 2, 2, 1\]", lambda: rnn()(packed, dt=other)),
        (ArgumentError, r"in the same order", lambda: rnn()(packed, dt=turned)),
        (ShapeError, r"^Session\.feed: dt must have shape", lambda: session.feed(x[0], dt[0, 1:])),
        (
            ShapeError,
            r"^Session\.feed: dt must have shape \(\)",
            lambda: session.feed(x[0, 0], dt[0]),
        ),
        (DTypeError, r"^Session\.feed: dt must be numbers", lambda: session.feed(x[0, 0], "soon")),
        (DTypeError, r"^Session\.feed: dt must be real", lambda: session.feed(x[0, 0], 1j)),
        (
            ArgumentError,
            r"dt must be at least 0 and at most 1e\+18, got -1 at \(0,\)",
            lambda: session.feed(x[0, 0], -1),
        ),
        (
            ArgumentError,
            r"name must be of a stream",
            lambda: streams.feed({"a": x[0, 0]}, {"b": 1}),
        ),
        (
            ArgumentError,
            r"^LRU\.forward: dt must be None for form='conv', which needs all steps alike, got a "
            r"tensor\. Use form='scan'\.",
            lambda: LRU(3, form="conv")(x.float(), dt=dt),
        ),
        (
            ArgumentError,
            r"^GRU\.step: dt must be None, for this layer counts steps and knows no time",
            lambda: GRU(3).step(x[:, 0], GRU(3).init_state(2), dt=dt[:, 0]),
        ),
        (
            ArgumentError,
            r"^CoRNN\.forward: dt must leave outputs and states finite, got times up to 1e\+06 in",
            lambda: CoRNN(3)(x.float(), dt=torch.full((2, x.shape[1]), 1e6)),
        ),
        (
            ArgumentError,
            r"^S5\.forward: dt must be at least 0 and at most 1e\+18, got -0\.25 at \(0",
            lambda: S5(4)(signal(1, 1, 4), dt=torch.tensor([[-0.25]])),
        ),
    ]
    for error, words, attempt in attempts:
        with pytest.raises(error, match=words):
            attempt()
    assert session.steps == 0


def test_a_gap_that_is_too_long_names_its_row_and_what_was_no_number_passes():
    torch.manual_seed(0)
    layer, x, dt = CoRNN(3), torch.randn(3, 40, 3), torch.ones(3, 40)
    dt[2] = 1e6
    with pytest.raises(ArgumentError, match=r"up to 1e\+06 in row 2"):
        layer(x, dt=dt)
    x[2, 5] = float("nan")  # a row that was no number before is nobody else's matter
    y, _ = layer(x, dt=dt)
    assert y[:2].isfinite().all()
    assert not y[2].isfinite().all()
