"""The read-out in closed form against least squares written out."""

import numpy as np
import pytest
import torch

from linrnn import SequenceModel, learn
from linrnn.errors import ArgumentError
from linrnn.learn import Batch, Loop
from linrnn.tasks._kinds.base import IGNORE

ROWS, TIME = 3, 40


def make(pool="none", d_output=2, **options):
    torch.manual_seed(0)
    options = {"mixer": "reservoir", "d_model": 6, "n_layers": 2, "dropout": 0.5} | options
    return SequenceModel(2, d_output, pool=pool, **options, dtype=torch.float64)


def make_batch(shape, classes=None, **more):
    torch.manual_seed(1)
    x = torch.randn(ROWS, TIME, 2, dtype=torch.float64)
    target = torch.randint(classes, shape) if classes else torch.randn(*shape).double()
    return Batch(x, target, more.get("lengths"), more.get("reset"))


def loss(y, target):
    """A loss that no test here uses."""
    return y.sum() * 0


def fit(learner, model, *batches):
    for batch in batches:
        learner.step(model, batch, None, Loop(loss))
        learner.after_update(model)
    head = model.head
    bias = None if head.bias is None else head.bias.detach().numpy()
    return head.weight.detach().numpy().T, bias


def features(model, batch):
    with torch.no_grad():
        more = {"lengths": batch.lengths, "reset": batch.reset}
        given = {name: v for name, v in more.items() if v is not None}
        return model.eval().features(batch.x, **given)[0].numpy()


def least_squares(z, y, penalty, bias=True):
    """By the singular values of the rows, with the penalty as more rows."""
    mean, middle = (z.mean(0), y.mean(0)) if bias else (0 * z[0], 0 * y[0])
    z, y = z - mean, y - middle
    more = np.diag(np.sqrt(penalty * np.square(z).sum(0)))
    W = np.linalg.lstsq(np.concatenate([z, more]), np.pad(y, ((0, len(more)), (0, 0))))[0]
    return W, middle - mean @ W


@pytest.mark.parametrize("bias", [True, False])
def test_it_is_a_ridge_on_what_the_head_reads(bias):
    model, batch = make(head_bias=bias), make_batch((ROWS, TIME, 2))
    W, b = fit(learn.build("ridge", {"penalty": 1e-2}), model, batch)
    z = features(model, batch).reshape(-1, 6)
    expected, offset = least_squares(z, batch.target.numpy().reshape(-1, 2), 1e-2, bias)
    np.testing.assert_allclose(W, expected, rtol=1e-9, atol=1e-12)
    if bias:
        np.testing.assert_allclose(b, offset, rtol=1e-9, atol=1e-12)


