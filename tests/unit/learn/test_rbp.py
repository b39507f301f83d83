"""Recurrent back-propagation: against direct solutions and long unrolled loops, in float64."""

import pytest
import torch
from torch.nn.functional import mse_loss

from linrnn import SequenceModel, learn
from linrnn.errors import ArgumentError, NonFiniteError
from linrnn.learn import Batch, Loop
from linrnn.learn._parts.fixed_point import lipschitz_penalty, pushing, solve
from linrnn.learn._parts.held import apart, settle

ROWS, SIZE = 3, 6
SOLVERS = {"neumann": 400, "rbp": 400, "cg": 40}


def generator():
    return torch.Generator().manual_seed(2)


def make(mixer="tanh_rnn", n_layers=1, **options):
    torch.manual_seed(0)
    options = {"d_model": 4, "norm": "layer", "pool": "last"} | options
    model = SequenceModel(2, 3, mixer=mixer, n_layers=n_layers, **options, dtype=torch.float64)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith((".A", "mixer.log_nu")):
                p.copy_(0.8 * p if name.endswith(".A") else torch.full_like(p, -1.0))
    return model


def make_batch(time=5):
    x = torch.randn(ROWS, time, 2, dtype=torch.float64, generator=generator())
    target = torch.randn(ROWS, 3, dtype=torch.float64, generator=generator())
    return Batch(x, target, None, None)


def gradients(model, name, batch, carried=None, **options):
    model.zero_grad(set_to_none=True)
    learner = learn.build(name, options)
    learner.check(model)
    step = learner.step(model, batch, carried, Loop(mse_loss))
    return torch.cat([p.grad.flatten() for p in model.parameters()]), step


def held(batch, steps):
    """The same with its last input for so many more steps."""
    x = torch.cat([batch.x, batch.x[:, -1:].expand(-1, steps, -1)], 1)
    return batch._replace(x=x)


def far(ours, theirs):
    return float((ours - theirs).norm() / theirs.norm())


def linear(radius):
    """A step with a Jacobian of that spectral radius, not normal."""
    matrix = torch.randn(SIZE, SIZE, dtype=torch.float64, generator=generator())
    matrix *= radius / torch.linalg.eigvals(matrix).abs().max()
    before = torch.randn(ROWS, SIZE, dtype=torch.float64, generator=generator())
    before.requires_grad_()
    return matrix, before, before @ matrix.mT


@pytest.mark.parametrize("solver", SOLVERS)
def test_solvers_agree_with_the_direct_one(solver):
    matrix, before, after = linear(0.9)
    b = torch.randn(ROWS, SIZE, dtype=torch.float64, generator=generator())
    expected = torch.linalg.solve(torch.eye(SIZE, dtype=b.dtype) - matrix.mT, b.mT).mT
    direct, left = solve("direct", after, before, b, 1)
    torch.testing.assert_close(direct, expected, rtol=1e-10, atol=1e-12)
    assert left < 1e-12
    found, left = solve(solver, after, before, b, SOLVERS[solver])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert left < 1e-6
    few, more = (solve(solver, after, before, b, n)[1] for n in (2, 30))
    assert more < few


def test_only_the_normal_equations_get_along_with_a_step_that_expands():
    _, before, after = linear(1.4)
    b = torch.randn(ROWS, SIZE, dtype=torch.float64, generator=generator())
    for solver in ("neumann", "rbp"):
        assert solve(solver, after, before, b, 60)[1] > 10
    direct, _ = solve("direct", after, before, b, 1)
    found, left = solve("cg", after, before, b, 60)
    assert far(found, direct) < 1e-6
    assert left < 1e-6


def test_conjugate_gradients_end_where_only_rounding_is_left():
    before = torch.randn(ROWS, SIZE, generator=generator()).requires_grad_()
    after = 0.95 * before.roll(1, 1)
    b = torch.randn(ROWS, SIZE, generator=generator())
    found, left = solve("cg", after, before, b, 200)
    torch.testing.assert_close(found, solve("direct", after, before, b, 1)[0], rtol=0, atol=5e-3)
    assert left < 1e-4


