"""Lifted learning: its solutions against back-propagation, its constraints, in float64."""

import itertools
import math

import pytest
import torch
from torch.nn.functional import mse_loss

from linrnn import SequenceModel, learn
from linrnn.errors import ArgumentError
from linrnn.learn import Batch, Loop
from linrnn.learn._parts.descent import descend
from linrnn.learn._parts.lifted import Problem
from linrnn.learn._parts.pieces import Pieces
from linrnn.state import map_state

TIME, ROWS = 10, 3


def make(mixer="tanh_rnn", n_layers=1, **options):
    torch.manual_seed(0)
    options = {"d_model": 4, "norm": "layer", "pool": "none"} | options
    return SequenceModel(2, 3, mixer=mixer, n_layers=n_layers, **options, dtype=torch.float64)


@pytest.fixture
def batch():
    random = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, TIME, 2, dtype=torch.float64, generator=random)
    target = torch.randn(ROWS, TIME, 3, dtype=torch.float64, generator=random)
    return Batch(x, target, None, None)


def gradients(model, name, batch, loop=None, **options):
    model.zero_grad(set_to_none=True)
    learner = learn.build(name, options)
    learner.check(model)
    torch.manual_seed(7)
    learner.step(model, batch, None, loop or Loop(mse_loss))
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def far(ours, theirs):
    return float((ours - theirs).norm() / theirs.norm())


def lifted(model, batch, **options):
    return gradients(model, "lifted", batch, **({"window": 2} | options))


@pytest.mark.parametrize("mixer", ["tanh_rnn", "lru", "lstm"])
def test_the_error_of_the_penalty_falls_as_its_inverse(mixer, batch):
    model = make(mixer)
    whole, rhos = gradients(model, "bptt", batch), (1.0, 10.0, 100.0)
    errors = [far(lifted(model, batch, penalty=rho, iterations=120), whole) for rho in rhos]
    for a, b in itertools.pairwise(errors):
        assert math.log10(b / a) == pytest.approx(-1, abs=0.1)


def test_minus_the_penalised_violations_are_what_back_propagation_passes(batch):
    model = make("gru", 2)
    pieces = Pieces(model, batch, None, 1, mse_loss)
    problem = Problem(pieces, 1e4)
    problem.minimise(slice(None), 300)
    problem.objective()
    states, state = [], None
    for t in range(TIME):
        y, state = model(batch.x[:, t : t + 1], state)
        state = map_state(torch.clone, state)  # what the next step reads, and nothing else does
        for h in state["layers"]:
            h.retain_grad()
        states.append((y, state["layers"]))
    mse_loss(torch.cat([y for y, _ in states], 1), batch.target).backward()
    for gaps, (_, layers) in zip(problem.gaps, states[:-1], strict=True):
        for r, h in zip(gaps, layers, strict=True):
            torch.testing.assert_close(-1e4 * r / ROWS, h.grad, rtol=2e-3, atol=1e-6)


def test_multipliers_make_any_penalty_exact(batch):
    model = make()
    whole = gradients(model, "bptt", batch)
    found = [
        far(lifted(model, batch, method="admm", iterations=60, rounds=n), whole) for n in (1, 2, 4)
    ]
    penalty = lifted(model, batch, iterations=60)
    assert far(lifted(model, batch, method="admm", iterations=60, rounds=1), penalty) == 0
    assert found[1] < found[0] / 10
    assert found[2] < 1e-6


def test_violations_of_a_saddle_point_vanish(batch):
    def loss(y, target):
        return 20 * mse_loss(y, target)

    problem = Problem(Pieces(make(), batch, None, 1, loss), 1.0)
    seen = []
    for _ in range(300):
        problem.saddle_step(0.1)
        seen.append(max(float(r.abs().max()) for parts in problem.gaps for r in parts))
    assert max(seen) > 0.05
    assert max(seen[-20:]) < max(seen) / 10


