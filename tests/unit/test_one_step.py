"""Calls of `RNN` and of layers with one step, which are recorded, against their operators."""

import copy

import pytest
import torch
from torch import nn

from linrnn import RNN
from linrnn.compute import native
from linrnn.compute.replay import Replays
from linrnn.engine.replay import program, step
from linrnn.errors import DTypeError, LinrnnError, ShapeError
from linrnn.mixers import load, names
from linrnn.nn.parameters import working_dtype
from linrnn.ops import explain, use_backend, use_form
from linrnn.state import leaves, map_state

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
TOLERANCE = {F64: 1e-11, F32: 3e-5}
OPTIONS = (
    {"num_layers": 2},
    {"batch_first": True, "dtype": F64, "dropout": 0.5, "num_layers": 2},
    {"bidirectional": True, "bias": False},
    {"proj_size": 3, "glu": True},
)
ALWAYS = ("gru", "lru", "mamba", "rg_lru", "lstm", "rwkv7")
MANY = [
    pytest.param(x, marks=[] if x in ALWAYS or i % 9 == 0 else [pytest.mark.slow])
    for i, x in enumerate(names())
]
GROWING = {name for name in names() if "constant_memory" in load(name).declared}

pytestmark = pytest.mark.skipif(
    native.load()[0] is None or not program.operations(),
    reason="the native kernels are not installed, or not these",
)


def rnn(mixer="gru", **options):
    torch.manual_seed(0)
    return RNN(mixer, 5, 8, mixer_options=dict(load(mixer).in_laws), **options).eval()


def sequence(net, batch=3):
    x = torch.randn(1, batch, net.input_size, dtype=working_dtype(net))
    return x.transpose(0, 1) if net.batch_first else x


def by_operators(module, *args, **kwargs):
    """With gradients, no step is recorded."""
    y, state = module(*args, **kwargs)
    return y.detach(), map_state(torch.Tensor.detach, state)


def in_one(module, *args, **kwargs):
    with torch.no_grad():
        return module(*args, **kwargs)


def same(got, want, tolerance=None):
    for a, b in zip([got[0], *leaves(got[1])], [want[0], *leaves(want[1])], strict=True):
        assert (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device)
        near = TOLERANCE[b.real.dtype] if tolerance is None and b.dtype != torch.int64 else 0
        near = tolerance or near
        size = max(1.0, b.abs().max().item()) if b.numel() else 1.0
        torch.testing.assert_close(a, b, rtol=near, atol=near * size)


def counts(module):
    """The instructions of each kind of step that is a native call."""
    programs = [kind.program for kind in step._kinds.get(module, {}).values()]
    return [program.count for program in programs if program is not None]


def recorded(module):
    """The number of a module's kinds of steps that are native calls."""
    return len(counts(module))


def resets(mixer):
    return not any("reset" in law for law in load(mixer).declared)


@pytest.mark.sampled
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("mixer", MANY)
def test_a_call_with_one_step_is_that_of_its_operators(mixer, options):
    net, hx = rnn(mixer, **options), None
    marks = torch.tensor([[True, False, True]])
    marks = marks.t() if net.batch_first else marks
    for _ in range(4):
        x = sequence(net)
        want, got = by_operators(net, x, hx), in_one(net, x, hx)
        same(got, want)
        if resets(mixer):
            same(in_one(net, x, hx, reset=marks), by_operators(net, x, hx, reset=marks))
        hx = got[1]
    if mixer in ALWAYS:
        assert recorded(net) == 1


@pytest.mark.parametrize("mixer", MANY)
def test_a_layer_that_reads_one_step(mixer):
    torch.manual_seed(0)
    layer = load(mixer)(8, **load(mixer).in_laws).eval()
    state, marks = None, torch.tensor([[True], [False], [True]])
    for _ in range(4):
        x = torch.randn(3, 1, 8)
        want, got = by_operators(layer, x, state), in_one(layer, x, state)
        same(got, want)
        if resets(mixer):
            same(in_one(layer, x, state, reset=marks), by_operators(layer, x, state, reset=marks))
        state = got[1]
    if mixer in ALWAYS:
        assert recorded(layer) == 1
        in_one(layer.step, x[:, 0], state)
        assert recorded(layer) == 1  # the same record


