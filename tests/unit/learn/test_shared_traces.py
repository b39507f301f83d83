"""Exact learning of layers whose parameters are shared, against back-propagation in float64."""

import pytest
import torch
from torch.nn.functional import mse_loss

from linrnn import SequenceModel, learn, mixers
from linrnn.errors import ArgumentError
from linrnn.learn import Batch, Loop
from linrnn.learn._exact.owners import NotDiagonalError, real_parts
from linrnn.learn._exact.shared import Shared, has_learned_start, shared
from linrnn.mixers import Mixer, build, load
from linrnn.state import detach
from linrnn.state_spec import real

TIME, ROWS = 11, 3
SHARED = {
    "s4d": {"d_state": 4},
    "dss": {"d_state": 3},
    "dlr": {"d_state": 3},
    "mamba": {"d_state": 2, "d_conv": 2, "expand": 1},
    "rg_lru": {"d_conv": 2},
    "rwkv4": {},
    "gateloop": {},
    "retnet": {"n_heads": 2},
    "gla": {"n_heads": 2},
    "linear_attention": {"n_heads": 2},
}
"""Options of each mixer that keep its state small."""
STARTS = ("sru", "ind_rnn", "columnar", "hgrn")

each = pytest.mark.parametrize("mixer", SHARED)
each_learner = pytest.mark.parametrize(
    ("name", "options"), [("chunked_rtrl", {"window": 4}), ("diagonal_rtrl", {})]
)


def make(mixer, n_layers=1, **options):
    torch.manual_seed(0)
    sizes = {"d_model": 4, "norm": "layer", "pool": "none"}
    options = {"mixer_options": SHARED.get(mixer, {})} | sizes | options
    return SequenceModel(2, 3, mixer=mixer, n_layers=n_layers, **options, dtype=torch.float64)


@pytest.fixture
def batch():
    random = torch.Generator().manual_seed(1)
    x, target = (torch.randn(ROWS, TIME, n, dtype=torch.float64, generator=random) for n in (2, 3))
    reset = torch.zeros(ROWS, TIME, dtype=torch.bool)
    reset[0, 6] = reset[2, 4] = reset[2, 5] = True
    return Batch(x, target, None, reset)


def gradients(model, name, batch, carried=None, **options):
    model.zero_grad(set_to_none=True)
    learner = options.pop("learner", None) or learn.build(name, options)
    learner.check(model)
    step = learner.step(model, batch, carried, Loop(mse_loss))
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}, step


def close(ours, theirs, only="mixer"):
    assert ours.keys() == theirs.keys()
    assert any(only in name for name in ours)
    for name, g in ours.items():
        if only in name:
            torch.testing.assert_close(g, theirs[name], rtol=1e-10, atol=1e-13, msg=name)


@pytest.mark.sampled(1)
@each_learner
@each
def test_the_gradient_is_that_of_back_propagation(mixer, name, options, batch):
    """With sequences that begin inside of a window and at its border, and with times."""
    model = make(mixer)
    learner = learn.build(name, options)
    for dt in (None, torch.rand(ROWS, TIME, dtype=torch.float64) + 0.5):
        if dt is not None and not load(mixer).timed:
            continue
        times = batch._replace(dt=dt)
        whole, _ = gradients(model, "bptt", times)
        close(gradients(model, name, times, learner=learner)[0], whole)
    assert all(isinstance(found, Shared) for found in learner._found.values())
    cut, _ = gradients(model, "tbptt", batch, window=options.get("window", 1))
    whole, _ = gradients(model, "bptt", batch)
    far = max(float((g - cut[n]).norm() / g.norm()) for n, g in whole.items() if "mixer" in n)
    assert far > 1e-3  # there is something across the borders to be learned


@pytest.mark.parametrize("window", [1, 2, 7, TIME, 64])
def test_any_window_gives_the_gradient_of_the_layer(window, batch):
    model = make("gateloop")
    whole, _ = gradients(model, "bptt", batch)
    close(gradients(model, "chunked_rtrl", batch, window=window)[0], whole)


@each_learner
@pytest.mark.parametrize("mixer", ["s4d", "linear_attention"])
def test_of_two_layers_the_upper_one_is_exact(mixer, name, options, batch):
    """The claim for depth: below the last recurrence, credit ends with the window."""
    model = make(mixer, n_layers=2)
    whole, _ = gradients(model, "bptt", batch)
    found, _ = gradients(model, name, batch, **options)
    close(found, whole, "blocks.1.mixer")
    close(found, whole, "head.")
    lower = [n for n in found if "blocks.0.mixer" in n]
    assert any(not torch.allclose(found[n], whole[n], rtol=1e-6) for n in lower)