def test_rounds_of_multipliers_reach_feasibility(batch):
    problem = Problem(Pieces(make(), batch, None, 1, mse_loss), 1.0)
    seen = []
    for _ in range(5):
        problem.minimise(slice(None), 60)
        problem.raise_multipliers()
        seen.append(max(float(r.abs().max()) for parts in problem.gaps for r in parts))
    assert all(b < a / 5 for a, b in itertools.pairwise(seen))
    assert seen[-1] < 1e-5


def test_local_propagation_comes_to_the_gradient(batch):
    model = make()
    whole = gradients(model, "bptt", batch)
    few, many = (lifted(model, batch, method="local", iterations=n) for n in (20, 300))
    assert far(many, whole) < 2e-3 < far(few, whole)


def test_every_block_makes_the_objective_smaller(batch):
    model = make("gru")
    problem = Problem(Pieces(model, batch, None, 1, mse_loss), 0.1)
    seen = [problem.objective().item()]
    for _ in range(3):
        for first in (0, 1):
            others = [h.clone() for (h,) in problem.values[1 - first :: 2]]
            problem.minimise(slice(first, None, 2), 5)
            assert all(map(torch.equal, others, [h for (h,) in problem.values[1 - first :: 2]]))
            seen.append(problem.objective().item())
    assert all(b < a for a, b in itertools.pairwise(seen))
    whole = gradients(model, "bptt", batch)
    at = [far(lifted(model, batch, method="blocks", penalty=10.0, rounds=n), whole) for n in (1, 4)]
    assert at[1] < at[0] / 2


def test_weights_may_move_between_rounds(batch):
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    moved = []

    def update():
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        moved.append(model.encoder.weight.detach().clone())

    loop = Loop(mse_loss, update=update)
    before = mse_loss(model(batch.x)[0], batch.target)
    gradients(model, "lifted", batch, loop, window=2, method="admm", rounds=4, update="round")
    assert len(moved) == 3
    assert not torch.equal(moved[0], moved[1])
    assert mse_loss(model(batch.x)[0], batch.target) < before


def test_memory_is_a_window_and_the_states(batch):
    """With the whole in one piece there is nothing to lift, and the gradient is that of bptt."""
    model = make("lru", 2)
    assert far(lifted(model, batch, window=TIME), gradients(model, "bptt", batch)) < 1e-12


def test_descent_solves_what_has_any_scale():
    random = torch.Generator().manual_seed(2)
    root = torch.randn(6, 6, dtype=torch.float64, generator=random)
    matrix = root @ root.mT + 0.1 * torch.eye(6, dtype=torch.float64)
    wanted = torch.randn(6, dtype=torch.float64, generator=random)
    for scale in (1e-9, 1.0, 1e9):
        values = []

        def objective(parts, scale=scale, values=values):
            d = torch.cat(list(parts)) - wanted
            values.append(scale * d @ matrix @ d)
            return values[-1]

        start = [torch.zeros(2, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)]
        found = torch.cat(descend(objective, start, 60, 1 / scale))
        torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-9)
        assert values[-1] < 1e-12 * values[0]


def test_descent_stays_where_nothing_is_smaller():
    start = [torch.ones(3, dtype=torch.float64)]
    (same,) = descend(lambda parts: (parts[0] - 1).square().sum(), start, 5, 1.0)
    assert torch.equal(same, start[0])
    (same,) = descend(lambda parts: parts[0].sum() * torch.nan, start, 5, 1.0)
    assert torch.equal(same, start[0])


@pytest.mark.unchecked
def test_errors_of_arguments():
    for options, said in (
        ({"penalty": 0.0}, "penalty must be positive and finite, got 0.0"),
        ({"rounds": 0}, "rounds must be an integer of at least 1, got 0"),
    ):
        with pytest.raises(ArgumentError, match=said):
            learn.build("lifted", options)
    with pytest.raises(ArgumentError, match=r"forward in time .* got blocks\.0\.mixer"):
        learn.build("lifted").check(make("gru", bidirectional=True))
