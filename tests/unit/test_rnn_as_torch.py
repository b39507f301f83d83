"""RNN where torch.nn.GRU and torch.nn.LSTM stood: their numbers, names, states and errors."""

import copy
import io
import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.testing import assert_close

from linrnn import RNN, mixers
from linrnn.errors import ArgumentError, LinrnnError, ShapeError
from linrnn.rnn._hidden import Hidden
from linrnn.state import leaves, map_state

F64 = {"dtype": torch.float64}
KINDS = {"gru": nn.GRU, "lstm": nn.LSTM}
each_kind = pytest.mark.parametrize("name", KINDS)
each_mixer = pytest.mark.parametrize("name", mixers.names())
GROWING = {n for n in mixers.names() if "constant_memory" in mixers.load(n).declared}
STACKS = [
    dict(zip(("num_layers", "bias", "batch_first", "bidirectional"), values, strict=True))
    for values in itertools.product((1, 2), (True, False), (True, False), (True, False))
]


def repackage_hidden(h):
    """As PyTorch's example of a language model has it."""
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage_hidden(v) for v in h)


def draw(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **F64)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *itertools.product(KINDS, STACKS),
        *(("lstm", {"proj_size": 2, **options}) for options in STACKS),
    ],
    ids=str,
)
def test_numbers_names_and_gradients_are_those_of_torch(name, options):
    torch.manual_seed(0)
    theirs = KINDS[name](3, 5, **options, **F64)
    ours = RNN.from_torch(theirs)
    assert [*ours.state_dict()] == [*theirs.state_dict()]
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    for mine, other in zip(ours.all_weights, theirs.all_weights, strict=True):
        assert all(map(torch.equal, mine, other))
    packed = pack_sequence([draw(n, 3, seed=n) for n in (4, 7, 2, 7)], enforce_sorted=False)
    start = repackage_hidden(theirs(packed)[1])
    for x, hx in ((packed, None), (packed, start), (draw(4, 4, 3), start), (draw(6, 3), None)):
        (y, h), (expected, h_expected) = ours(x, hx), theirs(x, hx)
        if isinstance(y, PackedSequence):
            y, expected = y.data, expected.data
        assert type(h) is type(h_expected)
        assert_close((y, h), (expected, h_expected))
        sums = [
            sum(p.sin().sum() for p in leaves((y, h))) for y, h in ((y, h), (expected, h_expected))
        ]
        got = torch.autograd.grad(sums[0], [*ours.parameters()])
        assert_close(got, torch.autograd.grad(sums[1], [*theirs.parameters()]))
    expected_size = theirs.get_expected_hidden_size(packed.data, packed.batch_sizes)
    assert ours.get_expected_hidden_size(packed.data, packed.batch_sizes) == expected_size
    other = KINDS[name](3, 5, **options, **F64)
    other.load_state_dict(ours.state_dict())
    assert all(map(torch.equal, other.parameters(), theirs.parameters()))


@each_kind
def test_parameters_follow_the_module_wherever_it_goes(name):
    net, x = RNN(name, 3, 5, 2, bidirectional=True), draw(6, 2, 3).float()
    y = net(x)[0]
    buffer = io.BytesIO()
    torch.save(net, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(net), torch.load(buffer, weights_only=False)):
        assert torch.equal(other(x)[0], y)
        with torch.no_grad():
            other.weight_hh_l1_reverse.zero_()
        assert not torch.equal(other(x)[0], y)
        assert torch.equal(net(x)[0], y)
    assert net.double()(x.double())[0].dtype == torch.float64
    net.float()
    empty = RNN(name, 3, 5, 2, bidirectional=True, device="meta").to_empty(device="cpu")
    empty.load_state_dict(net.state_dict(), assign=True)
    assert torch.equal(empty(x)[0], y)
    weights = {n: torch.zeros_like(p) for n, p in net.named_parameters()}
    assert not torch.func.functional_call(net, weights, (x,))[0].any()
    net.weight_ih_l0 = nn.Parameter(torch.zeros_like(net.weight_ih_l0))
    net.bias_ih_l0 = nn.Parameter(torch.zeros_like(net.bias_ih_l0))
    assert not torch.equal(net(x)[0], y)
    before = [p.clone() for p in net.parameters()]
    net.reset_parameters()
    assert not any(map(torch.equal, before, net.parameters()))
    assert all(p.abs().max() <= 5**-0.5 for p in net.parameters())


@pytest.mark.sampled
@each_mixer
def test_no_steps_are_no_outputs_and_the_state_that_came(name):
    net = RNN(name, 3, 4, 2, bidirectional=True, **F64).eval()
    y, hx = net(draw(0, 2, 3))
    assert y.shape == (0, 2, 8)
    assert [h.shape for h in leaves(hx)] == [h.shape for h in leaves(net.init_state(2))]
    again, _ = net(draw(2, 2, 3), hx)
    assert again.shape == (2, 2, 8)