def test_classes_are_one_and_the_others_zero():
    lengths = torch.tensor([TIME, 6, 1])
    model, batch = make("last", 4), make_batch((ROWS,), 4, lengths=lengths)
    W, b = fit(learn.build("ridge", {"penalty": 0.1}), model, batch)
    expected, offset = least_squares(features(model, batch), np.eye(4)[batch.target], 0.1)
    np.testing.assert_allclose(W, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(b, offset, rtol=1e-9, atol=1e-12)


def test_what_is_not_asked_about_padded_or_washed_out_is_not_fitted():
    lengths, reset = torch.tensor([TIME, 30, 20]), torch.zeros(ROWS, TIME, dtype=torch.bool)
    reset[0, 25] = reset[2, 3] = True
    batch = make_batch((ROWS, TIME), 4, lengths=lengths, reset=reset)
    batch.target[1, 10:14] = IGNORE
    model = make(d_output=4)
    W, _ = fit(learn.build("ridge", {"penalty": 0.1, "washout": 5}), model, batch)
    asked = [(0, t) for t in (*range(5, 25), *range(30, 40))]
    asked += [(1, t) for t in (*range(5, 10), *range(14, 30))]
    asked += [(2, t) for t in range(8, 20)]
    i, t = np.array(asked).T
    z, y = features(model, batch)[i, t], np.eye(4)[batch.target.numpy()[i, t]]
    np.testing.assert_allclose(W, least_squares(z, y, 0.1)[0], rtol=1e-9, atol=1e-12)


def test_a_carried_state_has_no_washout():
    model, batch, learner = make(), make_batch((ROWS, TIME, 2)), learn.build("ridge")
    learner.washout = 15
    whole = fit(learner, model, batch)
    learner, state = learn.build("ridge", {"washout": 15}), None
    for steps in (slice(0, 20), slice(20, 30), slice(30, TIME)):
        part = Batch(batch.x[:, steps], batch.target[:, steps], None, None)
        state = learner.step(model, part, state, Loop(loss)).state
    learner.after_update(model)
    np.testing.assert_allclose(model.head.weight.detach().numpy().T, whole[0], rtol=1e-8)


def test_batches_add_up_and_are_counted_twice_to_no_effect():
    whole = fit(learn.build("ridge"), make(), make_batch((ROWS, TIME, 2)))
    batch = make_batch((ROWS, TIME, 2))
    rows = [Batch(batch.x[i : i + 1], batch.target[i : i + 1], None, None) for i in range(ROWS)]
    parts = fit(learn.build("ridge"), make(), *rows)
    twice = fit(learn.build("ridge"), make(), batch, batch)
    for other in (parts, twice):
        np.testing.assert_allclose(other[0], whole[0], rtol=1e-7)
        np.testing.assert_allclose(other[1], whole[1], rtol=1e-7)


def test_a_feature_that_never_moves_is_left_out():
    model, batch = make(skip=False), make_batch((ROWS, TIME, 2))
    with torch.no_grad():
        gates = model.blocks[-1].glu.linear
        for part in (gates.weight, gates.bias):
            part[0] = part[6] = 0.0
        gates.bias[0] = 1e3
    found = features(model, batch)
    assert np.ptp(found[..., 0]) == 0
    assert found[..., 0].max() > 100
    W, _ = fit(learn.build("ridge"), model, batch)
    assert not W[0].any()
    assert np.abs(W[1:]).min() > 0


def test_a_model_reads_as_in_evaluation_and_stays_in_training():
    model, batch = make(norm="batch"), make_batch((ROWS, TIME, 2))
    model.train()
    before = {n: h.clone() for n, h in model.named_buffers()}
    step = learn.build("ridge").step(model, batch, None, Loop(loss))
    assert all(part.training for part in model.modules())
    assert all(torch.equal(h, before[n]) for n, h in model.named_buffers())
    torch.testing.assert_close(step.y, model.eval()(batch.x)[0].detach(), rtol=0, atol=0)


@pytest.mark.unchecked
def test_errors():
    with pytest.raises(ArgumentError, match="Ridge: penalty must be positive and finite, got 0"):
        learn.build("ridge", {"penalty": 0.0})
    with pytest.raises(ArgumentError, match="Ridge: washout must be at least 0, got -1"):
        learn.build("ridge", {"washout": -1})
    ridge = learn.build("ridge")
    with pytest.raises(ArgumentError, match=r"all that learns, got blocks.0.mixer \(LRU\) with nu"):
        ridge.check(make(mixer="lru"))
    learn.build("ridge", {"frozen": True}).check(make(mixer="lru"))
    with pytest.raises(
        ArgumentError, match=r"got blocks.0.mixer \(Reservoir\) with out_proj.weigh"
    ):
        ridge.check(make(mixer_options={"d_state": 9}))
    with pytest.raises(ArgumentError, match="separate linear map, got CappedLinear"):
        ridge.check(make(logit_soft_cap=3.0))
    tied = SequenceModel(5, 5, mixer="reservoir", encoder="tokens", tie_embeddings=True)
    with pytest.raises(ArgumentError, match="separate linear map, got the embedding too"):
        ridge.check(tied)
    with pytest.raises(ArgumentError, match=r"numbers of the shape \(3, 40, 2\) of the answers"):
        ridge.step(make(), make_batch((ROWS, TIME, 1)), None, Loop(loss))
    long = learn.build("ridge", {"washout": TIME})
    with pytest.raises(ArgumentError, match="washout must be below the 40 steps"):
        long.step(make(), make_batch((ROWS, TIME, 2)), None, Loop(loss))
    with pytest.raises(ArgumentError, match="washout must be 0 where a model answers once"):
        long.step(make("mean"), make_batch((ROWS, 2)), None, Loop(loss))
    fit(ridge, make(), make_batch((ROWS, TIME, 2)))
    with pytest.raises(ArgumentError, match=r"sums must be of \(7, 3\) features and answers"):
        fit(ridge, make(d_output=3), make_batch((ROWS, TIME, 3)))
