"""Learners that carry derivatives: against back-propagation and against loops, in float64."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import mse_loss

from linrnn import SequenceModel, learn
from linrnn.errors import ArgumentError
from linrnn.learn import Batch, Loop
from linrnn.learn._exact.owners import NotDiagonalError, owners
from linrnn.learn._exact.step_derivatives import stepped
from linrnn.learn._exact.traces import windowed
from linrnn.mixers import Mixer, build, load
from linrnn.state import detach, map_state
from linrnn.state_spec import real
from linrnn.tasks._kinds.base import IGNORE

TIME, ROWS = 13, 3
APART = (
    *("lru", "s5", "mingru", "minlstm", "gilr", "sru", "qrnn", "hgrn", "ind_rnn"),
    *("aft", "unicornn", "selective_lru", "modal", "gated_lru", "slru", "elstm", "columnar"),
)


def make(mixer="lru", n_layers=1, **options):
    torch.manual_seed(0)
    options = {"d_model": 4, "norm": "layer", "pool": "none"} | options
    return SequenceModel(2, 3, mixer=mixer, n_layers=n_layers, **options, dtype=torch.float64)


@pytest.fixture
def batch():
    random = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, TIME, 2, dtype=torch.float64, generator=random)
    target = torch.randn(ROWS, TIME, 3, dtype=torch.float64, generator=random)
    reset = torch.zeros(ROWS, TIME, dtype=torch.bool)
    reset[0, 7] = reset[2, 5] = reset[2, 6] = True
    return Batch(x, target, None, reset)


def gradients(model, name, batch, carried=None, **options):
    model.zero_grad(set_to_none=True)
    learner = options.pop("learner", None) or learn.build(name, options)
    learner.check(model)
    step = learner.step(model, batch, carried, Loop(mse_loss))
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return found, step


def close(ours, theirs, only=""):
    assert ours.keys() == theirs.keys()
    for name, g in ours.items():
        if only in name:
            torch.testing.assert_close(g, theirs[name], rtol=1e-10, atol=1e-13, msg=name)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mixer", APART)
def test_a_recurrent_layer_learns_as_by_back_propagation(mixer, batch):
    model = make(mixer)
    for dt in (torch.rand(ROWS, TIME, dtype=torch.float64) + 0.5, None):
        if dt is not None and not load(mixer).timed:
            continue
        times = batch._replace(dt=dt)
        whole, _ = gradients(model, "bptt", times)
        close(gradients(model, "chunked_rtrl", times, window=3)[0], whole, "mixer")
        close(gradients(model, "diagonal_rtrl", times)[0], whole, "mixer")
    cut, _ = gradients(model, "tbptt", batch, window=3)
    far = max(float((g - cut[n]).norm() / g.norm()) for n, g in whole.items() if "mixer" in n)
    assert far > 1e-3  # there is something across the borders to be learned


WIDE = ("lru", "s5", "mingru", "minlstm", "gilr", "sru", "hgrn", "ind_rnn", "gated_lru", "slru")
"""Layers whose maps from the input are large at `WIDTH` channels, with or without gates around."""
WIDTH = 96


@pytest.mark.parametrize("mixer", WIDE)
def test_large_maps_have_the_gradient_of_back_propagation(mixer, batch):
    """Their traces are sums of products, made without the derivatives of each weight."""
    model = make(mixer, d_model=WIDTH)
    whole, _ = gradients(model, "bptt", batch)
    for name, options in (("chunked_rtrl", {"window": 3}), ("diagonal_rtrl", {})):
        learner = learn.build(name, options)
        close(gradients(model, name, batch, learner=learner)[0], whole, "mixer")
        assert any("linear" in key for key in learner.state_dict())


def test_large_maps_learn_where_windows_have_no_target_and_weights_are_frozen(batch):
    for mixer in ("lru", "mingru"):
        model = make(mixer, d_model=WIDTH, pool="last")
        last = batch._replace(target=batch.target[:, -1])
        whole, _ = gradients(model, "bptt", last)
        close(gradients(model, "chunked_rtrl", last, window=4)[0], whole, "mixer")
        frozen = next(p for n, p in model.named_parameters() if "mixer" in n and p.ndim > 1)
        frozen.requires_grad_(False)
        whole, _ = gradients(model, "bptt", last)
        close(gradients(model, "chunked_rtrl", last, window=4)[0], whole, "mixer")


@pytest.mark.parametrize("mixer", ["lru", "minlstm"])
@pytest.mark.parametrize("window", [1, 2, 7, TIME, 64])
def test_any_window_gives_the_gradient_of_the_layer(mixer, window, batch):
    model = make(mixer)
    whole, _ = gradients(model, "bptt", batch)
    close(gradients(model, "chunked_rtrl", batch, window=window)[0], whole, "mixer")


@pytest.mark.parametrize("mixer", ["lru", "s5", "sru", "columnar", "modal"])
def test_windows_of_many_steps_are_asked_by_their_graph_or_read_anew(mixer):
    x, target = torch.randn(ROWS, 38, 2).double(), torch.randn(ROWS, 38, 3).double()
    long, model = Batch(x, target, None, None), make(mixer)
    whole, _ = gradients(model, "bptt", long)
    close(gradients(model, "chunked_rtrl", long, window=19)[0], whole, "mixer")


def test_a_bias_of_a_map_needs_no_pass_of_its_own():
    """The bias has the gradient of the map's outputs."""
    assert windowed(build("gilr", 4)).passes == 0
    found = windowed(build("columnar", 4))  # its weights r are four a channel
    assert found.passes == 4
    assert {*found.index} == {"r", "in_proj.bias", "linear 0"}