@pytest.mark.sampled
@each_mixer
@pytest.mark.parametrize("bidirectional", [False, True])
def test_what_programs_do_with_a_state_works_with_every_mixer(name, bidirectional):
    torch.manual_seed(0)
    net = RNN(name, 3, 4, 1 if bidirectional else 2, bidirectional=bidirectional, **F64).eval()
    x, then = draw(5, 3, 3), draw(4, 3, 3, seed=2)
    y, hx = net(x)
    h_n = hx[0] if isinstance(hx, tuple) else hx
    assert h_n.shape == (2, 3, 4) == net.get_expected_hidden_size(x, None)
    assert h_n.dtype == torch.float64
    carried = repackage_hidden(hx)
    assert not any(h.requires_grad for h in leaves(carried))
    again, _ = net(then, carried)
    assert_close(again, net(then, hx)[0])
    chosen = torch.tensor([2, 0])  # as a beam search goes on with
    picked, _ = net(then[:, chosen], map_state(lambda h: h.index_select(1, chosen), carried))
    assert_close(picked, again[:, chosen])
    with torch.no_grad():
        for one, other in zip(leaves(net.init_state(3)), leaves(hx), strict=True):
            assert one.shape == other.shape or name in GROWING
        assert_close(net(x, net.init_state(3))[0], y)
    if name == "mingru":  # whose zero is a state, and not the one it begins with
        return
    zeros = torch.zeros(2, 3, 4, **F64)
    given = zeros if net.hidden.form == "vector" else (zeros, zeros)
    if name != "minlstm":
        assert_close(net(x, given)[0], y)
    if net.hidden.form == "rest":
        last = torch.stack([y[-1, :, :4], y[0, :, 4:]]) if bidirectional else y[-1]
        assert_close(h_n if bidirectional else h_n[-1], last)
        last = net.cells[-1].mixer.init_state(3)
        assert [h.ndim for h in leaves(net.state(hx)[-1])] == [h.ndim for h in leaves(last)]


def test_counters_are_exact_beyond_what_float32_counts():
    spec = Hidden([mixers.build("retnet", 8)], 8, 8, mixed=False)
    state = mixers.build("retnet", 8).init_state(2)
    state["position"] += torch.tensor([2**40 + 3, 2**24 + 1])
    hx = spec.join([torch.zeros(2, 8)], [state])
    assert hx[1].dtype == torch.float32
    assert torch.equal(spec.split(hx)[0]["position"], state["position"])


@pytest.mark.unchecked
def test_numbers_that_are_no_state_are_refused():
    net, x = RNN("mamba", 3, 4), torch.zeros(5, 2, 3)
    for wrong in (torch.ones(1, 2, 4), (torch.ones(1, 2, 4), torch.zeros(1, 2, 4))):
        with pytest.raises(
            ArgumentError, match=r"or None or zeros for a new start, since its state"
        ):
            net(x, wrong)
    with pytest.raises(
        ShapeError, match=r"hx\[0\] must have shape \(layers=1, batch=2, output_siz"
    ):
        net(x, (torch.zeros(1, 2, 5), net(x)[1][1]))
    with pytest.raises(ArgumentError, match="must be a pair of tensors for a size of c_n"):
        RNN("gru", 3, 4).get_expected_cell_size(x, None)
    assert net.get_expected_cell_size(x, None) == net(x)[1][1].shape
    with pytest.raises(ArgumentError, match=r"must be a torch.nn.GRU or torch.nn.LSTM, got RNN"):
        RNN.from_torch(nn.RNN(3, 4))


WRONG = {
    "sizes of the wrong type": lambda make: make(3, 4.0),
    "no channels": lambda make: make(0, 4),
    "no layers": lambda make: make(3, 4, 0),
    "dropout": lambda make: make(3, 4, 2, dropout=2.0),
    "dropout that is a text": lambda make: make(3, 4, 2, dropout="0.1"),
    "dropout that is True": lambda make: make(3, 4, 2, dropout=True),
    "dropout that is None": lambda make: make(3, 4, 2, dropout=None),
    "dropout that is a tensor": lambda make: make(3, 4, 2, dropout=torch.tensor(0.1)),
    "dropout that is no number": lambda make: make(3, 4, 2, dropout=float("nan")),
    "layers that are a text": lambda make: make(3, 4, "2"),
    "channels of the input": lambda make: make(3, 4)(torch.zeros(5, 2, 4)),
    "axes of the input": lambda make: make(3, 4)(torch.zeros(5, 2, 1, 3)),
    "dtype of the input": lambda make: make(3, 4)(torch.zeros(5, 2, 3, **F64)),
    "rows of the state": lambda make: make(3, 4)(torch.zeros(5, 2, 3), torch.zeros(1, 3, 4)),
    "layers of the state": lambda make: make(3, 4)(torch.zeros(5, 2, 3), torch.zeros(2, 2, 4)),
    "device of the input": lambda make: make(3, 4)(torch.zeros(5, 2, 3, device="meta")),
    "device of the state": lambda make: make(3, 4)(
        torch.zeros(5, 2, 3), torch.zeros(1, 2, 4, device="meta")
    ),
    "axes of the state": lambda make: make(3, 4)(torch.zeros(5, 2, 3), torch.zeros(1, 4)),
    "a state with a batch for a sequence without": lambda make: make(3, 4)(
        torch.zeros(5, 3), torch.zeros(1, 2, 4)
    ),
}


@pytest.mark.unchecked
@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("name", ["gru", "lru", "mingru", "attention"])
def test_what_catches_an_error_of_torch_catches_ours(name, call):
    with pytest.raises((ValueError, TypeError, RuntimeError)) as theirs:
        call(nn.GRU)
    with pytest.raises(theirs.type) as ours:
        call(lambda *sizes, **options: RNN(name, *sizes, **options))
    assert isinstance(ours.value, LinrnnError)
