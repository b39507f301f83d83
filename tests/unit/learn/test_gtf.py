"""Generalised teacher forcing against its equations written out, and what it bounds."""

import math

import pytest
import torch
from torch.nn.functional import mse_loss

from linrnn import SequenceModel, learn
from linrnn.errors import ArgumentError
from linrnn.learn import Batch, Loop

PLAIN = {"n_layers": 1, "block": "bare", "norm": "none", "skip": False, "pool": "none"}


def make(width=2, d_state=3, **options):
    torch.manual_seed(0)
    more = {"mixer": "plrnn", "mixer_options": {"d_state": d_state}, "d_model": 4} | PLAIN | options
    return SequenceModel(width, width, **more, dtype=torch.float64)


def make_batch(width=2, rows=3, time=7, reset=None):
    torch.manual_seed(1)
    x = torch.randn(rows, time + 1, width, dtype=torch.float64)
    return Batch(x[:, :-1], x[:, 1:], None, reset)


def gradients(model):
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("d_state", [2, 3])
def test_gradients_are_those_of_the_equations_written_out(alpha, d_state):
    reset = torch.zeros(3, 7, dtype=torch.bool)
    reset[1, 4] = True
    model, batch = make(d_state=d_state), make_batch(reset=reset)
    step = learn.build("gtf", {"schedule": "fixed", "alpha": alpha}).step(
        model, batch, None, Loop(mse_loss)
    )
    found = gradients(model)
    model.zero_grad()
    p = dict(model.named_parameters())
    A, W, C, h = (p[f"blocks.0.mixer.{n}"] for n in ("A", "W", "C.weight", "C.bias"))
    M, m = (p[f"blocks.0.mixer.out_proj.{n}"] for n in ("weight", "bias"))
    G, c = p["head.weight"] @ M, p["head.weight"] @ m + p["head.bias"]
    back, total = torch.linalg.pinv(G.detach()), 0.0
    for i in range(3):
        for t in range(7):
            u = batch.x[i, t]
            if t and not reset[i, t]:
                z = z + alpha * back @ (batch.x[i, t] - G @ z - c)
                u = G @ z + c
            else:
                z = torch.zeros(d_state).double()
            e = p["encoder.weight"] @ u + p["encoder.bias"]
            z = A * z + W @ z.relu() + C @ e + h
            y = G @ z + c
            torch.testing.assert_close(step.y[i, t], y.detach())
            total = total + (y - batch.target[i, t]).square().mean() / 21
    total.backward()
    torch.testing.assert_close(step.loss, total.detach())
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-12, msg=name)


def run_written_out(model, batch, alpha, constant):
    """The loss of a pulled run, where some of its parts are constants for the gradient."""
    p = dict(model.named_parameters())
    A, W, C, h = (p[f"blocks.0.mixer.{n}"] for n in ("A", "W", "C.weight", "C.bias"))
    M, m = (p[f"blocks.0.mixer.out_proj.{n}"] for n in ("weight", "bias"))
    G, c = p["head.weight"] @ M, p["head.weight"] @ m + p["head.bias"]

    def part(name, value):
        return value.detach() if name in constant else value

    P, answers, z = part("P", torch.linalg.pinv(G)), [], torch.zeros(len(batch.x), 3).double()
    for t, x in enumerate(batch.x.unbind(1)):
        u = x
        if t:
            d = z + part("answer in d", x - z @ G.T - c) @ P.T
            z = part("pulled state", (1 - alpha) * part("state", z) + alpha * d)
            u = part("answer read again", z @ G.T + c)
        e = u @ p["encoder.weight"].T + p["encoder.bias"]
        z = A * z + z.relu() @ W.T + e @ C.T + h
        answers.append(z @ G.T + c)
    return mse_loss(torch.stack(answers, 1), batch.target)