@pytest.mark.parametrize("mixers_of_stack", ["lru,gla", "gla,lru"])
def test_layers_of_both_kinds_stand_in_one_stack(mixers_of_stack, batch):
    model = make(mixers_of_stack, n_layers=2)
    whole, _ = gradients(model, "bptt", batch)
    close(gradients(model, "chunked_rtrl", batch, window=3)[0], whole, "blocks.1.mixer")


@each_learner
@pytest.mark.parametrize("mixer", STARTS)
def test_what_a_state_begins_from_is_learned_exactly(mixer, name, options, batch):
    """It moves the state in front of the first window, and after each reset."""
    model = make(mixer, mixer_options={"learn_initial": True})
    assert has_learned_start(model.mixers[0])
    assert not has_learned_start(build(mixer, 4))
    for one in (batch, batch._replace(reset=None)):
        whole, _ = gradients(model, "bptt", one)
        close(gradients(model, name, one, **options)[0], whole)


@each_learner
def test_an_answer_at_the_end_reaches_its_cause_before_the_window(name, options):
    model = make("s4d", pool="last")
    x = torch.zeros(1, 30, 2, dtype=torch.float64)
    x[0, 0] = 1
    batch = Batch(x, torch.ones(1, 3, dtype=torch.float64), None, None)
    whole, _ = gradients(model, "bptt", batch)
    close(gradients(model, name, batch, **options)[0], whole)


def test_traces_go_on_from_batch_to_batch(batch):
    model, whole = make("rwkv4"), None
    learner, state, total = learn.build("chunked_rtrl", {"window": 3}), None, {}
    for piece in (slice(0, 5), slice(5, TIME)):
        part = Batch(batch.x[:, piece], batch.target[:, piece], None, batch.reset[:, piece])
        found, step = gradients(model, "chunked_rtrl", part, state, learner=learner)
        share = part.x.shape[1] / TIME
        total = {n: total.get(n, 0) + share * g for n, g in found.items()}
        state = step.state
    whole, _ = gradients(model, "bptt", batch)
    close(total, whole)


def test_frozen_parameters_have_no_gradient(batch):
    model = make("gla")
    model.blocks[0].mixer.decay.down.weight.requires_grad_(False)
    found, _ = gradients(model, "chunked_rtrl", batch, window=3)
    whole, _ = gradients(model, "bptt", batch)
    close(found, whole)
    assert "blocks.0.mixer.decay.down.weight" not in found


@pytest.mark.parametrize("mixer", ["s4d", "retnet", "mamba"])
def test_memory_is_one_trace_for_each_pair_that_ever_meet(mixer, batch):
    """As many numbers as a brute-force Jacobian of a whole sequence has columns that are not 0."""
    model = make(mixer)
    layer = model.mixers[0]
    x = torch.randn(8, 9, 4, dtype=torch.float64)
    named = dict(layer.named_parameters())

    def last(learned):
        _, state = torch.func.functional_call(layer, learned, (x,))
        return torch.cat(real_parts(state), 1).abs().sum(0)

    moved = {n: (g != 0).sum() for n, g in torch.func.jacrev(last)(named).items()}
    found = shared("layer", layer)
    for n, reached in found.by_name.items():
        groups = reached.units.shape[1]
        pairs = (reached.kept.sum(0) * named[n].numel() / groups).sum()
        assert pairs >= moved[n] > 0.99 * pairs - named[n].numel()
    assert {n for n, count in moved.items() if count} == found.by_name.keys()


@pytest.mark.unchecked
@pytest.mark.parametrize("mixer", ["gru", "delta_net", "tanh_rnn"])
def test_layers_whose_channels_move_one_another_are_refused(mixer):
    with pytest.raises(NotDiagonalError, match="one that mixes the channels of its state"):
        shared("layer", build(mixer, 4))


