"""RNN: the interface of torch.nn.GRU around every mixer."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
)
from torch.testing import assert_close

from linrnn import RNN, last_output, mixers
from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    DTypeError,
    ShapeError,
    UnknownNameError,
)
from linrnn.state import leaves, map_state

LENGTHS = (3, 7, 1, 7, 4)
each_mixer = pytest.mark.parametrize("name", mixers.names())
GROWING = {n for n in mixers.names() if "constant_memory" in mixers.load(n).declared}


def rnn(mixer="lru", *args, **options):
    torch.manual_seed(0)
    sizes = args or (3, 4)
    return RNN(mixer, *sizes, **{"dtype": torch.float64, **options}).eval()


def sequences(seed=1, width=3):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(n, width, dtype=torch.float64, generator=generator, requires_grad=True)
        for n in LENGTHS
    ]


def same(a, b):
    assert len(leaves(a)) == len(leaves(b))
    for got, expected in zip(leaves(a), leaves(b), strict=True):
        assert_close(got, expected)


OPTIONS = [
    dict(zip(("num_layers", "bias", "batch_first", "bidirectional"), values, strict=True))
    for values in itertools.product((1, 2), (True, False), (True, False), (True, False))
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("mixer", ["lru", "gru"])
def test_shapes_are_those_of_torch_gru(mixer, options):
    ours = rnn(mixer, **options, dropout=0.1 if options["num_layers"] > 1 else 0.0)
    theirs = nn.GRU(3, 4, **options, dtype=torch.float64)
    x = torch.randn(5, 7, 3, dtype=torch.float64)
    packed = pack_sequence(sequences(), enforce_sorted=False)
    for given in (x, x[0], packed):
        (y, hx), (expected, h_expected) = ours(given), theirs(given)
        assert type(y) is type(expected)
        h = hx[0] if isinstance(hx, tuple) else hx
        assert h.shape == h_expected.shape
        assert h.dtype == h_expected.dtype
        again, _ = ours(given, hx)
        if isinstance(y, PackedSequence):
            assert y.data.shape == again.data.shape == expected.data.shape
            for i in (1, 2, 3):
                assert torch.equal(y[i], expected[i])
                assert torch.equal(again[i], expected[i])
        else:
            assert y.shape == again.shape == expected.shape


@pytest.mark.sampled
@each_mixer
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("given", ["nothing", "hx"])
def test_packed_sequences_give_what_each_gives_alone(name, bidirectional, given):
    if given == "hx" and name in GROWING:
        pytest.skip("its state has the length of the sequence")
    net = rnn(name, bidirectional=bidirectional, num_layers=1 if bidirectional else 2)
    xs = sequences()
    packed = pack_sequence(xs, enforce_sorted=False)
    hx = None
    if given == "hx":
        hx = net(pack_sequence(sequences(seed=2), enforce_sorted=False))[1]
        hx = map_state(lambda h: h.detach().requires_grad_(h.requires_grad), hx)
    y, h_n = net(packed, hx)
    padded, lengths = pad_packed_sequence(y)
    assert tuple(lengths.tolist()) == LENGTHS
    sums = 0
    for i, x in enumerate(xs):
        start = None if hx is None else map_state(lambda h, i=i: h[:, i], hx)
        alone, last = net(x, start)
        assert_close(padded[: len(x), i], alone)
        sums = sums + alone.sin().sum()
        if name not in GROWING:
            same(map_state(lambda h, i=i: h[:, i], h_n), last)
    sources = [
        *xs,
        *(p for p in net.parameters() if p.requires_grad),
        *(h for h in leaves(() if hx is None else hx) if h.requires_grad),
    ]
    got, expected = (
        torch.autograd.grad(total, sources, allow_unused=True)
        for total in (y.data.sin().sum(), sums)
    )
    for one, other in zip(got, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert_close(one, other)


@pytest.mark.sampled
@each_mixer
def test_a_sequence_in_two_pieces_and_without_a_batch(name):
    net = rnn(name, num_layers=2, batch_first=True, bias=False)
    x = torch.randn(2, 9, 3, dtype=torch.float64)
    y, h_n = net(x)
    first, carried = net(x[:, :4])
    second, last = net(x[:, 4:], carried)
    assert_close(torch.cat([first, second], 1), y)
    same(last, h_n)
    alone, h_alone = net(x[1])
    assert_close(alone, y[1])
    same(h_alone, map_state(lambda h: h[:, 1], h_n))
    second, _ = net(x[1, 4:], map_state(lambda h: h[:, 1], carried))
    assert_close(second, y[1, 4:])


@pytest.mark.parametrize("mixer", ["lru", "gru"])
def test_order_of_a_packed_batch(mixer):
    net = rnn(mixer, bidirectional=True)
    xs = sorted(sequences(), key=len, reverse=True)
    padded = nn.utils.rnn.pad_sequence(xs)
    sizes = torch.tensor([len(x) for x in xs])
    sorted_ = pack_padded_sequence(padded, sizes, enforce_sorted=True)
    assert sorted_.sorted_indices is None
    y, h = net(sorted_)
    assert y.sorted_indices is None
    order = torch.tensor([3, 0, 4, 1, 2])
    shuffled = pack_padded_sequence(padded[:, order], sizes[order], enforce_sorted=False)
    z, g = net(shuffled)
    same(g, map_state(lambda h: h[:, order], h))
    assert_close(net.last_output(z), net.last_output(y)[order])
    same(net(shuffled, g)[1], map_state(lambda h: h[:, order], net(sorted_, h)[1]))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_last_output_of_padded_packed_and_single(bidirectional):
    net, xs = rnn("gru", bidirectional=bidirectional), sequences()
    y, h = net(pack_sequence(xs, enforce_sorted=False))
    expected = torch.cat([h[-2], h[-1]], -1) if bidirectional else h[-1]
    assert_close(net.last_output(y), expected)
    padded, lengths = pad_packed_sequence(y)
    assert_close(net.last_output(padded, lengths), expected)
    assert_close(
        last_output(padded.transpose(0, 1), lengths, batch_first=True, bidirectional=bidirectional),
        expected,
    )
    assert_close(net.last_output(net(xs[0])[0]), expected[0])


def test_structure_is_what_the_docstring_says():
    net = rnn("lru", 3, 4, proj_size=2, num_layers=2, bidirectional=True, batch_first=True)
    x = z = torch.randn(2, 5, 3, dtype=torch.float64)

    def run(cell, z):
        v = cell.glu(nn.functional.gelu(cell.mixer(cell.in_proj(z))[0]))
        return cell.out_proj(v)

    for ahead, back in (net.cells[:2], net.cells[2:]):
        z = torch.cat([run(ahead, z), run(back, z.flip(1)).flip(1)], -1)
    y, h_n = net(x)
    assert_close(y, z)
    assert y.shape == (2, 5, 4)
    assert [h.shape for h in h_n] == [(4, 2, 2), (4, 2, 8)]
    assert_close(torch.cat([h_n[0][-2], h_n[0][-1]], -1), net.last_output(y))
    assert isinstance(net.cells[2].in_proj, nn.Identity)  # 2 * 2 channels in, 4 wanted


def test_a_gate_stands_after_linear_mixers_unless_told_otherwise():
    assert rnn("lru").cells[0].glu is not None
    assert rnn("lru", glu=False).cells[0].glu is None
    assert rnn("gru").cells[0].glu is None
    assert rnn("gru", glu=True).cells[0].glu is not None


def test_bias_reaches_the_maps_and_the_mixer():
    net = rnn("gru", proj_size=2, bias=False)
    assert [n for n, _ in net.named_parameters() if "bias" in n] == []
    assert rnn("gru", bias=False, mixer_options={"bias": True}).cells[0].mixer.bias
    assert rnn("gru").cells[0].mixer.bias
    assert rnn("lru", mixer_options={"d_state": 9})(_input())[1][1].shape == (1, 5, 18)


def _input(*, time=7, batch=5):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(time, batch, 3, dtype=torch.float64, generator=generator)


def test_dropout_stands_between_layers_and_only_in_training():
    x = _input()
    for layers in (1, 2):
        net = RNN("gru", 3, 4, layers, dropout=1.0 if layers > 1 else 0.0, dtype=torch.float64)
        (a, h), (b, g) = net.train()(x), net.train()(2 * x)
        assert torch.equal(a, b) == (layers == 2)  # with everything dropped, x is not seen
        assert a.any()  # not after the last layer
        assert not torch.equal(h[0], g[0])
        assert not torch.equal(net.eval()(x)[0], net(2 * x)[0])
    with pytest.warns(UserWarning, match=r"dropout=0.5 does nothing with num_layers=1"):
        RNN("gru", 3, 4, dropout=0.5)


def test_state_dict_round_trip_and_the_rest_of_the_module():
    net, x = rnn(num_layers=2, bidirectional=True), _input()
    other = RNN("lru", 3, 4, 2, bidirectional=True, dtype=torch.float64)
    assert not torch.equal(other(x)[0], net(x)[0])
    other.load_state_dict(net.state_dict())
    assert torch.equal(other(x)[0], net(x)[0])
    assert net.flatten_parameters() is None
    assert repr(net).startswith("RNN(\n  'lru', 3, 4, num_layers=2, bidirectional=True\n")
    assert net.float()(x.float())[0].dtype == torch.float32


def test_without_steps_and_without_rows():
    net = rnn()
    y, h_n = net(_input(time=0))
    assert y.shape == (0, 5, 4)
    assert not any(h.any() for h in h_n)
    assert [h.shape for h in h_n] == [(1, 5, 4), (1, 5, 8)]
    assert net(_input(batch=0))[0].shape == (7, 0, 4)
    carried = net(_input())[1]
    same(net(_input(time=0), carried)[1], carried)


@pytest.mark.parametrize("mixer", ["lru", "gru"])
def test_what_stands_in_the_padding_cannot_reach_a_sequence(mixer):
    """A packed batch holds no padding; what layers make of ours must stay out, NaN included."""
    net = rnn(mixer, num_layers=2)
    xs = [x.detach().clone() for x in sequences()]
    xs[1][:] = float("nan")
    y, h_n = net(pack_sequence(xs, enforce_sorted=False))
    padded, _ = pad_packed_sequence(y)
    for i, x in enumerate(xs):
        assert bool(padded[: len(x), i].isfinite().all()) == (i != 1)
        assert all(bool(h[:, i].isfinite().all()) == (i != 1) for h in leaves(h_n))


@pytest.mark.unchecked
@pytest.mark.parametrize("mixer", ["lru", "gru"])
def test_the_padded_path_compiles(mixer):
    net, x = rnn(mixer, bidirectional=True).float(), _input(time=3).float()
    h_n = net(x)[1]
    torch._dynamo.reset()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    again, last = compiled(x, h_n)
    assert_close(again, net(x, h_n)[0])
    same(last, net(x, h_n)[1])


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mixer": "gur"}, UnknownNameError, "no mixer named 'gur'. Did you mean 'gru'"),
        ({"mixer_options": {"d_stat": 1}}, UnknownNameError, "Did you mean 'd_state'"),
        ({"hidden_size": 0}, ArgumentError, "hidden_size must be an integer of at least 1, got 0"),
        ({"num_layers": 0}, ArgumentError, "num_layers must be an integer of at least 1, got 0"),
        ({"mixer": ["gru", "lru"]}, ArgumentError, "num_layers must be at least 2, the length"),
        ({"dropout": 1.5}, ArgumentError, r"dropout must be in \[0, 1\], got 1.5"),
        ({"proj_size": 4}, ArgumentError, r"proj_size must be in 0..3, below hidden_size, got 4"),
        ({"proj_size": "2"}, ArgumentTypeError, r"proj_size must be in 0..3, .* got '2'"),
        ({"proj_size": True}, ArgumentTypeError, r"proj_size must be in 0..3, .* got True"),
    ],
)
def test_constructor_words_its_errors(options, error, message):
    with pytest.raises(error, match=message):
        RNN(**{"mixer": "lru", "input_size": 3, "hidden_size": 4, **options})


HX = [
    (lambda h: h[:, :3], ShapeError, r"hx must have shape \(layers=1, batch=5, d_state=4\), got"),
    (lambda h: torch.cat([h, h]), ShapeError, r"\(layers=1, .*\), got \(2, 5, 4\)"),
    (lambda h: h.to(torch.complex128), DTypeError, "hx must be torch.float64, got torch.complex"),
    (lambda h: h.to("meta"), DeviceError, "hx must be on cpu like x, got meta"),
    (
        lambda h: (h, h),
        DTypeError,
        r"hx must be a tensor of shape \(layers=1, .*\), got a tuple of 2",
    ),
    (lambda h: "h", DTypeError, "got str"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("change", "error", "message"), HX)
def test_a_wrong_hx_is_one_clear_error(change, error, message, packed):
    net = rnn("gru")
    x = pack_sequence(sequences(), enforce_sorted=False) if packed else _input()
    h_n = net(x)[1]
    with pytest.raises(error, match=message):
        net(x, change(h_n))


@pytest.mark.unchecked
def test_a_wrong_hx_of_another_mixer_and_without_a_batch():
    with pytest.raises(DTypeError, match=r"hx must be a tensor of shape .* got a tuple of 2"):
        rnn("gru")(_input(), rnn("lstm")(_input())[1])
    with pytest.raises(
        DTypeError, match=r"hx must be a pair \(h, c\), got a tensor of shape \(1, 5, 4\)"
    ):
        rnn("lstm")(_input(), rnn("gru")(_input())[1])
    with pytest.raises(
        ShapeError, match=r"or zeros of shape \(1, 5, 4\), got a tensor of shape \(1, 2, 4\)"
    ):
        rnn("lru")(_input(), torch.zeros(1, 2, 4))
    with pytest.raises(DeviceError, match="hx must be on cpu like x, got meta"):
        rnn("lru")(_input(), torch.zeros(1, 5, 4, device="meta"))
    with pytest.raises(ArgumentError, match=r"not hidden_size=4 numbers a row but 8, got others"):
        rnn("lru")(_input(), rnn("gru")(_input())[1])
    with pytest.raises(
        ShapeError,
        match=r"hx\[1\] must have shape \(layers=1, batch=5, numbers=8\), got \(1, 5, 9\)",
    ):
        rnn("lru")(_input(), (torch.zeros(1, 5, 4), torch.zeros(1, 5, 9)))
    with pytest.raises(
        ShapeError, match=r"hx must have shape \(layers=1, d_state=4\), got \(1, 5, 4\)"
    ):
        rnn("gru")(_input()[:, 0], rnn("gru")(_input())[1])


@pytest.mark.unchecked
def test_a_wrong_input_is_one_clear_error():
    net, x = rnn("gru"), _input()
    with pytest.raises(ShapeError, match=r"shape \(time, batch, input_size=3\), got \(7, 5, 2\)"):
        net(x[..., :2])
    with pytest.raises(ShapeError, match=r"shape \(time, input_size=3\), got \(7, 2\)"):
        net(x[:, 0, :2])
    with pytest.raises(ShapeError, match=r"\(time, batch, input_size=3\), got \(1, 7, 5, 3\)"):
        net(x[None])
    with pytest.raises(DTypeError, match=r"floating-point tensor, got torch.int64"):
        net(x.long())
    with pytest.raises(DTypeError, match="floating-point tensor, got list"):
        net([x])
    with pytest.raises(
        DTypeError, match=r"must be torch.float64 like the parameters, got torch.fl"
    ):
        net(x.float())


@pytest.mark.unchecked
def test_a_damaged_packed_batch_is_one_clear_error():
    net, data = rnn("gru"), _input(batch=1)[:, 0]
    for sizes in ([3, 5], [8, 0], [9, -1], [3, 3], []):
        with pytest.raises(ArgumentError, match="batch_sizes must be positive, never grow and sum"):
            net(PackedSequence(data, torch.tensor(sizes).long()))
    empty = PackedSequence(data, torch.tensor([4, 3]), torch.arange(5), torch.arange(5))
    for call in (net, net.last_output):
        with pytest.raises(ArgumentError, match="5 sequences of which 4 have a first one"):
            call(empty)


@pytest.mark.unchecked
def test_wrong_lengths_of_last_output():
    net = rnn("gru")
    y, _ = net(_input())
    for wrong in (0, -1, 8):
        with pytest.raises(ArgumentError, match=f"lengths must be in 1..7, .* got {wrong}"):
            net.last_output(y, torch.tensor([7, 7, wrong, 1, 1]))
    with pytest.raises(ShapeError, match=r"\(batch=5\), got \(2,\)"):
        net.last_output(y, torch.tensor([1, 2]))
    with pytest.raises(ShapeError, match="output must have a step"):
        net.last_output(y[:0])
    packed, _ = net(pack_sequence(sequences(), enforce_sorted=False))
    for output in (packed, y[:, 0]):
        with pytest.raises(ArgumentError, match="lengths must be None"):
            net.last_output(output, torch.tensor([1]))


@pytest.mark.unchecked
@pytest.mark.parametrize("name", sorted(GROWING))
def test_a_growing_state_cannot_continue_sequences_of_several_lengths(name):
    net = rnn(name)
    packed = pack_sequence(sequences(), enforce_sorted=False)
    with pytest.raises(ArgumentError, match="hx must be None for packed sequences of several"):
        net(packed, net(_input())[1])