@pytest.mark.parametrize("mixer", ["lru", "s5"])
def test_one_trace_of_a_complex_map_tells_the_other(mixer):
    """The gradient of the imaginary part of a weight is i times that of its real part."""
    layer = build(mixer, 6)
    found = windowed(layer)
    ((name, (rows, _)),) = found.shapes.items()
    assert rows == found.owners.channels
    assert found.pairs[name].flatten().sort()[0].tolist() == list(range(2 * rows))


@pytest.mark.parametrize("mixer", ["mingru", "unicornn", "hgrn", "aft"])
def test_other_maps_have_a_trace_of_each_output(mixer):
    assert windowed(build(mixer, 6)).pairs == {}


@pytest.mark.parametrize("mixer", ["gru", "lstm", "tanh_rnn", "lru", "delta_net"])
@pytest.mark.parametrize("window", [1, 5])
def test_rtrl_is_exact_for_every_parameter(mixer, window, batch):
    model = make(mixer, n_layers=2, d_model=3)
    few = batch._replace(x=batch.x[:2, :7], target=batch.target[:2, :7], reset=batch.reset[:2, :7])
    close(gradients(model, "rtrl", few, window=window)[0], gradients(model, "bptt", few)[0])


def test_rtrl_is_exact_through_statistics_of_a_batch(batch):
    model = make("mingru", n_layers=2, norm="batch", d_model=3).train()
    # statistics are those of a window, so the whole is read in the same windows
    learner = learn.build("rtrl", {"window": 5})
    found, _ = gradients(model, "rtrl", batch, learner=learner)
    model.zero_grad()
    state, answers = None, []
    for window in (slice(0, 5), slice(5, 10), slice(10, TIME)):
        y, state = model(batch.x[:, window], state, reset=batch.reset[:, window])
        answers.append(y)
    mse_loss(torch.cat(answers, 1), batch.target).backward()
    close(found, {n: p.grad for n, p in model.named_parameters()})


@pytest.mark.parametrize("mixer", ["lru", "mingru"])
def test_in_a_stack_errors_go_down_at_the_step_at_hand(mixer, batch):
    """Below the last recurrent layer: its states enter each step as constants."""
    model = make(mixer, n_layers=2)
    found, _ = gradients(model, "diagonal_rtrl", batch)
    whole, _ = gradients(model, "bptt", batch)
    close(found, whole, "blocks.1.mixer")
    below, above = model.blocks
    model.zero_grad()
    # each layer once with its weights through time, and each step with its input alone
    x, reset = model.encoder(batch.x), batch.reset
    for block in (below, above):
        states = states_before(block, x.detach(), reset)
        y, _ = block(x.detach(), None, reset=reset)
        steps = torch.stack(
            [frozen(block, x[:, t : t + 1], h, reset[:, t : t + 1]) for t, h in enumerate(states)],
            1,
        )
        x = y + steps - steps.detach()
    mse_loss(model.head(x), batch.target).backward()
    expected = {n: p.grad for n, p in model.named_parameters()}
    close(found, expected, "blocks.0.mixer")
    close(found, expected, "encoder")
    cosine = torch.nn.functional.cosine_similarity
    for name, g in whole.items():
        if "blocks.0.mixer" in name:
            assert cosine(found[name].flatten(), g.flatten(), 0) > 0


def states_before(block, x, reset):
    state, found = block.init_state(len(x)), []
    for t in range(x.shape[1]):
        found.append(state)
        _, state = block(x[:, t : t + 1], state, reset=reset[:, t : t + 1])
        state = detach(state)
    return found


