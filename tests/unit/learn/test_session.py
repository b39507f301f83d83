"""A model that learns from an endless stream: what moves its weights, and what does not."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy, mse_loss

from linrnn import SequenceModel, learn
from linrnn.errors import ArgumentError, DTypeError, NonFiniteError, ShapeError
from linrnn.learn import LearningSession, LearningText
from linrnn.state import leaves

RULES = {
    "bptt": {},
    "tbptt": {"window": 4, "update": "window"},
    "chunked_rtrl": {"window": 4},
    "diagonal_rtrl": {"update": "step"},
    "rtrl": {"window": 4},
}
each_rule = pytest.mark.parametrize("rule", RULES)


def make(pool="none", *, tokens=False, seed=0):
    torch.manual_seed(seed)
    sizes = (5, 5) if tokens else (2, 1)
    more = {"encoder": "tokens"} if tokens else {}
    return SequenceModel(
        *sizes, mixer="lru", d_model=6, n_layers=1, norm="layer", pool=pool, **more
    ).eval()


def session(rule="chunked_rtrl", model=None, optimizer=torch.optim.SGD, lr=0.1, **options):
    model = model or make()
    return LearningSession(
        model,
        learn.build(rule, RULES[rule]),
        mse_loss,
        optimizer(model.parameters(), lr),
        **options,
    )


def series(steps, seed=1):
    """Input, and what it was two steps before."""
    x = torch.randn(steps, 2, generator=torch.Generator().manual_seed(seed))
    return x, torch.cat([torch.zeros(2, 1), x[:-2, :1]])


def bits(stream):
    """All that a stream remembers, as one tree that can be compared."""
    found = stream.state_dict()
    moments = [m for means in found["optimizer"]["state"].values() for m in means.values()]
    parts = [*found["model"].values(), *moments, *found["learner"].values()]
    return [*parts, *(found["state"] or {}).values()], found["steps"], found["pieces"]


def same(one, other):
    assert one[1:] == other[1:]
    assert len(one[0]) == len(other[0])
    assert all(torch.equal(x, y) for x, y in zip(one[0], other[0], strict=True))


def test_the_weights_are_those_of_a_loop_written_out():
    ours, theirs = session("bptt", every=8, clip=0.5), make()
    x, target = series(40)
    answers = torch.cat([ours.feed(x[t : t + 20], target[t : t + 20]) for t in (0, 20)])
    state, expected, sgd = None, [], torch.optim.SGD(theirs.parameters(), 0.1)
    for start, stop in ((0, 8), (8, 16), (16, 20), (20, 28), (28, 36), (36, 40)):
        y, state = theirs(x[None, start:stop], state)
        state = torch.utils._pytree.tree_map(torch.Tensor.detach, state)
        sgd.zero_grad()
        mse_loss(y, target[None, start:stop]).backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        sgd.step()
        expected.append(y[0])
    torch.testing.assert_close(answers, torch.cat(expected))
    for p, q in zip(ours.model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q)


@each_rule
def test_every_rule_learns_what_repeats(rule):
    model = make(tokens=True)
    adam = torch.optim.Adam(model.parameters(), 1e-2)
    text = LearningText(model, learn.build(rule, RULES[rule]), adam, every=8)
    means = [float(text.surprise([0, 3, 1, 0, 2] * 8).mean()) for _ in range(12)]
    assert means[-1] < 0.25 * means[0]
    assert text.steps == 12 * 40 - 1


def test_the_surprise_is_that_of_the_weights_before():
    ours, model = make(tokens=True), make(tokens=True)
    adam = torch.optim.Adam(ours.parameters(), 1e-2)
    text = LearningText(ours, learn.build("tbptt"), adam, every=50)
    ids = torch.tensor([3, 1, 4, 1, 0, 2])
    found = text.surprise(ids)
    expected = cross_entropy(model(ids[None, :-1])[0][0], ids[1:], reduction="none")
    torch.testing.assert_close(found[1:], expected / torch.tensor(2.0).log())
    assert found[0].item() == pytest.approx(torch.tensor(5.0).log2().item())
    # what is said of the next line goes on from the last token of this one
    y, _ = text.model(torch.tensor([[2]]), text.state)
    again = text.surprise([4])
    torch.testing.assert_close(again, -(y[0].log_softmax(-1)[:, 4]) / torch.tensor(2.0).log())
    assert text.surprise([]).shape == (0,)


@each_rule
def test_frozen_weights_keep_their_bits_and_the_rest_goes_on(rule):
    frozen, still = session(rule), session(rule, lr=0.0)
    x, target = series(20)
    before = [p.clone() for p in frozen.model.parameters()]
    frozen.frozen = True
    for stream in (frozen, still):
        stream.feed(x[:9], target[:9])
        stream.feed(x[9:], target[9:])
    assert all(map(torch.equal, before, frozen.model.parameters()))
    same(bits(frozen), bits(still))
    frozen.frozen = False
    frozen.feed(x, target)
    assert not all(map(torch.equal, before, frozen.model.parameters()))


@each_rule
def test_a_stream_goes_on_from_what_was_kept(rule):
    x, target = series(40)
    whole = session(rule, optimizer=torch.optim.AdamW, every=8)
    whole.feed(x[:23], target[:23])
    kept = copy.deepcopy(whole.state_dict())
    later = session(rule, make(seed=4), optimizer=torch.optim.AdamW, every=8)
    later.load_state_dict(kept)
    same(bits(later), bits(whole))
    y = whole.feed(x[23:], target[23:])
    assert torch.equal(later.feed(x[23:], target[23:]), y)
    same(bits(later), bits(whole))


@each_rule
@pytest.mark.parametrize("place", [2, 13])
def test_what_is_not_finite_leaves_everything_as_it_was(rule, place):
    stream = session(rule, optimizer=torch.optim.AdamW, every=8)
    x, target = series(40)
    stream.feed(x[:20], target[:20])
    before = copy.deepcopy(bits(stream))
    bad = target[20:].clone()
    bad[place] = 1e30  # its square is infinite
    with pytest.raises(NonFiniteError, match="must be finite"):
        stream.feed(x[20:], bad)
    same(bits(stream), before)
    other = session(rule, optimizer=torch.optim.AdamW, every=8)
    other.feed(x[:20], target[:20])
    assert torch.equal(stream.feed(x[20:], target[20:]), other.feed(x[20:], target[20:]))
    same(bits(stream), bits(other))


@pytest.mark.parametrize("rule", ["diagonal_rtrl", "rtrl"])
def test_steps_without_a_target_count_for_those_after_them(rule):
    """The gradient of a last step by what was read, but not asked about, before it."""
    x, target = series(9)
    asked = session(rule, lr=1.0, clip=0.0)
    asked.feed(x[:8])
    start = make()
    assert all(map(torch.equal, start.parameters(), asked.model.parameters()))
    asked.feed(x[8], target[8])
    y, _ = start(x[None])
    mse_loss(y[:, 8:], target[None, 8:]).backward()
    found = dict(asked.model.named_parameters())
    for name, p in start.named_parameters():
        if rule == "rtrl" or ".mixer." in name:  # there is no trace of what stands below a layer
            torch.testing.assert_close(p - p.grad, found[name], rtol=1e-4, atol=1e-6)


def test_a_model_that_pools_is_asked_once_a_call():
    stream = session("chunked_rtrl", make("last"), every=4)
    x, _ = series(10)
    before = [p.clone() for p in stream.model.parameters()]
    assert stream.feed(x, [0.5]).shape == (1,)
    moved = [p.clone() for p in stream.model.parameters()]
    assert not all(map(torch.equal, before, moved))
    stream.feed(x)
    assert all(map(torch.equal, moved, stream.model.parameters()))


def test_pairs_without_an_end_are_answered_as_they_come():
    x, target = series(30)
    model = make()
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    drawn = []

    def pairs():
        for pair in zip(x, target, strict=True):
            drawn.append(pair)
            yield pair

    rule = learn.build("diagonal_rtrl")
    answers = rule.stream(model, pairs(), loss=mse_loss, optimizer=sgd)
    other = session("diagonal_rtrl")
    for t in range(5):
        torch.testing.assert_close(next(answers), other.feed(x[t], target[t]))
        assert len(drawn) == t + 1


def test_a_pair_without_a_target_is_answered_alone():
    x, target = series(6)
    model = make()
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    pairs = ((x[t], None if t == 3 else target[t]) for t in range(6))
    answers = learn.build("chunked_rtrl").stream(model, pairs, loss=mse_loss, optimizer=sgd)
    for t in range(6):
        before = [p.clone() for p in model.parameters()]
        assert next(answers).shape == (1,)
        assert (t == 3) == all(map(torch.equal, before, model.parameters()))


def test_a_state_of_another_model_changes_nothing():
    stream, other = (
        session(),
        LearningSession(
            SequenceModel(
                2, 1, mixer="lru", d_model=7, n_layers=1, norm="layer", pool="none"
            ).eval(),
            learn.build("tbptt"),
            mse_loss,
            torch.optim.SGD(make().parameters(), 0.1),
        ),
    )
    stream.feed(*series(9))
    before = copy.deepcopy(bits(stream))
    with pytest.raises(ArgumentError, match="the weights must be of this model"):
        stream.load_state_dict(other.state_dict())
    bad = stream.state_dict()
    bad["model"]["head.weight"][0, 0] = torch.nan
    with pytest.raises(ArgumentError, match="must be finite"):
        stream.load_state_dict(bad)
    with pytest.raises(ArgumentError, match="the state must have"):
        stream.load_state_dict({**stream.state_dict(), "state": {}})
    same(bits(stream), before)


def test_the_history_of_the_state_is_cut():
    stream = session("bptt")
    stream.feed(*series(9))
    assert all(h.grad_fn is None and not h.requires_grad for h in leaves(stream.state))


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("error", "words", "call"),
    [
        (ArgumentError, "every must be", lambda: session(every=0)),
        (ArgumentError, "clip must be at least 0 and finite, got -1", lambda: session(clip=-1.0)),
        (ArgumentError, "evaluation mode", lambda: session(model=make_training())),
        (ArgumentError, "channels apart", lambda: session(model=dense())),
        (ShapeError, "target", lambda: session().feed(torch.ones(3, 2), torch.ones(2, 1))),
        (ArgumentError, "finite", lambda: session().feed([1.0, float("nan")], [1.0])),
        (ArgumentError, "finite", lambda: session().feed([1.0, 1.0], [float("inf")])),
        (DTypeError, "x must be", lambda: session().feed(["a"], [1.0])),
        (ArgumentError, "language model", lambda: LearningText(make(), *rule_and_sgd())),
    ],
)
def test_what_cannot_be_learned_from_is_said(error, words, call):
    with pytest.raises(error, match=words):
        call()


def make_training():
    return SequenceModel(2, 1, d_model=4, n_layers=1, dropout=0.1, pool="none").train()


def dense():
    return SequenceModel(2, 1, mixer="lstm", d_model=4, n_layers=1, pool="none").eval()


def rule_and_sgd():
    return learn.build("tbptt"), torch.optim.SGD(make().parameters(), 0.1)


@pytest.mark.parametrize("mixer", ["lru", "mingru"])
def test_traces_across_chunks_are_summed_to_the_same_gradient(mixer):
    """As `bptt` of the whole finds it, of a layer that chunks are read by."""
    torch.manual_seed(0)
    options = {"mixer": mixer, "d_model": 6, "n_layers": 1, "norm": "none", "pool": "none"}
    model = SequenceModel(2, 1, **options, dtype=torch.float64)
    x, target = torch.randn(3, 20, 2).double(), torch.randn(3, 20, 1).double()
    found = []
    for name, window in (("bptt", {}), ("chunked_rtrl", {"window": 6})):
        model.zero_grad()
        batch = learn.Batch(x, target, None, None)
        learn.build(name, window).step(model, batch, None, learn.Loop(mse_loss))
        layer = model.mixers[0]
        found.append([p.grad.clone() for p in layer.parameters()])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
