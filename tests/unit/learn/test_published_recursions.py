"""Rules where they are biased, against their published recursions as loops over float64 numbers."""

from dataclasses import dataclass

import pytest
import torch
from test_traces import ROWS, TIME, gradients, make
from torch.func import jacrev, vmap
from torch.nn.functional import mse_loss

from linrnn import SequenceModel, learn
from linrnn.learn import Batch
from linrnn.mixers import build
from linrnn.state import detach

WIDTH = 4


@pytest.fixture
def batch():
    random = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, TIME, 2, dtype=torch.float64, generator=random)
    target = torch.randn(ROWS, TIME, 3, dtype=torch.float64, generator=random)
    reset = torch.zeros(ROWS, TIME, dtype=torch.bool)
    reset[0, 7] = reset[2, 5] = reset[2, 6] = True
    return Batch(x, target, None, reset)


def tanh_rnn(p, h, x):
    h = torch.tanh(p["A"] @ h + p["B"] @ x + p["b"])
    return h, p["C"] @ h + p["D"] * x


def gates(p, h, x):
    of_x = p["weight_ih_l0"] @ x + p["bias_ih_l0"]
    return of_x, p["weight_hh_l0"] @ h + p["bias_hh_l0"]


def gru(p, h, x):
    (r, z, n), (r_h, z_h, n_h) = (g.chunk(3) for g in gates(p, h, x))
    z, r = torch.sigmoid(z + z_h), torch.sigmoid(r + r_h)
    h = (1 - z) * torch.tanh(n + r * n_h) + z * h
    return h, h


def lstm(p, state, x):
    c, h = state.chunk(2)
    i, f, g, o = sum(gates(p, h, x)).chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return torch.cat([c, h]), h


CELLS = {"tanh_rnn": tanh_rnn, "gru": gru, "lstm": lstm}


@dataclass
class Steps:
    """Derivatives of every step of one layer, in a model that answers at each.

    Attributes:
        J: (rows, time, size, size), of the state by that before; 0 where a row begins anew.
        m: by parameter (rows, time, size, numbers), of the state, that before held fixed.
        g: (rows, time, size), of the loss by the state after, through the step's own answer.
        direct: by parameter (numbers), of the loss with the states held fixed.
    """

    J: torch.Tensor
    m: dict
    g: torch.Tensor
    direct: dict


def steps_of(model, batch, mixer):
    """By hand: a cell written out, and the loss of each step through its own answer alone."""
    step, layer = CELLS[mixer], model.blocks[0].mixer
    p = {n: v.detach() for n, v in layer.named_parameters()}
    heard = []

    def cut(layer, args, given):  # the answers as leaves, to see what the loss gives to each
        heard.extend([args[0].detach(), given[0].detach().requires_grad_()])
        return heard[1], given[1]

    handle = layer.register_forward_hook(cut)
    y, _ = model(batch.x, reset=batch.reset)
    handle.remove()
    (credit,) = torch.autograd.grad(mse_loss(y, batch.target), heard[1])
    size = WIDTH * (2 if mixer == "lstm" else 1)
    h, found = torch.zeros(ROWS, size, dtype=torch.float64), []
    begins = torch.zeros(ROWS, TIME, dtype=torch.bool) if batch.reset is None else batch.reset
    for t in range(TIME):
        h = torch.where(begins[:, t, None], 0.0, h)
        x = heard[0][:, t]
        by_p, by_h = vmap(jacrev(lambda p, h, x: step(p, h, x)[0], (0, 1)), (None, 0, 0))(p, h, x)
        after = vmap(lambda h, x: step(p, h, x)[0])(h, x)
        of_answer = vmap(jacrev(lambda p, h, x, t=t: answer(mixer, p, h, x), (0, 1)), (None, 0, 0))
        read_p, read_h = of_answer(p, after, x)
        torch.testing.assert_close(
            vmap(lambda h, x: answer(mixer, p, h, x))(after, x), heard[1][:, t].detach()
        )
        g = torch.einsum("bi,bij->bj", credit[:, t], read_h)
        direct = {n: torch.tensordot(credit[:, t], r, 2).flatten() for n, r in read_p.items()}
        by_h = torch.where(begins[:, t, None, None], 0.0, by_h)
        found.append((by_h, {n: m.flatten(2) for n, m in by_p.items()}, g, direct))
        h = after
    J, m, g, direct = zip(*found, strict=True)
    together = {n: torch.stack([of[n] for of in m], 1) for n in p}
    return Steps(
        torch.stack(J, 1), together, torch.stack(g, 1), {n: sum(d[n] for d in direct) for n in p}
    )