def test_gradients_go_through_all_of_the_run_but_the_map_from_errors_to_states():
    """P is a constant, and nothing else that is computed from the weights."""
    model, batch = make(), make_batch()
    learner = learn.build("gtf", {"schedule": "fixed", "alpha": 0.4})
    step = learner.step(model, batch, None, Loop(mse_loss))
    found = gradients(model)

    def same(constant):
        model.zero_grad()
        loss = run_written_out(model, batch, 0.4, constant)
        torch.testing.assert_close(loss.detach(), step.loss)
        loss.backward()
        pairs = gradients(model).items()
        return all(torch.allclose(found[n], g, rtol=1e-9, atol=1e-12) for n, g in pairs)

    assert same({"P"})
    assert not same(set())
    for part in ("answer in d", "pulled state", "state", "answer read again"):
        assert not same({"P", part})


def test_the_optimal_alpha_is_a_constant_for_the_gradient():
    """It is computed from the weights, and a step by it is one with a fixed alpha of that size."""
    from linrnn.learn.gtf import _Run, optimal

    model, batch = make(), make_batch()
    with torch.no_grad():
        model.blocks[0].mixer.W.mul_(4)  # so that there is something to be held back
    alpha = float(optimal(_Run(model), batch.x, 64))
    assert 0 < alpha < 1
    found = []
    for options in ({"schedule": "optimal"}, {"schedule": "fixed", "alpha": alpha}):
        model.zero_grad()
        learn.build("gtf", options).step(model, batch, None, Loop(mse_loss))
        found.append(gradients(model))
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][name], rtol=1e-12, atol=1e-14, msg=name)


def chaotic(time, rows=2):
    """Two tents that hear one another, of slopes near 1.9; an orbit, and a model that is a bit off.

    ``w -> c - s |w| = c + s w - 2 s relu(w)`` in each channel.
    """
    slope = torch.tensor([1.9, 1.7]).double()
    A, W = slope, torch.diag(-2 * slope) + 0.05 * (1 - torch.eye(2).double())
    h = torch.tensor([0.45, 0.4]).double()
    torch.manual_seed(2)
    w = 0.3 * torch.rand(rows, 2).double()
    path = []
    for _ in range(time + 21):
        path.append(w)
        w = A * w + w.relu() @ W.T + h
    path = torch.stack(path[20:], 1)
    assert path.abs().max() < 2
    model = make(d_state=2, d_model=2)
    with torch.no_grad():
        mixer = model.blocks[0].mixer
        mixer.A.copy_(A - 0.01)
        mixer.W.copy_(W)
        mixer.C.weight.zero_()  # it hears nothing but its own state
        mixer.C.bias.copy_(h)
        model.head.weight.copy_(torch.tensor([[1.0, 0.2], [-0.1, 0.9]]))
        model.head.bias.zero_()
    seen = path @ model.head.weight.detach().T
    return model, Batch(seen[:, :-1], seen[:, 1:], None, None)


def growth(options, time):
    """The norm of the gradient of the last answer's loss with respect to all parameters."""
    model, batch = chaotic(time)

    def last(y, target):
        return (y[:, -1] - target[:, -1]).square().mean()

    learn.build("gtf", options).step(model, batch, None, Loop(last))
    return float(torch.cat([g.flatten() for g in gradients(model).values()]).norm())


def test_gradients_are_bounded_at_the_optimal_alpha_and_explode_in_a_free_run():
    """T18: at 1.7 to 1.9 a step in a free run."""
    times = (5, 10, 20, 40, 80)
    free = [growth({"schedule": "fixed", "alpha": 0.0}, t) for t in times]
    forced = [growth({"schedule": "optimal"}, t) for t in times]
    rate = math.log(free[-1] / free[1]) / (times[-1] - times[1])
    assert math.log(1.6) < rate < math.log(1.95)
    assert max(forced) < 10 * forced[0]
    assert max(forced[2:]) < 3 * forced[1]


