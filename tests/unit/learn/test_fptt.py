"""FPTT: its fixed point, its steps against a loop written out, and a long memory."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy, log_softmax, mse_loss

from linrnn import SequenceModel, learn
from linrnn.errors import ArgumentError
from linrnn.learn import Batch, Loop
from linrnn.state import detach

TIME, ROWS = 13, 3


def make(pool="none", **options):
    torch.manual_seed(0)
    known = {"mixer": "lstm", "d_model": 4, "n_layers": 1, "norm": "layer"}
    return SequenceModel(2, 3, **(known | options), pool=pool, dtype=torch.float64)


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Quadratic(torch.nn.Module):
    """Two weights whose loss is ``(theta - c)^T H (theta - c) / 2``, whatever is read."""

    H = torch.tensor([[2.0, 0.3], [0.3, 0.7]], dtype=torch.float64)
    c = torch.tensor([1.0, -2.0], dtype=torch.float64)

    def __init__(self):
        super().__init__()
        self.theta = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x, state=None):
        gap = self.theta - self.c
        return (gap @ self.H @ gap / 2).expand(1, x.shape[1], 1), torch.zeros(1, 1)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("beta", [0.5, 0.7])
def test_its_fixed_point_is_the_minimum_and_the_slope_there(alpha, beta):
    """With exact steps weights and mean come to the minimum, where the slope is 0."""
    model = Quadratic()
    learner = learn.build("fptt", {"parts": 1, "alpha": alpha, "beta": beta})
    batch = Batch(torch.zeros(1, 1, 1), torch.zeros(1, 1, 1), None, None)
    hessian = model.H + alpha * torch.eye(2)
    for _ in range(400):
        model.theta.grad = None
        learner.step(model, batch, None, Loop(lambda y, target: y.mean()))
        slope = model.H @ (model.theta - model.c).detach()
        with torch.no_grad():
            model.theta -= torch.linalg.solve(hessian, model.theta.grad)
        before = learner.slope["theta"] - alpha * (model.theta - learner.mean["theta"]).detach()
        # at a minimum of the part the slope is that of its loss
        torch.testing.assert_close(before, model.H @ (model.theta - model.c).detach())
    assert slope.abs().max() < 1e-6
    for found, there in ((model.theta, model.c), (learner.mean["theta"], model.c)):
        torch.testing.assert_close(found.detach(), there, rtol=0, atol=1e-6)
    assert learner.slope["theta"].abs().max() < 1e-6


def trained(learner, model, batches, loss, lr=0.1):
    optimizer = torch.optim.SGD(model.parameters(), lr)

    def update():
        optimizer.step()
        optimizer.zero_grad()

    for batch in batches:
        learner.step(model, batch, None, Loop(loss, update=update))
        update()  # what is left is the loop's


@pytest.mark.parametrize("parts", [1, 4])
def test_training_is_a_loop_written_out(parts):
    model, alpha, beta = make(), 0.3, 0.6
    by_hand = copy.deepcopy(model)
    batches = [
        Batch(numbers(ROWS, TIME, 2) + i, numbers(ROWS, TIME, 3), None, None) for i in (0, 1)
    ]
    options = {"parts": parts, "alpha": alpha, "beta": beta}
    trained(learn.build("fptt", options), model, batches, mse_loss)
    weights = list(by_hand.parameters())
    mean = [p.detach().clone() for p in weights]
    slope = [torch.zeros_like(p) for p in weights]
    width = -(-TIME // parts)
    for batch in batches:
        state = None
        for x, target in zip(batch.x.split(width, 1), batch.target.split(width, 1), strict=True):
            y, state = by_hand(x, state)
            state = detach(state)
            gradients = torch.autograd.grad(mse_loss(y, target), weights)
            with torch.no_grad():
                for i, (p, g) in enumerate(zip(weights, gradients, strict=True)):
                    p -= 0.1 * (g + alpha * (p - mean[i]) - slope[i])
                    slope[i] = slope[i] - alpha * (p - mean[i])
                    mean[i] = (1 - beta) * mean[i] + beta * p - beta / alpha * slope[i]
    for ours, theirs in zip(model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_one_part_with_hardly_a_penalty_is_back_propagation():
    batches = [
        Batch(numbers(ROWS, TIME, 2) + i, numbers(ROWS, TIME, 3), None, None) for i in (0, 1)
    ]
    ours, theirs, other = make(), make(), make()
    trained(learn.build("fptt", {"parts": 1, "alpha": 1e-10}), ours, batches, mse_loss)
    trained(learn.build("bptt"), theirs, batches, mse_loss)
    trained(learn.build("fptt", {"parts": 1, "alpha": 1.0}), other, batches, mse_loss)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)
    assert not all(map(torch.allclose, other.parameters(), theirs.parameters()))


def test_early_parts_of_a_sequence_with_one_answer_are_asked_softly():
    """The first two parts learn a mixture of the answer and a uniform one; the last, the answer."""
    model = make("last")
    lengths, target = torch.tensor([TIME, 4, 9]), torch.tensor([0, 2, 1])
    seen = []

    def update():
        seen.append([p.grad.clone() for p in model.parameters()])
        model.zero_grad()

    batch = Batch(numbers(ROWS, TIME, 2), target, lengths, None)
    learn.build("fptt", {"parts": 3}).step(model, batch, None, Loop(cross_entropy, update=update))
    update()
    assert len(seen) == 3  # windows of 5, 5 and 3 steps
    state = [None] * ROWS
    for part, (start, stop) in enumerate(((0, 5), (5, 10), (10, 13))):
        total = 0.0
        for row, length in enumerate(lengths.tolist()):
            if length <= start:
                continue
            x = batch.x[row : row + 1, start : min(stop, length)]
            y, after = model(x, state[row])
            state[row] = detach(after)
            share = 1.0 if length <= stop else stop / TIME
            own = cross_entropy(y, target[row : row + 1])
            total = total + (share * own - (1 - share) * log_softmax(y, 1).mean()) / ROWS
        expected = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
        for ours, theirs in zip(seen[part], expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_soft_answers_become_what_the_model_gave_for_each_class():
    model, target = make("last"), torch.tensor([0, 2, 0])
    learner = learn.build("fptt", {"parts": 2, "soft": "running", "decay": 0.5})
    step = learner.step(
        model, Batch(numbers(ROWS, TIME, 2), target, None, None), None, Loop(cross_entropy)
    )
    given = torch.softmax(step.y.float(), 1)
    expected = torch.full((3, 3), 1 / 3)
    expected[0] = 0.5 / 3 + 0.5 * given[[0, 2]].mean(0)
    expected[2] = 0.5 / 3 + 0.5 * given[1]
    torch.testing.assert_close(learner.answers, expected)
    assert learner.state_dict()["soft"] is learner.answers


def test_its_memory_is_that_of_one_part():
    from test_tbptt import peak

    model, parts = make(d_model=16), {}
    for time in (64, 1024):
        x = torch.randn(2, time, 2, dtype=torch.float64)
        batch = Batch(x, torch.zeros(2, time, dtype=torch.long), None, None)
        parts[time] = peak(model, batch, learn.build("fptt", {"parts": time // 32}))
    assert parts[1024] <= 1.02 * parts[64]


def test_frozen_weights_have_neither_mean_nor_gradient():
    model = make()
    model.encoder.weight.requires_grad_(False)
    learner = learn.build("fptt", {"parts": 2})
    batch = Batch(numbers(ROWS, TIME, 2), numbers(ROWS, TIME, 3), None, None)
    learner.step(model, batch, None, Loop(mse_loss))
    assert model.encoder.weight.grad is None
    assert "encoder.weight" not in learner.mean


@pytest.mark.unchecked
def test_what_it_cannot_do_is_said():
    words = "FPTT: alpha must be above 0, beta in .* got alpha=0"
    for options, message in (
        ({"alpha": 0.0}, words),
        ({"beta": 1.5}, "beta=1.5"),
        ({"parts": 0}, "FPTT: parts must be an integer of at least 1, got 0"),
    ):
        with pytest.raises(ArgumentError, match=message):
            learn.build("fptt", options)
    with pytest.raises(ArgumentError, match=r"reads in both .* Use the learner bptt\.$"):
        learn.build("fptt").check(make(bidirectional=True))
    with pytest.raises(ArgumentError, match=r"a mean and a slope for each parameter, got 1 and 0"):
        learn.build("fptt").load_state_dict({"mean/head.bias": torch.zeros(3)})
    learner = learn.build("fptt")
    learner.load_state_dict({f"{kind}/head.bias": torch.zeros(9) for kind in ("mean", "slope")})
    batch = Batch(numbers(ROWS, TIME, 2), numbers(ROWS, TIME, 3), None, None)
    with pytest.raises(ArgumentError, match=r"one of head.bias and shape \(9,\). Is it the state"):
        learner.step(make(), batch, None, Loop(mse_loss))