def answer(mixer, p, h, x):
    """The output of a layer, from the state after the step."""
    if mixer == "tanh_rnn":
        return p["C"] @ h + p["D"] * x
    return h if mixer == "gru" else h.chunk(2)[1]


def patterns(steps, name, n, units=None):
    """(size, numbers): what a parameter reaches in n steps, of derivatives that are not 0."""
    reached = (steps.m[name] != 0).flatten(0, 1).any(0)
    mixing = (steps.J != 0).flatten(0, 1).any(0)
    for _ in range(n - 1):
        reached = reached | ((mixing.double() @ reached.double()) > 0)
    if units:
        reached = reached.unflatten(0, (-1, units)).any(0).repeat(len(reached) // units, 1)
    return reached.double()


def published_snap(steps, n, *, last_step="masked", units=None):
    """``E <- P (J E + m)``, and the loss of a step sees E, or what is before P."""
    found = {}
    for name, m in steps.m.items():
        P, E, total = patterns(steps, name, n, units), torch.zeros_like(m[:, 0]), 0
        for t in range(TIME):
            whole = steps.J[:, t] @ E + m[:, t]
            E = P * whole
            seen = E if last_step == "masked" else whole
            total = total + torch.einsum("bs,bsp->p", steps.g[:, t], seen)
        found[name] = total + steps.direct[name]
    return found


def compare(found, expected, least=0.0, whole=None):
    """Equal to the published numbers, which are so far from the whole gradient at least."""
    far = 0.0
    for name, g in expected.items():
        ours = found[f"blocks.0.mixer.{name}"]
        torch.testing.assert_close(ours.flatten(), g, rtol=1e-9, atol=1e-12, msg=name)
        if whole is not None:
            far = max(far, float((g - whole[f"blocks.0.mixer.{name}"].flatten()).abs().max()))
    assert far >= least


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("mixer", list(CELLS))
def test_snap_lets_the_loss_see_what_is_kept_alone(mixer, n, batch):
    model = make(mixer)
    whole, _ = gradients(model, "bptt", batch)
    found, _ = gradients(model, "snap", batch, n=n)
    expected = published_snap(steps_of(model, batch, mixer), n)
    compare(found, expected, 1e-3 if n == 1 else 0.0, whole)


@pytest.mark.parametrize("mixer", list(CELLS))
def test_the_options_of_snap_keep_more(mixer, batch):
    model = make(mixer)
    steps = steps_of(model, batch, mixer)
    masked = gradients(model, "snap", batch)[0]
    for options, by_hand in (
        ({"last_step": "whole"}, {"last_step": "whole"}),
        ({"parts": "together"}, {"units": WIDTH}),
        ({"last_step": "whole", "parts": "together"}, {"last_step": "whole", "units": WIDTH}),
    ):
        found = gradients(model, "snap", batch, **options)[0]
        compare(found, published_snap(steps, 1, **by_hand))
        if options != {"parts": "together"} or mixer == "lstm":
            assert max((found[n] - masked[n]).abs().max() for n in found) > 1e-4


def test_snap_of_a_lower_layer_has_the_errors_of_the_step_at_hand(batch):
    """Two layers: what the upper one gives to the lower at a step is its own at that step."""
    model = make("tanh_rnn", n_layers=2)
    found, _ = gradients(model, "snap", batch)
    below = SequenceModel(
        2, 3, mixer="tanh_rnn", d_model=WIDTH, n_layers=1, norm="layer", pool="none",
        dtype=torch.float64,
    )  # fmt: skip
    below.load_state_dict(model.state_dict(), strict=False)
    upper = model.blocks[1]

    class Above(torch.nn.Module):
        """The upper block, whose states enter each step as constants."""

        def forward(self, x):
            state, answers = upper.init_state(len(x)), []
            for t in range(TIME):
                y, state = upper(x[:, t : t + 1], state, reset=batch.reset[:, t : t + 1])
                state = detach(state)
                answers.append(y)
            return model.head(torch.cat(answers, 1))

    below.head = Above()
    compare(found, published_snap(steps_of(below, batch, "tanh_rnn"), 1))


def test_snap_of_a_layer_that_answers_before_it_writes(batch):
    """There is nothing to be masked in what was read of the state before."""
    model = make("rwkv6", d_model=4)
    close = gradients(model, "snap", batch, n=9)[0], gradients(model, "bptt", batch)[0]
    for name, g in close[0].items():
        if "mixer" in name:
            torch.testing.assert_close(g, close[1][name], rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("mixer", list(CELLS))
def test_uoro_is_its_loop_with_the_same_signs(mixer, batch):
    """The loss of a step, as a function of the state before, meets the product of the past."""
    model, part = make(mixer), batch._replace(reset=None)
    steps = steps_of(model, part, mixer)
    torch.manual_seed(7)
    found, _ = gradients(model, "uoro", part)
    torch.manual_seed(7)
    names, size = list(steps.m), steps.g.shape[-1]
    own = torch.cat([steps.m[n] for n in names], 3)
    A, B = torch.zeros(ROWS, size, dtype=torch.float64), torch.zeros_like(own[:, 0, 0])
    total = 0
    for t in range(TIME):
        # drawn for (copies, rows, size)
        nu = torch.randint(2, (1, ROWS, size), dtype=torch.float64)[0] * 2 - 1
        for row in range(ROWS):
            J, m, g = steps.J[row, t], own[row, t], steps.g[row, t]
            total = total + (g @ J @ A[row]) * B[row] + g @ m
            ahead, mine = J @ A[row], nu[row] @ m
            rho_0 = (B[row].norm() / ahead.norm()).sqrt() if t else torch.ones(())
            rho_1 = (mine.norm() / nu[row].norm()).sqrt()
            A[row] = rho_0 * ahead + rho_1 * nu[row]
            B[row] = B[row] / rho_0 + mine / rho_1
    parts = total.split([steps.m[n].shape[3] for n in names])
    expected = {n: g + steps.direct[n] for n, g in zip(names, parts, strict=True)}
    compare(found, expected, 1e-2, gradients(model, "bptt", part)[0])


@pytest.mark.parametrize("name", ["chunked_rtrl", "diagonal_rtrl"])
def test_below_the_last_layer_errors_come_through_a_window_and_go_on_in_time(name, batch):
    """Two layers: states of the upper enter a window as constants, those of the lower do not."""
    model, window = make("lru", n_layers=2), 3 if name == "chunked_rtrl" else 1
    found, _ = gradients(model, name, batch, **({"window": 3} if window == 3 else {}))
    whole, _ = gradients(model, "bptt", batch)
    lower, upper = model.blocks
    x, _ = lower(model.encoder(batch.x), reset=batch.reset)
    state, answers = upper.init_state(ROWS), []
    for start in range(0, TIME, window):
        piece = slice(start, start + window)
        y, state = upper(x[:, piece], state, reset=batch.reset[:, piece])
        state = detach(state)
        answers.append(y)
    mixer = dict(lower.mixer.named_parameters())
    loss = mse_loss(model.head(torch.cat(answers, 1)), batch.target)
    expected = torch.autograd.grad(loss, list(mixer.values()))
    compare(found, {n: g.flatten() for n, g in zip(mixer, expected, strict=True)}, 1e-4, whole)


def bare(mixer):
    """One layer and its head, so that a state and what is read of it can be written out."""
    torch.manual_seed(0)
    return SequenceModel(
        2, 3, mixer=build(mixer, WIDTH, dtype=torch.float64), d_model=WIDTH, n_layers=1,
        norm="none", pool="none", skip=False, block="bare", dtype=torch.float64,
    )  # fmt: skip


def test_local_propagation_is_its_saddle_steps(batch):
    """Down in states and weights, up in multipliers, of ``L + mu r + rho r^2``."""
    model, part = bare("tanh_rnn"), batch._replace(reset=None)
    options = {"window": 1, "method": "local", "penalty": 0.7, "rate": 0.1, "iterations": 6}
    found, _ = gradients(model, "lifted", part, **options)
    h, mu = started(model, part)
    for _ in range(options["iterations"]):
        h.requires_grad_()
        r = gaps(model, part, h)
        cost = ROWS * loss_at(model, part, h) + (mu * r + options["penalty"] * r**2).sum()
        (g,) = torch.autograd.grad(cost, h)
        mu = mu + options["rate"] * r.detach()
        h = (h - options["rate"] * g).detach()
    r = gaps(model, part, h)
    cost = loss_at(model, part, h) + (mu * r + options["penalty"] * r**2).sum() / ROWS
    expect_weights(model, found, cost)


def test_multipliers_of_admm_are_raised_by_the_violations(batch):
    """Two rounds: at the minimum of each, found by another minimiser, ``mu <- mu + rho r``."""
    model, part, rho = bare("tanh_rnn"), batch._replace(reset=None), 0.8
    options = {"window": 1, "method": "admm", "penalty": rho, "iterations": 300, "rounds": 2}
    found, _ = gradients(model, "lifted", part, **options)
    h, mu = started(model, part)
    for turn in range(2):
        if turn:
            mu = mu + rho * gaps(model, part, h).detach()
        h = minimised(model, part, h, mu, rho)
    r = gaps(model, part, h)
    cost = loss_at(model, part, h) + (mu * r + rho / 2 * r**2).sum() / ROWS
    expect_weights(model, found, cost, rtol=1e-4, atol=1e-7)
    whole, _ = gradients(model, "bptt", part)
    assert max((found[n] - whole[n]).abs().max() for n in found) > 1e-5


def minimised(model, batch, h, mu, rho):
    h = h.detach().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [h], 1.0, 500, tolerance_grad=1e-11, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        r = gaps(model, batch, h)
        cost = ROWS * loss_at(model, batch, h) + (mu * r + rho / 2 * r**2).sum()
        cost.backward()
        return cost

    optimizer.step(closure)
    return h.detach()


def started(model, batch):
    """States between steps as they are read forward (rows, time - 1, size), and multipliers."""
    layer, u = model.blocks[0].mixer, model.encoder(batch.x)
    h, states = torch.zeros(ROWS, WIDTH, dtype=torch.float64), []
    for t in range(TIME - 1):
        h = torch.tanh(h @ layer.A.mT + u[:, t] @ layer.B.mT + layer.b)
        states.append(h)
    states = torch.stack(states, 1).detach()
    return states, torch.zeros_like(states)


def predicted(model, batch, h):
    """The state after each step, of that which is a variable before it."""
    layer, u = model.blocks[0].mixer, model.encoder(batch.x)
    before = torch.cat([torch.zeros_like(h[:, :1]), h], 1)
    return torch.tanh(before @ layer.A.mT + u @ layer.B.mT + layer.b)


def gaps(model, batch, h):
    return h - predicted(model, batch, h)[:, :-1]


def loss_at(model, batch, h):
    layer, u = model.blocks[0].mixer, model.encoder(batch.x)
    y = model.head(predicted(model, batch, h) @ layer.C.mT + layer.D * u)
    return mse_loss(y, batch.target)


def expect_weights(model, found, cost, rtol=1e-9, atol=1e-12):
    named = dict(model.named_parameters())
    expected = torch.autograd.grad(cost, list(named.values()))
    for (name, _), g in zip(named.items(), expected, strict=True):
        torch.testing.assert_close(found[name], g, rtol=rtol, atol=atol, msg=name)


BIASED = {
    "snap": "here",
    "uoro": "here",
    "chunked_rtrl": "here",
    "diagonal_rtrl": "here",
    "lifted": "here",
    "tbptt": "test_tbptt.test_gradient_is_that_of_a_loop_over_windows",
    "stagewise": "test_stagewise.test_gradient_of_the_stage_is_that_of_back_propagation",
    "rbp": "test_rbp.test_terms_are_steps_of_back_propagation_where_the_state_has_settled",
    "fptt": "test_fptt.test_training_is_a_loop_written_out",
    "gtf": "test_gtf.test_gradients_are_those_of_the_equations_written_out",
    "local_representation_alignment": (
        "test_local_representation_alignment.test_changes_are_the_published_ones"
    ),
    "predictive_coding": "test_predictive_coding.test_errors_are_found_by_the_published_sweep",
    "ridge": "test_ridge.test_it_is_a_ridge_on_what_the_head_reads",
}
EXACT = {"bptt", "rtrl"}


def test_every_rule_is_exact_or_compared_with_a_loop():
    """A rule that is added names the loop that says what it is where it is biased."""
    assert BIASED.keys() | EXACT == set(learn.names())
    for where in BIASED.values():
        module, _, name = where.partition(".")
        assert where == "here" or callable(getattr(__import__(module), name))
