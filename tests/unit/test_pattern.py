"""A mixer is a name, a class, an instance, an import path, or a pattern of these."""

import sys

import pytest
import torch

from linrnn import RNN, SequenceModel, mixers
from linrnn.backbone.pattern import label, pattern, stored
from linrnn.errors import ArgumentError, LinrnnError, UnknownNameError
from linrnn.mixers import LRU, Attention, Mixer
from linrnn.state import leaves, map_state

SOURCE = '''
from linrnn.mixers import LRU

class Mine(LRU):
    """One of somebody else."""

    def __init__(self, d_model, *, gain: float = 2.0, d_state: int = 3, device=None, dtype=None):
        super().__init__(d_model, d_state=d_state, device=device, dtype=dtype)
        self.gain = gain
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that can be imported and was not."""
    (tmp_path / "minemod.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "minemod"
    sys.modules.pop("minemod", None)


def model(mixer, n_layers=2, d_model=4, **options):
    torch.manual_seed(0)
    return SequenceModel(3, 2, mixer=mixer, d_model=d_model, n_layers=n_layers, **options).eval()


def kinds(net):
    return [type(m).__name__ for m in net.mixers]


@pytest.mark.parametrize(
    "mixer",
    [
        "lru,lru,attention",
        "2*lru, attention",
        ("2 * lru", "attention"),
        ("lru", LRU, "attention"),
        ["linrnn.mixers.lru:LRU", "lru", Attention],
    ],
    ids=str,
)
def test_a_pattern_is_repeated_along_the_depth(mixer):
    net = model(mixer, n_layers=5)
    assert kinds(net) == ["LRU", "LRU", "Attention", "LRU", "LRU"]
    same = model("lru,lru,attention", n_layers=5)
    for got, expected in zip(net.parameters(), same.parameters(), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.sampled
@pytest.mark.parametrize("name", mixers.names())
@pytest.mark.parametrize("both_ways", [False, True])
def test_a_class_is_what_its_name_is(name, both_ways):
    nets = [model(mixer, bidirectional=both_ways) for mixer in (name, mixers.load(name))]
    for got, expected in zip(*(net.state_dict().values() for net in nets), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("mixer", ["lru,attention", "mingru,mamba,rwkv4", "lstm,lru"])
def test_steps_of_a_pattern_are_its_sequence(mixer):
    net, x = model(mixer, n_layers=3, pool="none").double(), torch.randn(2, 9, 3).double()
    y, last = net(x)
    state, outputs = net.init_state(2), []
    for t in range(9):
        y_t, state = net.step(x[:, t], state)
        outputs.append(y_t)
    torch.testing.assert_close(torch.stack(outputs, 1), y)
    for got, expected in zip(leaves(state), leaves(last), strict=True):
        torch.testing.assert_close(got, expected)


def test_the_instance_of_one_layer_is_taken_as_it_is():
    mine = LRU(4, d_state=5)
    assert model(mine, n_layers=1).mixers == [mine]
    net = model(("gru", mine), n_layers=2)
    assert net.mixers[1] is mine


def test_instances_of_several_layers_are_copies_drawn_anew():
    mine = LRU(4, d_state=5)
    before = {k: v.clone() for k, v in mine.state_dict().items()}
    net = model(mine, n_layers=3)
    assert all(m is not mine and m.d_state == 5 for m in net.mixers)
    weights = [m.nu_log for m in net.mixers] + [mine.nu_log]
    assert all(not torch.equal(a, b) for i, a in enumerate(weights) for b in weights[:i])
    assert all(torch.equal(v, before[k]) for k, v in mine.state_dict().items())


def test_a_copy_is_told_its_place():
    net = model(mixers.build("rwkv4", 4), n_layers=3)
    assert [(m.layer, m.n_layers) for m in net.mixers] == [(0, 3), (1, 3), (2, 3)]
    named = model("rwkv4", n_layers=3)
    decays = zip(net.mixers, named.mixers, strict=True)
    assert all(torch.equal(a.time_decay, b.time_decay) for a, b in decays)


def test_an_import_path_is_the_class_it_leads_to(module):
    net = model(f"{module}:Mine", mixer_options={"gain": 3.0})
    assert kinds(net) == ["Mine", "Mine"]
    assert [(m.gain, m.d_state) for m in net.mixers] == [(3.0, 3), (3.0, 3)]
    assert mixers.load(f"{module}:Mine") is type(net.mixers[0])
    assert type(mixers.build(f"{module}:Mine", 4, {"gain": 1.0})) is type(net.mixers[0])


def test_options_go_to_whoever_has_them(module):
    options = {"d_state": 7, "attention": {"n_heads": 2}, "Mine": {"gain": 5.0}}
    path = f"{module}:Mine"
    lru, attention, mine = model(("lru", "attention", path), 3, mixer_options=options).mixers
    assert (lru.d_state, attention.n_heads, mine.d_state, mine.gain) == (7, 2, 7, 5.0)
    own = {"d_state": 7, "lru": {"d_state": 2}}
    assert [m.d_state for m in model(("lru", path), mixer_options=own).mixers] == [2, 7]


MIXED = [("lru", "attention"), "lstm,lru,gru", (LRU, "gru", "lru")]


@pytest.mark.parametrize("mixer", MIXED, ids=str)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_an_rnn_of_a_pattern_carries_the_states_of_all_layers(mixer, bidirectional):
    torch.manual_seed(0)
    layers = len(pattern(mixer))
    both = {"bidirectional": bidirectional, "batch_first": True, "dtype": torch.float64}
    rnn = RNN(mixer, 3, 4, num_layers=layers, **both)
    x = torch.randn(2, 9, 3, dtype=torch.float64)
    y, h_n = rnn(x)
    assert len(rnn.state(h_n)) == len(h_n[0]) == len(h_n[1]) == layers * (1 + bidirectional)
    one, single = rnn(x[0])
    torch.testing.assert_close(one, y[0])
    again, _ = rnn(x[0, :2], single)
    row = map_state(lambda h: h[:, :1], h_n)
    torch.testing.assert_close(again, rnn(x[:1, :2], row)[0][0])
    if bidirectional:
        return
    first, carried = rnn(x[:, :4])
    second, last = rnn(x[:, 4:], carried)
    torch.testing.assert_close(torch.cat([first, second], 1), y)
    for got, expected in zip(leaves(last), leaves(h_n), strict=True):
        torch.testing.assert_close(got, expected)


WRONG = [
    *("no state", [torch.zeros(4)], torch.ones(2, 4)),
    (torch.zeros(2, 4), (torch.zeros(1, 3), torch.zeros(1, 4))),
    (torch.zeros(2, 2, 4), (torch.zeros(1, 2, 3), torch.zeros(1, 2, 4))),
]


@pytest.mark.unchecked
@pytest.mark.parametrize("hx", WRONG, ids=range(len(WRONG)))
def test_a_wrong_state_of_a_pattern_is_one_clear_error(hx):
    rnn = RNN("gru,attention", 3, 4, num_layers=2)
    for x in (torch.zeros(5, 3), torch.zeros(5, 2, 3)):
        with pytest.raises(LinrnnError, match="RNN: hx"):
            rnn(x, hx)


def test_packed_sequences_of_a_pattern_give_what_each_gives_alone():
    torch.manual_seed(0)
    rnn = RNN("lru,gru", 3, 4, num_layers=2, dtype=torch.float64)
    rows = [torch.randn(n, 3, dtype=torch.float64) for n in (4, 9, 1)]
    packed = torch.nn.utils.rnn.pack_sequence(rows, enforce_sorted=False)
    output, h_n = rnn(packed)
    for i, row in enumerate(rows):
        y, h = rnn(row)
        torch.testing.assert_close(rnn.last_output(output)[i], y[-1])
        for got, expected in zip(leaves(h_n), leaves(h), strict=True):
            torch.testing.assert_close(got[:, i], expected)


def test_an_rnn_of_an_instance_shows_it_and_keeps_no_second_copy():
    mine = LRU(4)
    rnn = RNN(mine, 4, 4)
    assert rnn.cells[0].mixer is mine
    assert all(name.startswith("cells.0.") for name in rnn.state_dict())
    assert repr(rnn).startswith("RNN(\n  'lru', 4, 4")


@pytest.mark.sampled
@pytest.mark.parametrize("name", mixers.names())
def test_an_instance_is_stored_as_its_name_and_options(name):
    torch.manual_seed(0)
    mine = mixers.build(name, 4)
    found, options = stored(mine, {}, 4)
    again = mixers.build(found, 4, options)
    assert found == name
    assert {k: v.shape for k, v in again.state_dict().items()} == {
        k: v.shape for k, v in mine.state_dict().items()
    }
    assert all(getattr(again, option) == getattr(mine, option) for option in options)


def test_what_is_stored_is_read_back(module):
    cls = mixers.load(f"{module}:Mine")
    assert stored(cls, {"gain": 1.0}, 4) == (f"{module}:Mine", {"gain": 1.0})
    assert stored(cls(4, gain=1.0), {}, 4) == (f"{module}:Mine", {"gain": 1.0, "d_state": 3})
    found, options = stored(("lru", cls(4), "attention"), {"lru": {"d_state": 2}}, 4)
    assert found == f"lru,{module}:Mine,attention"
    assert options == {"lru": {"d_state": 2}, "Mine": {"gain": 2.0, "d_state": 3}}
    assert label(cls) == "Mine"


class Odd(LRU):
    """It forgets what it was made with."""

    def __init__(self, d_model, *, gate=None, device=None, dtype=None):
        super().__init__(d_model, device=device, dtype=dtype)


def _changed():
    mine = LRU(4)
    mine.more = torch.nn.Linear(2, 2)
    return mine


def _local():
    class Here(LRU):
        """A class defined inside a function."""

    return Here


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_local, r"must be a class at the top of a module .* got one made in .* as _local"),
        (lambda: Odd(4), "must keep its argument 'gate' .* got none"),
        (_changed, "got other parameters"),
        (lambda: (LRU(4, d_state=1), LRU(4, d_state=2)), "must have the same options"),
        (lambda: LRU(5), "must have d_model=4, got 5"),
    ],
)
def test_what_cannot_be_stored_says_why(make, message):
    with pytest.raises(ArgumentError, match=message):
        stored(make(), {}, 4)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("mixer", "options", "message"),
    [
        ("lru,lur", {}, "no mixer named 'lur'. Did you mean 'lru'"),
        ("lru,,lru", {}, "must have a mixer between its commas"),
        ("lru,0*lru", {}, "must have 1 to 10,000 layers of each mixer and in all, got 'lru,0"),
        ("9999*lru,2*lru", {}, "must have 1 to 10,000 layers"),
        ("123456789123456789*lru", {}, "must have 1 to 10,000 layers"),
        ("2*", {}, "2"),
        ((), {}, r"must be a name, an import path, .* got \(\)"),
        (("lru", 3), {}, "must be a name, .* got 3"),
        (Mixer, {}, "got an abstract class"),
        (torch.nn.GRU, {}, "class derived from Mixer"),
        ("lru,gru,lru", {}, "n_layers must be at least 3, the length of the pattern"),
        ("os:system", {}, "class derived from Mixer"),
        ("nowhere.at.all:Mine", {}, "ModuleNotFoundError: No module named 'nowhere'"),
        ("linrnn.mixers.lru:Nothing", {}, "and has Nothing, got AttributeError"),
        ("a b:c", {}, "of the form pkg.module:Mine, got 'a b:c'"),
        ("lru,attention", {"n_head": 2}, "option of the mixers lru, attention named 'n_head'"),
        ("lru,attention", {"attention": {"d_state": 2}}, "option of mixer 'attention' named"),
        ("lru", {"d_stat": 2}, "option of mixer 'lru' named 'd_stat'"),
        ((LRU, _local()), {}, None),
        (LRU(4), {"d_state": 2}, r"mixer_options must be empty for an instance, got \['d_state'"),
        (LRU(5), {}, "the instance must have d_model=4, got 5"),
        (LRU(4, dtype=torch.float64), {}, "must have parameters of torch.float32, got .*float64"),
    ],
)
def test_wrong_mixers_are_one_clear_error(mixer, options, message):
    make = {"mixer": mixer, "n_layers": 2, "mixer_options": options, "dtype": torch.float32}
    if message is None:
        assert kinds(model(**make)) == ["LRU", "Here"]
        return
    with pytest.raises((ArgumentError, UnknownNameError, LinrnnError), match=message):
        model(**make)


@pytest.mark.unchecked
def test_two_classes_of_one_name_are_told_apart_or_refused():
    with pytest.raises(ArgumentError, match="must have names of their own, got 'Here' twice"):
        model((_local(), _local()))
