"""Signals between the layers of a stack, through every door that builds or reads one."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from linrnn import RNN, SequenceModel, mixers
from linrnn.engine.replay.step import explain_step
from linrnn.errors import ArgumentError, LinrnnError
from linrnn.interop._hf_reading import checkpointed
from linrnn.mixers import HGRN, LRU, RWKV7, Mixer
from linrnn.ops import linear_scan
from linrnn.state import leaves, n_floats
from linrnn.state_spec import real
from linrnn.train.config import OptimConfig
from linrnn.train.optim import param_groups

NAMES = [n for n in mixers.names() if mixers.load(n).carries or mixers.load(n).shares]
GROWING = [n for n in NAMES if "constant_memory" in mixers.load(n).declared]  # of no fixed step
each_name = pytest.mark.parametrize("name", NAMES)
D, T, ROWS = 8, 12, 2


def model(name, **options):
    torch.manual_seed(0)
    usual = {"d_model": D, "n_layers": 3, "norm": "layer", "pool": "none", "dtype": torch.float64}
    made = SequenceModel(3, 4, mixer=name, **usual | options)
    with torch.no_grad():
        for i, p in enumerate(made.parameters()):  # what starts at zero would say nothing
            wave = torch.arange(1, p.numel() + 1, dtype=torch.float64).mul(0.7 + i).sin()
            p.add_(0.2 * wave.view(p.shape))
    return made


def signal(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def steps(made, x):
    state, outputs = made.init_state(len(x)), []
    for x_t in x.unbind(1):
        y_t, state = made.step(x_t, state)
        outputs.append(y_t)
    return torch.stack(outputs, 1), state


def close(got, expected, size=1e-10):
    torch.testing.assert_close(got, expected, rtol=size, atol=size)


def test_there_are_systems_that_hand_something_on():
    assert {"hgrn", "hgrn2", "rwkv7"} <= set(NAMES)


STACKS = {
    "plain": {},
    "tiers": {"tiers": (2,)},
    "unet": {"tiers": (2,), "unet": True},
    "convolutions": {"conv_width": 3, "block": "channel_mix"},
}


@each_name
@pytest.mark.parametrize("kind", STACKS)
def test_one_pass_is_splits_is_steps_with_resets(name, kind):
    made, x = model(name, **STACKS[kind]), signal(ROWS, T, 3)
    y, last = made(x)
    first, state = made(x[:, :5])
    second, state = made(x[:, 5:], state)
    close(torch.cat([first, second], 1), y)
    with torch.no_grad():
        stepped, final = steps(made, x)
    close(stepped, y.detach())
    for got, expected in zip(leaves(final), leaves(last), strict=True):
        close(got, expected.detach())
    if name not in GROWING or "tiers" not in STACKS[kind]:  # which rows must read together
        reset = torch.zeros(ROWS, T, dtype=torch.bool)
        reset[1, 7] = True
        z, _ = made(x, reset=reset)
        close(z[1:, 7:], made(x[1:, 7:])[0])
        close(z[0], y[0])
    alone = [m.init_state(1) for m in made.mixers]
    assert n_floats(alone) == sum(n_floats(type(m)(m.d_model).init_state(1)) for m in made.mixers)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in GROWING])
def test_a_step_is_one_native_call_and_the_same_numbers(name):
    made, x = model(name), signal(ROWS, T, 3)
    with torch.no_grad():
        state = made.init_state(ROWS)
        expected, _ = made._step_by_operators(x[:, 0], state)
        made.step(x[:, 0], state)
        close(made.step(x[:, 0], state)[0], expected)
        assert "one native call" in explain_step(made, made._step_by_operators, x[:, 0], state)
        for p in made.shared.parameters():
            rows = 0.1 * torch.arange(len(p), dtype=p.dtype)
            p.mul_(3).add_(rows.view(-1, *[1] * (p.ndim - 1)))
        close(made.step(x[:, 0], state)[0], made._step_by_operators(x[:, 0], state)[0])


@each_name
def test_a_layer_in_a_stack_that_is_not_recorded_is_so_by_itself(name):
    """Attention's state grows, so that the whole stack's step is not."""
    made, x = model((name, "attention", name, name)[:4], n_layers=4), signal(ROWS, T, 3)
    y, _ = made(x)
    with torch.no_grad():
        stepped, state = steps(made, x)
        close(stepped, y.detach())
        layer, z = made.mixers[2], signal(ROWS, D)
        spec, carries = layer.signal_spec(), layer.carries
        sizes = {n: [size or T + 1 for size in p.axes.values()] for n, p in spec.items()}
        given = {n: signal(*[ROWS] * (n in carries), *size) for n, size in sizes.items()}
        expected = layer._step_by_operators(z, state["layers"][2], None, given)
        got = layer.step(z, state["layers"][2], signals=given)
        close(got[0], expected[0])
        again = layer.step(z, state["layers"][2], signals=given)
        assert torch.equal(again[0], got[0])


@each_name
def test_directions_have_signals_of_their_own_and_padding_is_not_read(name):
    made, x = model(name, bidirectional=True, n_layers=3), signal(3, T, 3)
    lengths = torch.tensor([T, 5, 9])
    y, _ = made(x, lengths=lengths)
    for row, stop in enumerate(lengths.tolist()):
        close(y[row, :stop], made(x[row : row + 1, :stop])[0][0])
    reset = torch.zeros(3, T, dtype=torch.bool)
    reset[:, 4] = True
    z, _ = made(x, reset=reset)
    close(z, torch.cat([made(x[:, :4])[0], made(x[:, 4:])[0]], 1))


@each_name
@pytest.mark.parametrize("both", [False, True])
def test_rnn_packs_them(name, both):
    torch.manual_seed(0)
    rnn = RNN(name, 3, D, 3, batch_first=True, bidirectional=both, dtype=torch.float64)
    for p in rnn.shared.parameters():
        nn.init.normal_(p)
    parts = [signal(n, 3) for n in (5, 2, 7)]
    packed = nn.utils.rnn.pack_sequence(parts, enforce_sorted=False)
    starts = (None,) if name in GROWING else (None, rnn.init_state(3))
    for hx in starts:  # read at once, and in shrinking batches
        y, _ = nn.utils.rnn.pad_packed_sequence(rnn(packed, hx)[0], batch_first=True)
        for row, x in enumerate(parts):
            close(y[row, : len(x)], rnn(x[None])[0][0])
    sizes = [p.shape for p in rnn.parameters()]
    numbers = [p.detach().clone() for p in rnn.shared.parameters()]
    rnn.reset_parameters()
    assert [p.shape for p in rnn.parameters()] == sizes
    assert not any(map(torch.equal, rnn.shared.parameters(), numbers))


@each_name
@pytest.mark.parametrize("reentrant", [False, True])
def test_blocks_can_be_computed_again_for_the_gradient(name, reentrant):
    made, x = model(name), signal(ROWS, T, 3)
    parameters = list(made.parameters())
    expected = torch.autograd.grad(made(x)[0].square().sum(), parameters)

    def function(read, *tensors):
        return checkpoint(read, *tensors, use_reentrant=reentrant)

    z, _ = made.features_of(made.encoder(x), around=checkpointed(function, 1))
    loss = made.head(z).square().sum()
    if reentrant:  # which knows `backward` alone
        loss.backward()
        got = [p.grad for p in parameters]
    else:
        got = torch.autograd.grad(loss, parameters)
    close(list(got), list(expected))


@each_name
def test_copies_and_files_have_what_is_shared_once(name):
    made, x = model(name), signal(ROWS, T, 3)
    again = copy.deepcopy(made)
    assert torch.equal(again(x)[0], made(x)[0])
    names, shared = list(made.state_dict()), list(made.shared.parameters())
    assert len(names) == len(set(names)) == len(list(made.parameters()))
    assert bool(shared) == bool(made.mixers[0].shares)
    other = model(name)
    for p in other.parameters():
        nn.init.normal_(p, std=0.1)
    other.load_state_dict(made.state_dict())
    assert torch.equal(other(x)[0], made(x)[0])
    for group in param_groups(made, OptimConfig()):
        at = [p is q for p in group["params"] for q in shared]
        of_recurrence = any(getattr(part, "recurrent_parameters", ()) for part in made.shared)
        assert any(at) or group["name"] != "recurrent" or not of_recurrence
        assert not any(at) or (group["name"] == "recurrent") == of_recurrence
    half = model(name, dtype=torch.float32).to(torch.bfloat16)
    wide = [torch.float32 if part.single_precision else torch.bfloat16
            for part in half.shared for _ in part.parameters()]  # fmt: skip
    assert [p.dtype for p in half.shared.parameters()] == wide
    assert half(x.bfloat16())[0].isfinite().all()


@each_name
def test_vmap_of_gradients_over_models(name):
    made, x = model(name), signal(ROWS, T, 3)
    weights = {n: p.detach() for n, p in made.named_parameters()}

    def loss(weights, x):
        return torch.func.functional_call(made, weights, (x[None],))[0].square().sum()

    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)
    for row in range(ROWS):
        alone = torch.autograd.grad(made(x[row : row + 1])[0].square().sum(), made.parameters())
        for got, expected in zip(grads.values(), alone, strict=True):
            close(got[row], expected, 1e-8)


@pytest.mark.unchecked
@each_name
def test_a_stack_compiles_whole(name):
    torch._dynamo.reset()
    made, x = model(name), signal(ROWS, T, 3)
    y = torch.compile(made, fullgraph=True, backend="aot_eager")(x)[0]
    close(y, made(x)[0], 1e-8)


def test_the_first_of_a_system_makes_it_wherever_it_stands():
    made = model(("attention", "rwkv7", "lru", "rwkv7"), n_layers=6)
    assert [m.receives for m in made.mixers] == [(), (), (), ("v_first",), (), ("v_first",)]
    three = model("rwkv7")
    x = signal(ROWS, T, D)
    by_hand, signals = x, {}
    for block in three.blocks:
        by_hand, _, new = block(by_hand, signals=signals)
        signals = {**signals, **new}
    close(three.features_of(x)[0], by_hand)
    assert model("hgrn,lru", n_layers=2).mixers[0].receives == ()
    assert len(model(("hgrn", "hgrn2"), n_layers=4).shared) == 2


def test_of_several_rates_each_run_has_its_own():
    made = model("rwkv7", tiers=(2,), unet=True, n_layers=2)
    assert [m.receives for m in made.mixers] == [(), ("v_first",)] * 3
    assert [part.gamma.shape[1] for part in model("hgrn", tiers=(2,), n_layers=2).shared] == [16, 8]


class Echo(Mixer):
    """A layer of somebody else's, which hears the first layer's input."""

    family = "diagonal"
    carries = ("heard",)

    def __init__(self, d_model, *, size=1, receives=(), device=None, dtype=None):
        super().__init__()
        self.d_model, self.size, self.receives = d_model, size, receives
        self.gain = nn.Parameter(torch.ones(d_model, device=device, dtype=dtype))

    def state_spec(self):
        return real(d_model=self.d_model)

    def signal_spec(self):
        return {"heard": real(size=self.size)}

    def _read(self, x, state, reset, signals):
        heard = signals.get("heard", x[..., : self.size])
        decay = torch.full_like(self.gain, 0.5)
        y, state = linear_scan(decay, self.gain * x + heard.sum(-1, keepdim=True), state)
        return y, state, {} if signals else {"heard": heard}


def test_any_layer_may_carry_signals():
    made, x = model(Echo), signal(ROWS, T, 3)
    y, _ = made(x)
    close(torch.cat([made(x[:, :4])[0][:, :4], steps(made, x)[0][:, 4:]], 1), y)
    assert [m.receives for m in made.mixers] == [(), ("heard",), ("heard",)]


class Other(Echo):
    """The same signal, of another size."""

    def __init__(self, d_model, *, size=2, receives=(), device=None, dtype=None):
        super().__init__(d_model, size=size, receives=receives, device=device, dtype=dtype)


class Plain(LRU):
    """A layer that says nothing of signals."""


TWO = {"n_layers": 2, "dtype": None}
BAD = [
    (
        lambda: model((RWKV7(D, receives=("v_first",)), "lru"), **TWO),
        "layer 0, a RWKV7, must receive 'v_first' from a layer before it",
    ),
    (lambda: model((Echo, Other)), "must have the signal 'heard' .*'size': 1.*got .*'size': 2"),
    (lambda: model((HGRN(D, receives=("bound",)), "lru"), **TWO), "must be two or more"),
    (lambda: RWKV7(D, receives=("bound",)), r"receives must be of \('v_first',\).*got 'bound'"),
    (lambda: Plain(D)(torch.zeros(1, 2, D), signals={}), "Plain.forward: signals must be None"),
    (
        lambda: RWKV7(D, receives=("v_first",))(torch.zeros(1, 2, D)),
        "RWKV7.forward: signals must have 'v_first', for this layer is of a stack",
    ),
    (
        lambda: RWKV7(D, receives=("v_first",)).step(
            torch.zeros(1, D), RWKV7(D).init_state(1), signals={"v_first": torch.zeros(1, 3)}
        ),
        r"RWKV7.step: signals\['v_first'\] must have shape",
    ),
    (lambda: HGRN(D, lower_bound="none"), "lower_bound"),
    (lambda: RWKV7(D, value_rank=-1), "value_rank"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("attempt", "message"), BAD)
def test_what_does_not_fit_is_said(attempt, message):
    with pytest.raises(LinrnnError, match=message):
        attempt()


def test_options_leave_it_out():
    assert not any(m.receives for m in model("rwkv7", mixer_options={"value_rank": 0}).mixers)
    apart = model("hgrn", mixer_options={"lower_bound": "layer"})
    assert [m.bound is None for m in apart.mixers] == [True, False, False]
    assert not len(apart.shared)


@pytest.mark.parametrize("learner", ["diagonal_rtrl", "snap", "uoro", "lra", "chunked_rtrl"])
@pytest.mark.unchecked
def test_learners_that_take_layers_apart_refuse(learner):
    from linrnn import learn

    for name in NAMES:
        with pytest.raises(ArgumentError, match="must read nothing but the layer before it"):
            learn.build(learner).check(model(name))