def frozen(block, x, state, reset):
    """The output of a step, as a function of its input alone."""
    fixed = {n: p.detach() for n, p in block.named_parameters()}
    y, _ = torch.func.functional_call(block, fixed, (x, state), {"reset": reset})
    return y[:, 0]


@pytest.mark.parametrize("name", ["rtrl", "diagonal_rtrl", "chunked_rtrl"])
def test_derivatives_go_on_from_batch_to_batch(name, batch):
    """A state that is carried goes with what it owes: two batches learn as one."""
    model = make("mingru")
    options = {} if name == "diagonal_rtrl" else {"window": 3}
    learner, state, total = learn.build(name, options), None, {}
    for piece in (slice(0, 6), slice(6, TIME)):
        part = Batch(batch.x[:, piece], batch.target[:, piece], None, batch.reset[:, piece])
        found, step = gradients(model, name, part, state, learner=learner)
        share = part.x.shape[1] / TIME
        total = {n: total.get(n, 0) + share * g for n, g in found.items()}
        state = step.state
    close(total, gradients(model, "bptt", batch)[0], "mixer")
    rows = map_state(lambda h: h[:2], state)  # a last batch may have fewer
    few = Batch(batch.x[:2], batch.target[:2], None, None)
    gradients(model, name, few, rows, learner=learner)
    assert all(v.shape[0 if name == "rtrl" else 1] == 2 for v in learner.state_dict().values())


def test_an_answer_at_the_end_reaches_its_cause_before_the_window():
    """Truncated back-propagation never sees this input, long before the label."""
    model = make("lru", pool="last")
    x = torch.zeros(1, 30, 2, dtype=torch.float64)
    x[0, 0] = 1
    batch = Batch(x, torch.ones(1, 3, dtype=torch.float64), None, None)
    whole, _ = gradients(model, "bptt", batch)
    close(gradients(model, "chunked_rtrl", batch, window=4)[0], whole, "mixer")
    cut, _ = gradients(model, "tbptt", batch, window=4)
    name = "blocks.0.mixer.nu_log"
    assert not torch.allclose(cut[name], whole[name], rtol=1e-2)


class Average(Mixer):
    """No parameter moves its state."""

    def __init__(self, d_model):
        super().__init__()
        self.d_model, self.out = d_model, torch.nn.Linear(d_model, d_model)

    def state_spec(self):
        return real(d_state=self.d_model)

    def _read(self, x, h, reset):
        means = [h := 0.9 * h + z for z in x.unbind(1)]
        return self.out(torch.stack(means, 1)), h


@pytest.mark.parametrize("name", ["chunked_rtrl", "diagonal_rtrl"])
def test_a_state_that_no_parameter_moves_has_no_traces(name):
    torch.manual_seed(0)
    model = Average(4).double()
    batch = Batch(*torch.randn(2, 2, 5, 4).double(), None, None)
    whole, _ = gradients(model, "bptt", batch)
    learner = learn.build(name)
    close(gradients(model, name, batch, learner=learner)[0], whole)
    assert learner.state_dict() == {}


def test_the_memory_of_a_learner_does_not_grow_with_what_was_read():
    model = make("lru", d_model=3)
    learner, state, sizes = learn.build("diagonal_rtrl"), None, []
    for _ in range(4):
        x = torch.randn(1, 20, 2, dtype=torch.float64)
        batch = Batch(x, torch.zeros(1, 20, 3, dtype=torch.float64), None, None)
        _, step = gradients(model, "diagonal_rtrl", batch, state, learner=learner)
        state = step.state
        sizes.append(sum(v.numel() for v in learner.state_dict().values()))
    assert len({*sizes}) == 1
    assert sizes[0] > 0


def test_the_step_of_the_optimiser_may_be_taken_after_each_window(batch):
    model, seen = make("lru"), []
    learner = learn.build("chunked_rtrl", {"window": 5, "update": "window"})

    def update():
        seen.append({n: p.grad.clone() for n, p in model.named_parameters()})
        model.zero_grad(set_to_none=True)

    learner.step(model, batch, None, Loop(mse_loss, update=update))
    assert len(seen) == 2  # the third is the loop's own
    first = Batch(batch.x[:, :5], batch.target[:, :5], None, batch.reset[:, :5])
    close(seen[0], gradients(model, "bptt", first)[0])


@pytest.mark.parametrize("mixer", ["lru", "mingru", "sru"])
def test_the_channel_of_a_parameter_is_that_which_it_moves(mixer):
    torch.manual_seed(0)
    layer = build(mixer, 5, dtype=torch.float64)
    found, x = owners(layer), torch.randn(1, 4, 5, dtype=torch.float64)
    _, h = layer(x)
    for name, index in found.index.items():
        for place in (0, len(index) - 1):
            moved = {n: p.detach().clone() for n, p in layer.named_parameters()}
            moved[name].view(len(index), -1)[place] += 0.1
            _, after = torch.func.functional_call(layer, moved, (x,))
            channels = (after != h).any(0).nonzero().flatten().tolist()
            assert channels in ([], [int(index[place])])  # some move an output alone