def test_a_linear_recurrence_has_a_closed_form():
    """z = b / (1 - conj(lambda)), channel by channel."""
    a = torch.polar(torch.rand(4, generator=generator()).double(), torch.arange(4.0).double())
    parts = torch.randn(ROWS, 8, dtype=torch.float64, generator=generator()).requires_grad_()
    h = torch.view_as_complex(parts.unflatten(1, (4, 2)))
    after = torch.view_as_real(a * h + 1).flatten(1)
    b = torch.randn(ROWS, 8, dtype=torch.float64, generator=generator())
    found, _ = solve("neumann", after, parts, b, 2000)
    expected = torch.view_as_complex(b.unflatten(1, (4, 2))) / (1 - a.conj())
    torch.testing.assert_close(found, torch.view_as_real(expected).flatten(1))


def test_a_product_with_the_jacobian_is_that_of_the_matrix():
    matrix, before, after = linear(0.9)
    v = torch.randn(ROWS, SIZE, dtype=torch.float64, generator=generator())
    torch.testing.assert_close(pushing(after, before)(v), v @ matrix.mT)


@pytest.mark.parametrize("mixer", ["tanh_rnn", "gru", "lstm", "lru"])
@pytest.mark.parametrize("n_layers", [1, 2])
def test_gradient_is_that_of_a_long_unrolled_loop(mixer, n_layers):
    model, batch = make(mixer, n_layers), make_batch()
    long, step = gradients(model, "bptt", held(batch, 500))
    for solver, terms in {**SOLVERS, "direct": 1}.items():
        options = {"hold": 1000, "settled": 1e-13, "solver": solver, "terms": terms}
        found, ours = gradients(model, "rbp", batch, **options)
        assert far(found, long) < 1e-6, solver
        torch.testing.assert_close(ours.y, step.y)


@pytest.mark.parametrize("terms", [1, 2, 7])
def test_terms_are_steps_of_back_propagation_where_the_state_has_settled(terms):
    model, batch = make("gru", 2), make_batch()
    reading, last = apart(batch)
    state = settle(model, reading, last, None, 3000, 1e-16)
    found, _ = gradients(model, "rbp", last, state, hold=1, terms=terms)
    cut = last._replace(x=last.x.expand(-1, terms + 1, -1))
    expected, _ = gradients(model, "bptt", cut, state)
    assert far(found, expected) < 1e-12
    other, _ = gradients(model, "bptt", held(cut, 1), state)
    assert far(found, other) > 1e-9


def test_padding_is_the_last_input_held():
    x = torch.arange(2 * 4 * 1.0).view(2, 4, 1)
    reset = torch.tensor([[True, False, True, True], [False, False, False, True]])
    dt = torch.arange(8.0).view(2, 4)
    reading, last = apart(Batch(x, x, torch.tensor([2, 4]), reset, dt))
    assert reading.x[..., 0].tolist() == [[0, 1, 1, 1], [4, 5, 6, 7]]
    assert reading.reset.tolist() == [[True, False, False, False], [False, False, False, True]]
    assert reading.dt.tolist() == [[0, 1, 1, 1], [4, 5, 6, 7]]
    assert last.x[:, 0, 0].tolist() == [1, 7]
    assert last.dt[:, 0].tolist() == [1, 7]
    assert reading.lengths is None


def expanding():
    """A network at 0, which is a fixed point that every change leaves."""
    model = make("tanh_rnn", skip=False, norm="none", block="bare")
    layer = model.blocks[0].mixer
    with torch.no_grad():
        layer.A.copy_(1.5 * torch.eye(4))
        model.encoder.bias.zero_()
        layer.b.zero_()
    return model, make_batch()._replace(x=torch.zeros(ROWS, 1, 2, dtype=torch.float64))


def test_a_solver_that_diverges_is_reported():
    model, batch = expanding()
    for solver in ("neumann", "rbp"):
        with pytest.raises(NonFiniteError):
            gradients(model, "rbp", batch, solver=solver, terms=30)
    found, _ = gradients(model, "rbp", batch, solver="cg", terms=30)
    expected, _ = gradients(model, "rbp", batch, solver="direct")
    assert far(found, expected) < 1e-6


