"""Predictive coding against back-propagation, and against its equations written out, in float64."""

import itertools

import pytest
import torch
from torch.nn.functional import mse_loss

from linrnn import SequenceModel, learn
from linrnn.errors import ArgumentError
from linrnn.learn import Batch, Loop
from linrnn.learn._parts.pieces import Pieces
from linrnn.learn.predictive_coding import free_energy
from linrnn.mixers import build

TIME, ROWS = 9, 3


def make(mixer="gru", n_layers=2, **options):
    torch.manual_seed(0)
    options = {"d_model": 4, "norm": "layer", "pool": "none"} | options
    return SequenceModel(2, 3, mixer=mixer, n_layers=n_layers, **options, dtype=torch.float64)


@pytest.fixture
def batch():
    random = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, TIME, 2, dtype=torch.float64, generator=random)
    target = torch.randn(ROWS, TIME, 3, dtype=torch.float64, generator=random)
    reset = torch.zeros(ROWS, TIME, dtype=torch.bool)
    reset[0, 4] = reset[2, 6] = True
    return Batch(x, target, None, reset)


def gradients(model, name, batch, **options):
    model.zero_grad(set_to_none=True)
    learner = learn.build(name, options)
    learner.check(model)
    torch.manual_seed(7)
    learner.step(model, batch, None, Loop(mse_loss))
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def far(ours, theirs):
    return float((ours - theirs).norm() / theirs.norm())


MIXERS = ("lru", "gru", "lstm", "tanh_rnn", "delta_net", "attention", "aft", "s4d")


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("options", [{}, {"window": 4}, {"iterations": 150, "rate": 0.2}], ids=str)
def test_settled_errors_are_those_of_back_propagation(mixer, options, batch):
    model = make(mixer)
    assert far(
        gradients(model, "predictive_coding", batch, **options), gradients(model, "bptt", batch)
    ) < (1e-8)


def test_errors_are_found_by_the_published_sweep(batch):
    """Its weight changes, with a loop for inference, for a network without bias or readout."""
    torch.manual_seed(0)
    layer = build("tanh_rnn", 3, {"bias": False}, dtype=torch.float64)
    model = SequenceModel(
        2, 3, mixer=layer, d_model=3, n_layers=1, norm="none", pool="none", skip=False,
        block="bare", dtype=torch.float64,
    )  # fmt: skip
    n, rate = 3, 0.4
    x, target = batch.x, batch.target
    gradients(model, "predictive_coding", Batch(x, target, None, None), iterations=n, rate=rate)
    A, B, C, D = (getattr(layer, name).detach() for name in "ABCD")
    u = model.encoder(x).detach()
    states = [torch.zeros(ROWS, 3, dtype=torch.float64)]
    for t in range(TIME):
        states.append(torch.tanh(states[-1] @ A.mT + u[:, t] @ B.mT))
    W = model.head.weight.detach()
    expected, e = torch.zeros_like(A), torch.zeros(ROWS, 3, dtype=torch.float64)
    for t in reversed(range(TIME)):
        y = (states[t + 1] @ C.mT + D * u[:, t]) @ W.mT + model.head.bias.detach()
        e_y = (target[:, t] - y) * 2 / target.numel()  # of the mean of squares
        drive, moved = e_y @ W @ C, (1 - states[t + 1] ** 2)
        e_all = drive + e  # what the step at hand explains, and what was passed to its state
        expected -= (e_all * moved).mT @ states[t]
        passed, e = (e_all * moved) @ A, torch.zeros_like(e)
        for _ in range(n):
            e = e - rate * (e - passed)
    torch.testing.assert_close(layer.A.grad, expected, rtol=1e-10, atol=1e-14)


def test_longer_inference_comes_closer(batch):
    model = make("lru", 2)
    whole = gradients(model, "bptt", batch)
    found = [
        torch.cosine_similarity(
            gradients(model, "predictive_coding", batch, iterations=n, rate=0.2), whole, 0
        )
        for n in (1, 2, 4, 8, 16, 32)
    ]
    assert all(a < b for a, b in itertools.pairwise(found))
    assert found[0] < 0.995
    assert found[-1] > 0.99999


def test_free_energy_falls_as_states_move(batch):
    pieces = Pieces(make("gru", 1), batch, None, 1, lambda y, t: 50 * mse_loss(y, t))
    values, seen = pieces.values(), []
    for _ in range(40):
        energy = free_energy(pieces, values)
        seen.append(energy.item())
        flat = [h for parts in values for h in parts]
        found = torch.autograd.grad(ROWS * energy, flat)
        remaining = iter(found)
        values = [
            [(h - 0.1 * next(remaining)).detach().requires_grad_() for h in parts]
            for parts in values
        ]
    assert all(b < a for a, b in itertools.pairwise(seen))
    assert seen[-1] < 0.997 * seen[0]


def test_moving_predictions_learn_at_the_states_they_end_in(batch):
    model, rate, n = make("tanh_rnn", 1), 0.1, 25
    ours = gradients(
        model, "predictive_coding", batch, iterations=n, rate=rate, predictions="moving"
    )
    pieces = Pieces(model, batch, None, 1, mse_loss)
    values = pieces.values()
    for _ in range(n):
        found = torch.autograd.grad(ROWS * free_energy(pieces, values), [p[0] for p in values])
        values = [
            [(h - rate * g).detach().requires_grad_()]
            for (h,), g in zip(values, found, strict=True)
        ]
    expected = torch.autograd.grad(free_energy(pieces, values), list(model.parameters()))
    assert far(ours, torch.cat([g.flatten() for g in expected])) < 1e-10
    whole = gradients(model, "bptt", batch)
    assert 1e-4 < far(ours, whole) < 0.1


def test_dropout_and_batch_norm_are_the_same_in_every_reading(batch):
    model = make("gru", 2, norm="batch", dropout=0.3)
    pieces = Pieces(model, batch, None, 2, mse_loss)
    before = {n: b.clone() for n, b in model.named_buffers()}
    values = pieces.values()
    heard = pieces.read(values)
    again = pieces.read(values)
    assert torch.equal(heard.loss, again.loss)
    torch.testing.assert_close(heard.answers, pieces.first.answers)
    gaps = [r.abs().max().item() for parts in pieces.gaps(values, heard) for r in parts]
    assert max(gaps) < 1e-14
    assert all(torch.equal(b, before[n]) for n, b in model.named_buffers())


@pytest.mark.unchecked
def test_errors_of_arguments():
    for options, said in (
        ({"rate": 1.5}, "rate must be at most 1, got 1.5"),
        ({"iterations": 0}, "iterations must be an integer of at least 1, got 0"),
    ):
        with pytest.raises(ArgumentError, match=said):
            learn.build("predictive_coding", options)
    model = make("gru", bidirectional=True)
    with pytest.raises(ArgumentError, match=r"forward in time .* got blocks\.0\.mixer"):
        learn.build("predictive_coding").check(model)