@pytest.mark.parametrize("mixer", ["gru", "lru", "lstm"])
def test_one_step_without_a_batch(mixer):
    net = rnn(mixer, num_layers=2)
    hx = None
    for _ in range(3):
        x = torch.randn(1, 5)
        got = in_one(net, x, hx)
        same(got, by_operators(net, x, hx))
        mark = torch.tensor([True])
        same(in_one(net, x, hx, reset=mark), by_operators(net, x, hx, reset=mark))
        hx = got[1]
    assert recorded(net) == 1


def changed(name):
    """Changes of a module; each changes the output of a step."""

    def in_place(net):
        with torch.no_grad():
            net.weight_hh_l0.mul_(1.5)

    def replaced(net):
        net.weight_hh_l0 = nn.Parameter(torch.randn_like(net.weight_hh_l0))

    def hooked(net):
        net.cells[0].mixer.out_proj.register_forward_hook(lambda part, args, y: 2 * y)

    def part(net):
        net.cells[0].out_proj = nn.Linear(8, 8)

    return locals()[name]


@pytest.mark.parametrize("name", ["in_place", "replaced", "hooked", "part"])
def test_what_was_changed_is_seen(name):
    net = rnn()
    x = sequence(net)
    _, hx = in_one(net, x)
    before = in_one(net, x, hx)
    changed(name)(net)
    want = by_operators(net, x, hx)
    assert not torch.allclose(before[0], want[0], atol=1e-4)
    for _ in range(3):
        same(in_one(net, x, hx), want)


def saved_and_loaded(net, folder):
    torch.save(net, folder / "net.pt")
    return torch.load(folder / "net.pt", weights_only=False)


def test_copies_are_recorded_themselves(tmp_path):
    net = rnn("lru")
    x = sequence(net)
    want = in_one(net, x)
    for twin in (copy.deepcopy(net), saved_and_loaded(net, tmp_path)):
        assert recorded(twin) == 0
        same(in_one(twin, x), want)
        assert recorded(twin) == 1


def test_zeros_of_another_size_begin_anew():
    net = rnn("lru")
    x, zeros = sequence(net), torch.zeros(1, 3, 8)
    want = by_operators(net, x)
    for _ in range(3):
        same(in_one(net, x, zeros), want)
    _, hx = in_one(net, x)
    same(in_one(net, x, hx), by_operators(net, x, hx))
    assert recorded(net) == 1  # zeros come first in most programs
    same(in_one(net, x, zeros), want)


def test_what_is_not_finite_stays_where_it_is():
    net = rnn()
    x = sequence(net)
    _, hx = in_one(net, x)
    hx[0, 1] = torch.nan
    got, want = in_one(net, x, hx), by_operators(net, x, hx)
    assert got[0].isnan().any(-1).tolist() == [[False, True, False]]
    torch.testing.assert_close(got[0], want[0], equal_nan=True)
    marks = torch.tensor([[False, True, False]])
    assert in_one(net, x, hx, reset=marks)[0].isfinite().all()


def test_a_step_shares_no_memory_with_its_arguments():
    net = rnn("lstm")
    x = sequence(net)
    _, hx = in_one(net, x)
    before = map_state(torch.clone, hx)
    for marks in (None, torch.tensor([[True, False, False]])):
        y, h_n = in_one(net, x, hx, reset=marks)
        assert all(map(torch.equal, leaves(hx), leaves(before)))
        memory = [h.untyped_storage().data_ptr() for h in (x, y, *leaves(hx), *leaves(h_n))]
        assert len(set(memory)) == len(memory)


WRONG = {
    "width": (lambda x, hx: (x[..., :4], hx), ShapeError),
    "dtype": (lambda x, hx: (x.double(), hx), DTypeError),
    "rows of hx": (lambda x, hx: (x, hx[:, :2]), ShapeError),
    "hx": (lambda x, hx: (x, [hx, hx, "h"]), DTypeError),
}