@pytest.mark.parametrize("d_state", [2, 3])
def test_the_optimal_alpha_is_that_of_the_largest_singular_value(d_state):
    from linrnn.learn.gtf import _Run, optimal

    model, batch = make(d_state=d_state), make_batch()
    with torch.no_grad():
        model.blocks[0].mixer.W.mul_(8)
    run = _Run(model)
    states = run.missing(batch.x.flatten(0, 1) - run.read_out(torch.zeros(21, d_state).double()))

    def closed(z):
        return run.step(run.read_out(z[None]), z[None])[1][0]

    sizes = []
    for z in states.detach():
        J = torch.autograd.functional.jacobian(closed, z)
        sizes.append(float(torch.linalg.matrix_norm(J, 2)))
        torch.testing.assert_close(run.jacobians(z[None])[0], J)
    assert max(sizes) > 1.5
    assert float(optimal(run, batch.x, 100)) == pytest.approx(1 - 1 / max(sizes))
    assert float(optimal(run, batch.x, 5)) <= 1 - 1 / max(sizes) + 1e-12
    with torch.no_grad():
        model.blocks[0].mixer.W.zero_()
        model.blocks[0].mixer.C.weight.zero_()
    assert float(optimal(_Run(model), batch.x, 100)) == 0.0


def test_a_model_that_answers_right_is_not_pulled():
    model, batch = chaotic(30)
    with torch.no_grad():
        model.blocks[0].mixer.A.add_(0.01)
        z = torch.linalg.solve(model.head.weight, batch.x[:, 0].T).T
    _, state = model(batch.x[:, :1])
    state["layers"][0] = z
    answers = []
    for alpha in (0.0, 0.5, 1.0):
        learner = learn.build("gtf", {"schedule": "fixed", "alpha": alpha})
        answers.append(learner.step(model, batch, state, Loop(mse_loss)).y)
        torch.testing.assert_close(answers[-1][:, :10], batch.target[:, :10], rtol=0, atol=1e-10)
    assert not torch.equal(answers[0], answers[1])


def test_the_annealed_alpha_goes_from_its_start_towards_the_optimal_one():
    model, batch = chaotic(10)
    learner = learn.build("gtf", {"schedule": "annealed", "decay": 0.5})
    seen = []
    for _ in range(12):
        learner.step(model, batch, None, Loop(mse_loss))
        seen.append(float(learner.state_dict()["alpha"]))
    best = seen[-1]
    assert 0.45 < best < 0.5  # 1 - 1 / 1.9
    assert seen[0] == pytest.approx(0.5 * (1 + best), abs=1e-3)
    assert seen == sorted(seen, reverse=True)
    other = learn.build("gtf", {"schedule": "annealed", "decay": 0.5})
    other.load_state_dict(learner.state_dict())
    for one in (learner, other):
        one.step(model, batch, None, Loop(mse_loss))
    assert torch.equal(learner.now, other.now)


@pytest.mark.unchecked
def test_errors():
    for name, value in (("alpha", 1.5), ("decay", 1.0)):
        with pytest.raises(ArgumentError, match=rf"GTF: {name} must be in \[0, 1"):
            learn.build("gtf", {name: value})
    learner = learn.build("gtf")
    for options, what in (
        ({"n_layers": 2}, "2 layers of PLRNN"),
        ({"mixer": "lru", "mixer_options": {}}, "1 layers of LRU"),
        ({"mixer": "co_rnn", "mixer_options": {}}, "a state of several parts"),
        ({"block": "glu"}, "the block glu"),
        ({"skip": True}, "a skip connection"),
        ({"norm": "layer"}, "a norm"),
        ({"dropout": 0.1}, "dropout 0.1"),
        ({"pool": "last"}, "pool last"),
        ({"logit_soft_cap": 3.0}, "a CappedLinear"),
    ):
        with pytest.raises(ArgumentError, match=f"whose state the head reads.*, got {what}. Use"):
            learner.check(make(**options))
    with pytest.raises(ArgumentError, match="got 2 and 3 numbers"):
        learner.check(SequenceModel(2, 3, mixer="plrnn", **PLAIN))
    batch = make_batch()
    with pytest.raises(ArgumentError, match="the target of a step must be the input of the next"):
        learner.step(make(), batch._replace(target=batch.x), None, Loop(mse_loss))
    lengths = torch.tensor([7, 3, 2])
    with pytest.raises(ArgumentError, match="rows must be of equal length and steps even"):
        learner.step(make(), batch._replace(lengths=lengths), None, Loop(mse_loss))
    with pytest.raises(ArgumentError, match=r"must be an alpha in \[0, 1\]"):
        learner.load_state_dict({"alpha": torch.tensor(2.0)})