@pytest.mark.parametrize(
    "mixer", ["gru", "lstm", "gla", "delta_net", "rwkv6", "mamba", "attention"]
)
def test_layers_whose_channels_mix_are_told_apart(mixer):
    with pytest.raises(NotDiagonalError):
        owners(build(mixer, 4))


def test_ownership_draws_no_random_numbers_and_changes_nothing():
    layer = build("lru", 4)
    before, random = {n: p.clone() for n, p in layer.named_parameters()}, torch.get_rng_state()
    owners(layer)
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(p, before[n]) for n, p in layer.named_parameters())


@pytest.mark.unchecked
def test_what_a_rule_cannot_do_is_said_by_the_name_of_the_layer():
    for name, who in (("diagonal_rtrl", "DiagonalRTRL"), ("chunked_rtrl", "ChunkedRTRL")):
        learner = learn.build(name)
        with pytest.raises(
            ArgumentError,
            match=rf"^{who}: every layer must have channels apart, got "
            r"blocks.0.mixer \(GRU\), one that mixes the channels of its state. Use tbptt, snap, "
            r"or rtrl where the model is small.$",
        ):
            learner.check(make("gru"))
        with pytest.raises(ArgumentError, match="whose state grows with what was read"):
            learner.check(make("attention"))
        with pytest.raises(ArgumentError, match="pool must be 'none' or 'last'"):
            learner.check(make("lru", pool="mean"))
        with pytest.raises(ArgumentError, match="reads in both directions"):
            learner.check(make("lru", bidirectional=True))
    with pytest.raises(ArgumentError, match=r"^RTRL: every layer must have a state of fixed size"):
        learn.build("rtrl").check(make("attention"))


@pytest.mark.unchecked
@pytest.mark.parametrize("name", ["rtrl", "diagonal_rtrl"])
def test_derivatives_of_another_model_are_refused(name, batch):
    model, other = make("mingru"), make("mingru", d_model=6)
    learner = learn.build(name)
    gradients(model, name, batch, learner=learner)
    state = other(batch.x)[1]
    with pytest.raises(ArgumentError, match=r"Is it the state of another run\?$"):
        learner.step(other, batch, detach(state), Loop(mse_loss))


def test_frozen_parameters_have_no_gradient_and_no_trace(batch):
    model = make("lru")
    model.blocks[0].mixer.B.requires_grad_(False)
    found, _ = gradients(model, "chunked_rtrl", batch, window=3)
    whole, _ = gradients(model, "bptt", batch)
    close(found, whole, "mixer")
    assert "blocks.0.mixer.B" not in found


def test_padding_and_what_is_not_asked_are_read_alone():
    model = make("mingru")
    x = torch.randn(2, 9, 2, dtype=torch.float64)
    target = torch.randint(3, (2, 9))
    target[:, 2:7] = IGNORE

    def loss(y, target):
        return torch.nn.functional.cross_entropy(y.mT, target, ignore_index=IGNORE)

    found = []
    for name, options in (("bptt", {}), ("chunked_rtrl", {"window": 2})):
        model.zero_grad()
        learn.build(name, options).step(model, Batch(x, target, None, None), None, Loop(loss))
        found.append({n: p.grad.clone() for n, p in model.named_parameters()})
    close(*found, "mixer")


@pytest.mark.parametrize("mixer", ["lru", "mingru", "sru", "unicornn"])
@pytest.mark.parametrize("window", [1, 4])
def test_a_step_is_learned_from_where_the_layer_is(mixer, window):
    model = make(mixer)
    layer = model.blocks[0].mixer
    name, options = ("diagonal_rtrl", {}) if window == 1 else ("chunked_rtrl", {"window": window})
    find = stepped if window == 1 else windowed
    found = replace(find(layer), device=torch.device("meta"))
    model.to("meta")
    there = [
        *found.index.values(),
        *found.pairs.values(),
        *(z for turns in found.turns.values() for z in turns if z is not None),
    ]
    assert {z.device.type for z in there} == {"meta"}
    rule, state = learn.build(name, options), None
    rule._found[layer] = found
    batch = Batch(
        *(torch.empty(2, 2 * window, n, device="meta").double() for n in (2, 3)), None, None
    )
    for _ in range(2):
        state = rule.step(model, batch, state, Loop(mse_loss)).state
    assert {trace.device.type for trace in rule.state_dict().values()} == {"meta"}
