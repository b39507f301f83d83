"""UORO against its equation with the same signs, and its mean against back-propagation."""

import pytest
import torch
from test_traces import gradients, make
from torch.autograd.functional import jacobian
from torch.func import functional_call
from torch.nn.functional import mse_loss

from linrnn import learn
from linrnn.errors import ArgumentError
from linrnn.learn import Batch, Loop, uoro
from linrnn.learn._exact.traces import Heard
from linrnn.mixers import build
from linrnn.state import detach

DRAWS, AT_ONCE = 40_000, 1000


def test_a_step_is_that_of_the_equation():
    """One row and one copy, with the derivatives of a step written out."""
    torch.manual_seed(0)
    layer = build("gru", 3, dtype=torch.float64)
    parameters = {n: p.detach() for n, p in layer.named_parameters()}
    learner, traces = learn.build("uoro"), {}
    h, A = torch.zeros(1, 3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    B = torch.zeros(sum(p.numel() for p in parameters.values()), dtype=torch.float64)
    for t in range(6):
        u = torch.randn(1, 1, 3, dtype=torch.float64)
        torch.manual_seed(t)
        traces = learner.advance(layer, "gru", traces, Heard(u, h, {}))
        torch.manual_seed(t)
        nu = torch.randint(2, (3,), dtype=torch.float64) * 2 - 1

        def after(h, u=u, **some):
            return functional_call(layer, {**parameters, **some}, (u, h))[1][0]

        JA = jacobian(after, h)[:, 0] @ A
        m = torch.cat(
            [
                jacobian(lambda p, h=h, n=n: after(h, **{n: p}), p).flatten(1)
                for n, p in parameters.items()
            ],
            1,
        )
        own = nu @ m
        rho_0 = (B.norm() / JA.norm()).sqrt() if t else torch.ones(())
        rho_1 = (own.norm() / nu.norm()).sqrt()
        A, B = rho_0 * JA + rho_1 * nu, B / rho_0 + own / rho_1
        h = after(h)[None].detach()
        torch.testing.assert_close(learner.directions["gru"][0, 0], A)
        found = torch.cat([traces[n][0, 0].flatten() for n in parameters])
        torch.testing.assert_close(found, B)


def of_rows(mixer, rows):
    """A net of three units, and a batch whose rows are all the same."""
    model = make(mixer, d_model=3)
    random = torch.Generator().manual_seed(1)
    x, target = (torch.randn(1, 6, n, dtype=torch.float64, generator=random) for n in (2, 3))
    return model, Batch(x.expand(rows, -1, -1), target.expand(rows, -1, -1), None, None)


def scores(mixer, draws=DRAWS):
    """How far the mean of so many draws is from the gradient, in its standard deviations.

    A row is a draw; the spread is that of the means of batches.
    """
    model, batch = of_rows(mixer, AT_ONCE)
    whole, _ = gradients(model, "bptt", batch)
    torch.manual_seed(0)
    found = [gradients(model, "uoro", batch)[0] for _ in range(draws // AT_ONCE)]
    far = []
    for name, g in whole.items():
        if "mixer" in name:
            means = torch.stack([f[name] for f in found])
            spread = means.std(0) / len(means) ** 0.5
            far.append(((means.mean(0) - g).abs() / spread.clamp(min=1e-12)).flatten())
    return torch.cat(far)


@pytest.mark.parametrize(
    "mixer", ["tanh_rnn", *(pytest.param(x, marks=pytest.mark.slow) for x in ("lstm", "lru"))]
)
def test_the_mean_of_many_draws_is_the_gradient(mixer):
    assert scores(mixer).max() < 4.5


def test_multiplying_where_is_to_be_divided_is_found_out(monkeypatch):
    """As it is printed in some texts: the second product times the square of its scale."""
    right = uoro._mixed

    def wrong(ahead, traces, signs, own):
        new = uoro._ratio(uoro._norm(own), signs.norm(dim=2))
        return right(ahead, traces, signs, {n: uoro._times(new**2, m) for n, m in own.items()})

    monkeypatch.setattr(uoro, "_mixed", wrong)
    assert scores("tanh_rnn", DRAWS // 4).max() > 10


def test_rows_and_copies_have_noise_of_their_own_and_copies_divide_the_variance():
    model, batch = of_rows("lstm", 400)
    spreads = []
    for copies in (1, 4):
        learner = learn.build("uoro", {"copies": copies})
        gradients(model, "uoro", batch, learner=learner)
        a = learner.directions["blocks.0.mixer"].flatten(0, 1)
        assert len(a.unique(dim=0)) == len(a)
        b = learner.traces["blocks.0.mixer"]["weight_hh_l0"].flatten(2)
        one = torch.einsum("cbs,cbp->bsp", learner.directions["blocks.0.mixer"], b) / copies
        spreads.append(one.var(0).sum())
    assert 2.5 < spreads[0] / spreads[1] < 6.5  # 4 but for the sampling


def test_after_a_reset_the_product_is_that_of_one_step():
    """The signs times one number, and no trace of what was before."""
    model, batch = of_rows("gru", 2)
    reset = torch.zeros(2, 6, dtype=torch.bool)
    reset[0, 5] = True
    learner = learn.build("uoro", {"copies": 2})
    gradients(model, "uoro", batch._replace(reset=reset), learner=learner)
    a = learner.directions["blocks.0.mixer"].abs()
    alike = (a.amax(2) - a.amin(2)) / a.amax(2) < 1e-12
    assert alike[:, 0].all()
    assert not alike[:, 1].any()


def test_a_batch_goes_on_from_what_the_learner_remembers():
    model, batch = of_rows("lstm", 3)
    learner, again = learn.build("uoro"), learn.build("uoro")
    first, second = (
        Batch(batch.x[:, s], batch.target[:, s], None, None) for s in (slice(0, 3), slice(3, 6))
    )
    step = learner.step(model, first, None, Loop(mse_loss))
    again.load_state_dict(learner.state_dict())
    found = []
    for one in (learner, again):
        torch.manual_seed(3)
        found.append(gradients(model, "uoro", second, detach(step.state), learner=one)[0])
    assert all(torch.equal(g, found[1][n]) for n, g in found[0].items())


@pytest.mark.unchecked
def test_what_it_cannot_do_is_said():
    with pytest.raises(
        ArgumentError,
        match=r"^UORO: every layer must have a state of fixed size, got blocks.0.mixer "
        r"\(Attention\), whose state grows with what was read. Use tbptt.$",
    ):
        learn.build("uoro").check(make("attention"))
    with pytest.raises(ArgumentError, match=r"^UORO: no layer must draw random numbers"):
        learn.build("uoro").check(make("noisy_rnn"))
    learn.build("uoro").check(make("noisy_rnn").eval())
    with pytest.raises(ArgumentError, match="UORO: copies must be an integer of at least 1, got 0"):
        learn.build("uoro", {"copies": 0})
    model, batch = of_rows("lstm", 2)
    learner, other = learn.build("uoro"), learn.build("uoro")
    state = detach(learner.step(model, batch, None, Loop(mse_loss)).state)
    broken = learner.state_dict()
    other.load_state_dict({n: v for n, v in broken.items() if not n.startswith("direction")})
    with pytest.raises(ArgumentError, match=r"got blocks.0.mixer without. Is it the state of an"):
        other.step(model, batch, state, Loop(mse_loss))
