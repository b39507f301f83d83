"""Properties of every learner of the catalogue, with every kind of model."""

import copy
from itertools import product

import pytest
import torch

from linrnn import SequenceModel, learn, mixers
from linrnn.errors import ArgumentError
from linrnn.learn import Batch, Loop
from linrnn.state import leaves
from linrnn.tasks._kinds.base import IGNORE

MIXERS = ("lru", "mingru", "lstm", "reservoir")
TIME, ROWS = 11, 3
# so that a sequence of that length is more than one piece
SHORT = {name: {"window": 4} for name in ("tbptt", "chunked_rtrl", "rtrl")}
SHORT |= {"lifted": {"window": 4, "iterations": 3}}
SHORT["ridge"] = {"frozen": True}  # so that it takes layers that would learn

each_learner = pytest.mark.parametrize("name", learn.names())
each_mixer = pytest.mark.parametrize("mixer", MIXERS)
POOLS = ("none", "mean", "last")
each_pool = pytest.mark.parametrize("pool", POOLS)


def generator():
    return torch.Generator().manual_seed(3)


def make(mixer, pool="none"):
    torch.manual_seed(0)
    options = {"mixer": mixer, "d_model": 5, "n_layers": 2, "norm": "layer", "pool": pool}
    return SequenceModel(2, 4, **options, dtype=torch.float64)


def make_batch(pool="none", *, lengths=None, reset=None):
    x = torch.randn(ROWS, TIME, 2, dtype=torch.float64, generator=generator())
    shape = (ROWS, TIME) if pool == "none" else (ROWS,)
    target = torch.randint(4, shape, generator=generator())
    return Batch(x, target, lengths, reset)


def loss_of(y, target):
    if target.ndim == 1:
        return torch.nn.functional.cross_entropy(y, target)
    return torch.nn.functional.cross_entropy(y.flatten(0, 1), target.flatten(), ignore_index=IGNORE)


def build(name, model=None, options=None):
    """The learner, short of what it refuses: that is a test of its own, and no gradient."""
    learner = learn.build(name, SHORT.get(name) if options is None else options)
    if model is not None:
        try:
            learner.check(model)
        except ArgumentError as refused:
            pytest.skip(str(refused))
    return learner