class Average(Mixer):
    """One number moves all of its state; it may read otherwise where that is large."""

    def __init__(self, d_model, *, looks=False):
        super().__init__()
        self.d_model, self.gain = d_model, torch.nn.Parameter(torch.ones(()))
        self.looks = looks

    def state_spec(self):
        return real(d_state=self.d_model)

    def _read(self, x, h, reset):
        steps = []
        for x_t in x.unbind(1):
            large = self.looks and float(h.detach().abs().max()) > 100
            h = (0.5 if large else 0.9) * h + self.gain * x_t
            steps.append(h)
        return torch.stack(steps, 1), h


@pytest.mark.unchecked
def test_a_layer_that_decides_by_numbers_is_refused():
    with pytest.raises(NotDiagonalError, match="one that looks at numbers while it reads"):
        shared("layer", Average(3, looks=True))


@pytest.mark.unchecked
def test_a_layer_that_draws_random_numbers_is_refused():
    with pytest.raises(NotDiagonalError, match="one that draws random numbers while it reads"):
        shared("layer", build("noisy_rnn", 4, {"d_state": 2}).train())


def test_one_number_may_move_all_of_a_state(batch):
    torch.manual_seed(0)
    model = SequenceModel(2, 3, mixer=Average(4), d_model=4, n_layers=1, norm="layer", pool="none")
    model, one = model.double(), batch._replace(reset=None)
    close(gradients(model, "chunked_rtrl", one, window=4)[0], gradients(model, "bptt", one)[0])


@pytest.mark.unchecked
def test_what_does_not_fit_into_memory_is_refused_by_name(batch, monkeypatch):
    model = make("retnet")
    learner = learn.build("chunked_rtrl")
    other = make("gla")
    learner.check(model)
    kept, at_once = learner._found[model.mixers[0]].numbers(model.mixers[0])
    monkeypatch.setattr("linrnn._process.memory._SMALL", 0)
    monkeypatch.setattr("linrnn._process.memory.available", lambda: 2 * at_once * 8)
    learner.check(model)
    with pytest.raises(
        ArgumentError,
        match=rf"^ChunkedRTRL: blocks.0.mixer \(RetNet\): {kept:,} traces a row, and what makes "
        rf"them, of 3 rows must fit into {2 * at_once * 8:,} bytes of memory, got "
        rf"{3 * at_once * 8:,}. Use fewer rows or channels, or tbptt.$",
    ):
        learner.step(model, batch, None, Loop(mse_loss))
    monkeypatch.setattr("linrnn._process.memory.available", lambda: 800)
    with pytest.raises(ArgumentError, match=r"^DiagonalRTRL: .* reaches which of .* must fit into"):
        learn.build("diagonal_rtrl").check(other)


@pytest.mark.unchecked
def test_traces_of_another_model_are_refused(batch):
    model, other = make("s4d"), make("s4d", d_model=6)
    learner = learn.build("chunked_rtrl", {"window": 4})
    gradients(model, "chunked_rtrl", batch, learner=learner)
    with pytest.raises(ArgumentError, match=r"Is it the state of another run\?$"):
        learner.step(other, batch, detach(other(batch.x)[1]), Loop(mse_loss))


SMALL = {"n_heads": 1, "d_state": 2, "d_key": 2, "d_value": 2, "d_inner": 4, "rank": 2}


@pytest.mark.slow
@pytest.mark.parametrize("mixer", mixers.names())
def test_every_layer_is_exact_or_refused(mixer, batch):
    known = {n for n in SMALL if n in load(mixer).__init__.__annotations__}
    few = batch._replace(x=batch.x[:2, :7], target=batch.target[:2, :7], reset=None)
    for options in ({n: SMALL[n] for n in known}, {}):
        try:
            model = make(mixer, mixer_options=options)
            break
        except (ArgumentError, TypeError):
            continue
    try:
        found, _ = gradients(model, "chunked_rtrl", few, window=3)
    except ArgumentError as refused:
        pytest.skip(str(refused))
    close(found, gradients(model, "bptt", few)[0])


@pytest.mark.parametrize(
    "mixer", ["rg_lru", "rwkv4", "gateloop", "linear_attention", "gla", "retnet", "mamba"]
)
def test_the_page_says_how_many_traces_there_are(mixer, root):
    layer = build(mixer, 8)
    size = sum(h.shape[1] for h in real_parts(layer.init_state(1)))
    parameters = sum(p.numel() for p in layer.parameters())
    kept, _ = shared("layer", layer).numbers(layer)
    row = f"| `{mixer}` | {size:,} | {parameters:,} | {kept:,} |"
    assert row in (root / "docs" / "learners.md").read_text(encoding="utf-8")