@pytest.mark.parametrize("columns", ["signed", "absolute"])
def test_penalty_is_that_of_the_jacobian_with_its_gradient(columns):
    before = torch.randn(ROWS, 4, dtype=torch.float64, generator=generator())
    A = 2 * torch.randn(4, 4, dtype=torch.float64, generator=generator())

    def penalty(A):
        h = before.clone().requires_grad_()
        return lipschitz_penalty(torch.tanh(h @ A.mT), h, 0.3, columns)

    rows = []
    for h in before:
        J = torch.autograd.functional.jacobian(lambda h: torch.tanh(A @ h), h)
        sums = (J if columns == "signed" else J.abs()).sum(0)
        rows.append((sums - 0.3).clamp(min=0).square().sum())
    torch.testing.assert_close(penalty(A), torch.stack(rows).mean())
    assert torch.autograd.gradcheck(penalty, A.requires_grad_(), atol=1e-6)


def test_the_penalty_makes_a_random_network_contract():
    torch.manual_seed(0)
    n = 12
    A = (2.5 * torch.randn(n, n, dtype=torch.float64) / n**0.5).requires_grad_()
    u = torch.randn(8, n, dtype=torch.float64)

    def step(h):
        return torch.tanh(h @ A.mT + u)

    def radius():
        h = torch.zeros_like(u)
        for _ in range(100):
            h = step(h)
        D = 1 - step(h) ** 2
        return max(float(torch.linalg.eigvals(d[:, None] * A).abs().max()) for d in D)

    optimizer = torch.optim.Adam([A], 0.02)
    with torch.no_grad():
        before = radius()
    for _ in range(150):
        with torch.no_grad():
            h = torch.zeros_like(u)
            for _ in range(30):
                h = step(h)
        h.requires_grad_()
        optimizer.zero_grad()
        lipschitz_penalty(step(h), h, 0.9, "absolute").backward()
        optimizer.step()
    with torch.no_grad():
        assert before > 1.2
        assert radius() < 1


def test_the_penalty_adds_its_gradient_to_that_of_the_loss():
    model, batch = make("gru"), make_batch()
    options = {"hold": 500, "settled": 1e-13}
    plain, _ = gradients(model, "rbp", batch, **options)
    penalised, step = gradients(
        model, "rbp", batch, **options, lipschitz=0.5, bound=0.01, columns="absolute"
    )
    h = step.state["layers"][0].detach().requires_grad_()
    last = apart(batch)[1]
    _, after = model(last.x, {**step.state, "layers": [h]})
    penalty = lipschitz_penalty(after["layers"][0], h, 0.01, "absolute")
    expected = torch.autograd.grad(
        0.5 * penalty, list(model.parameters()), materialize_grads=True, allow_unused=True
    )
    assert far(penalised - plain, torch.cat([g.flatten() for g in expected])) < 1e-6


@pytest.mark.unchecked
def test_errors():
    for options, said in (
        ({"hold": 0}, "hold must be an integer of at least 1, got 0"),
        ({"lipschitz": -1.0}, "lipschitz must be at least 0 and finite, got -1.0"),
    ):
        with pytest.raises(ArgumentError, match=said):
            learn.build("rbp", options)
    for model, said in (
        (make(pool="mean"), "must answer once a sequence, from its last step, got pool 'mean'"),
        (make("attention"), r"state that can settle, got blocks\.0\.mixer \(Attention\)"),
        (make(dropout=0.1), r"no random numbers, .* got blocks\.0\.dropout \(Dropout\)"),
        (make(bidirectional=True), r"forward in time .* got blocks\.0\.mixer"),
    ):
        with pytest.raises(ArgumentError, match=said):
            learn.build("rbp").check(model)
    model, batch = expanding()
    with pytest.raises(NonFiniteError, match=r"the solver neumann must come closer .* after 20"):
        gradients(model, "rbp", batch)
    with torch.no_grad():
        model.blocks[0].mixer.A.copy_(-3 * torch.eye(4))
        model.blocks[0].mixer.b.fill_(0.1)
    state = model.init_state(ROWS, dtype=torch.float64)
    with pytest.raises(NonFiniteError, match="the state must settle where the last input is held"):
        gradients(model, "rbp", batch, state)