@pytest.mark.unchecked
@pytest.mark.parametrize("before", [False, True], ids=["at first", "once recorded"])
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_the_same_error(name, before):
    net = rnn()
    change, kind = WRONG[name]
    x = sequence(net)
    hx = torch.zeros(1, 3, 8)
    if before:
        in_one(net, x, hx)
    with pytest.raises(kind) as want:
        net(*change(x, hx))
    with pytest.raises(kind) as got:
        in_one(net, *change(x, hx))
    assert str(got.value) == str(want.value)
    same(in_one(net, x, hx), by_operators(net, x, hx))
    assert recorded(net) == 1


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "marks", [torch.ones(3, 1, dtype=torch.bool), torch.ones(1, 3), [[True, True, True]]]
)
def test_marks_that_do_not_fit_are_refused(marks):
    net = rnn()
    x = sequence(net)
    _, hx = in_one(net, x)
    with pytest.raises(LinrnnError):
        in_one(net, x, hx, reset=marks)


def test_a_block_that_says_how_to_compute_is_heard():
    net = rnn("slstm")
    x = sequence(net)
    for block in (use_backend("reference"), use_form("loop")):
        with block:
            in_one(net, x)
            assert not recorded(net)
            assert not recorded(net.cells[0].mixer)
    with use_backend("cpu"):
        in_one(net, x)
    assert recorded(net) == 1


def test_transforms_see_operators():
    net = rnn("lru")
    xs = torch.randn(4, 1, 3, 5)
    in_one(net, xs[0])
    with torch.no_grad():
        got = torch.func.vmap(lambda x: net(x)[0])(xs)
    torch.testing.assert_close(got, torch.stack([by_operators(net, x)[0] for x in xs]))


@pytest.mark.parametrize("mixer", ["gru", "lru", "mamba"])
def test_autocast_changes_no_dtype_and_costs_no_digits(mixer):
    net, exact = rnn(mixer), rnn(mixer).double()
    hx, plain, wide = None, None, None
    errors = []
    for _ in range(6):
        x = sequence(net)
        with torch.autocast("cpu", BF16):
            y, hx = in_one(net, x, hx)
            z, plain = by_operators(net, x, plain)
        want, wide = by_operators(exact, x.double(), wide)
        assert [h.dtype for h in (y, *leaves(hx))] == [h.dtype for h in (z, *leaves(plain))]
        errors.append([(a.double() - want).abs().mean().item() for a in (y, z)])
    ours, theirs = torch.tensor(errors).mean(0).tolist()
    assert ours <= 1.1 * theirs + 1e-6
    plainly = rnn(mixer)
    in_one(plainly, x, in_one(plainly, x)[1])
    (count,) = counts(plainly)
    assert counts(net)
    assert max(counts(net)) <= count + 3  # weights are read as they are, and results rounded


def test_operators_run_where_they_are_faster(monkeypatch):
    monkeypatch.setattr(program, "_NUMBERS", 1)
    layer = load("mingru")(8)
    for batch in (6, 6, 7, 200):
        x, state = torch.randn(batch, 8), layer.init_state(batch)
        same(in_one(layer.step, x, state), by_operators(layer.step, x, state))
        assert "faster with that many sequences" in explain(layer.step, x, state)
    assert len(step._kinds[layer]) == 1  # what is slow with six is slow with more
    assert recorded(layer) == 0


def test_a_layer_that_reads_any_number_of_rows_is_not_recorded_for_ever(monkeypatch):
    monkeypatch.setattr(Replays, "MOST", 3)
    monkeypatch.setattr(program, "_REPLACED", 4)
    layer = load("mingru")(8)
    for _ in range(2):
        for batch in range(1, 12):
            x, state = torch.randn(batch, 8), layer.init_state(batch)
            same(in_one(layer.step, x, state), by_operators(layer.step, x, state))
    assert recorded(layer) == len(step._kinds[layer]) == 3
    assert step._kinds[layer].replaced == 4