def gradients(learner, model, batch, carried=None):
    """Gradients by name, or the weights where a learner sets them; and the step."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(5)
    step = learner.step(model, batch, carried, Loop(loss_of))
    if not learner.descends:
        assert all(p.grad is None for p in model.parameters())
        moved = copy.deepcopy(model)
        learner.after_update(moved)
        pairs = zip(moved.named_parameters(), model.parameters(), strict=True)
        return {n: p.detach() for (n, p), before in pairs if not torch.equal(p, before)}, step
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, step


def same(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(g, theirs[n]) for n, g in ours.items())


def close(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-9, atol=1e-11, msg=name)


LENGTHS = torch.tensor([TIME, 6, 1])
RESET = torch.zeros(ROWS, TIME, dtype=torch.bool)
RESET[0, 5] = RESET[1, 0] = RESET[1, 8] = True


MORE = {"": {}, "lengths": {"lengths": LENGTHS}, "reset": {"reset": RESET}}
EXACT = [name for name in learn.names() if learn.load(name).exact is not None]


def exact_cases():
    """A third is quick: with a mixer, a learner has every pool, and every pool meets the rest."""
    axes = (EXACT, MIXERS, POOLS, MORE)
    for case in product(*map(enumerate, axes)):
        places, values = zip(*case, strict=True)
        yield pytest.param(*values, marks=[pytest.mark.slow] if sum(places) % 3 else [])


@pytest.mark.parametrize(("name", "mixer", "pool", "word"), list(exact_cases()))
def test_gradient_is_that_of_autograd_where_it_is_exact(name, mixer, pool, word):
    options, more = learn.load(name).exact, MORE[word]
    model, batch = make(mixer, pool), make_batch(pool, **more)
    found, step = gradients(build(name, model, options), model, batch)
    y, after = model(batch.x, **more)
    loss = loss_of(y, batch.target)
    learns = {n: p for n, p in model.named_parameters() if p.requires_grad}
    expected = torch.autograd.grad(loss, list(learns.values()))
    close(found, dict(zip(learns, expected, strict=True)))
    torch.testing.assert_close(step.loss, loss.detach())
    torch.testing.assert_close(step.y, y.detach())
    torch.testing.assert_close(leaves(step.state), [h.detach() for h in leaves(after)])


# the others derive a trace for every parameter, which takes minutes with the largest mixers
OF_ANY_MIXER = sorted({*learn.names()} - {"snap", "rtrl", "chunked_rtrl", "diagonal_rtrl"})


@pytest.mark.sampled
@pytest.mark.parametrize("mixer", mixers.names())
@pytest.mark.parametrize("name", OF_ANY_MIXER)
def test_every_mixer_is_refused_or_learns(name, mixer):
    torch.manual_seed(0)
    sizes = {"d_model": 4, "n_layers": 2, "norm": "layer", "pool": "none"}
    model = SequenceModel(2, 4, mixer=mixer, **sizes, dtype=torch.float64)
    if any(m.random_training for m in model.mixers):
        model.eval()
    options = learn.load(name).exact
    learner = build(name, model, options)
    batch = make_batch(reset=RESET)
    found, step = gradients(learner, model, batch)
    y, _ = model(batch.x, reset=RESET)
    torch.testing.assert_close(step.y, y.detach())
    assert all(g.isfinite().all() for g in found.values())
    if options is not None:
        learns = {n: p for n, p in model.named_parameters() if p.requires_grad}
        loss = loss_of(y, batch.target)
        expected = torch.autograd.grad(loss, list(learns.values()), materialize_grads=True)
        close(found, {n: g for n, g in zip(learns, expected, strict=True) if n in found})
    gradients(learner, model, batch, step.state)  # it goes on from there


@pytest.mark.sampled
@each_learner
@each_mixer
@each_pool
def test_step_leaves_no_history_and_no_weight_changed(name, mixer, pool):
    model, batch = make(mixer, pool), make_batch(pool)
    before = copy.deepcopy(model.state_dict())
    found, step = gradients(build(name, model), model, batch)
    same(dict(model.state_dict()), dict(before))
    assert step.loss.ndim == 0
    assert not any(x.requires_grad for x in (step.loss, step.y, *leaves(step.state)))
    assert found
    assert all(g.isfinite().all() for g in found.values())
    shapes = [h.shape for h in leaves(model.init_state(ROWS))]
    assert [h.shape for h in leaves(step.state)] == shapes
    assert step.y.shape == ((ROWS, TIME, 4) if pool == "none" else (ROWS, 4))


@each_learner
@each_mixer
def test_pieces_with_a_carried_state_answer_as_the_whole(name, mixer):
    model, batch = make(mixer), make_batch()
    _, whole = gradients(build(name, model), model, batch)
    learner, answers, state = build(name, model), [], None
    for piece in (slice(0, 4), slice(4, TIME)):
        part = Batch(batch.x[:, piece], batch.target[:, piece], None, None)
        _, step = gradients(learner, model, part, state)
        state = step.state
        answers.append(step.y)
    torch.testing.assert_close(torch.cat(answers, 1), whole.y)
    torch.testing.assert_close(leaves(state), leaves(whole.state))


@each_learner
@each_mixer
def test_a_learner_goes_on_from_its_state_to_the_same_bits(name, mixer):
    model, batch = make(mixer), make_batch()
    learner = build(name, model)
    _, first = gradients(learner, model, batch)
    remembered = learner.state_dict()
    kept = copy.deepcopy(remembered)
    found, second = gradients(learner, model, batch, first.state)
    again = build(name, model)
    again.load_state_dict(copy.deepcopy(kept))
    repeated, third = gradients(again, model, batch, first.state)
    same(found, repeated)
    same(dict(learner.state_dict()), dict(again.state_dict()))
    assert torch.equal(second.loss, third.loss)
    same(dict(remembered), kept)  # a later step changed nothing in place


@each_learner
def test_a_state_of_another_learner_is_refused(name):
    learner = build(name)
    before = learner.state_dict()
    with pytest.raises(ArgumentError):
        learner.load_state_dict({"of another": torch.zeros(2)})
    same(dict(learner.state_dict()), dict(before))


@each_learner
@each_mixer
def test_nothing_is_learned_across_a_reset(name, mixer):
    model = make(mixer)
    reset = torch.zeros(ROWS, TIME, dtype=torch.bool)
    reset[:, 6] = True
    batch = make_batch(reset=reset)
    batch.target[:, :6] = IGNORE
    found, _ = gradients(build(name, model), model, batch)
    batch.x[:, :6] += 1
    other, _ = gradients(build(name, model), model, batch)
    close(found, other)
    reset[:, 6] = False
    joined, _ = gradients(build(name, model), model, batch)
    assert not all(torch.allclose(g, joined[n], rtol=1e-6) for n, g in found.items())


@pytest.mark.sampled
@each_learner
@each_mixer
@each_pool
def test_padding_is_not_learned_from(name, mixer, pool):
    model, batch = make(mixer, pool), make_batch(pool, lengths=LENGTHS)
    padding = torch.arange(TIME) >= LENGTHS[:, None]
    if pool == "none":
        batch.target[padding] = IGNORE
    found, step = gradients(build(name, model), model, batch)
    batch.x[padding] += 1
    other, after = gradients(build(name, model), model, batch)
    close(found, other)
    torch.testing.assert_close(step.loss, after.loss)


@each_learner
def test_a_loss_that_is_not_finite_is_returned(name):
    """Finding it is the learner's affair no more than what becomes of it."""
    model, batch = make("lru"), make_batch()
    batch.x[0, 0, 0] = torch.nan
    _, step = gradients(build(name, model), model, batch)
    assert not step.loss.isfinite()


@each_learner
def test_unknown_options_are_refused(name):
    with pytest.raises(ArgumentError.__mro__[1], match="no option of learner"):
        learn.build(name, {"nothing_like_it": 1})
