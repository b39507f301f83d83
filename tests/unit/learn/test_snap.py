"""SnAp against back-propagation, and against its definition with dense derivatives, in float64."""

import pytest
import torch
from test_traces import APART, ROWS, TIME, close, gradients, make
from torch.autograd.functional import jacobian
from torch.func import functional_call

from linrnn import learn
from linrnn.errors import ArgumentError
from linrnn.learn import Batch
from linrnn.learn._exact.sparse import reach
from linrnn.learn._exact.traces import Heard
from linrnn.mixers import Mixer
from linrnn.state_spec import real


@pytest.fixture
def batch():
    random = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, TIME, 2, dtype=torch.float64, generator=random)
    target = torch.randn(ROWS, TIME, 3, dtype=torch.float64, generator=random)
    reset = torch.zeros(ROWS, TIME, dtype=torch.bool)
    reset[0, 7] = reset[2, 5] = reset[2, 6] = True
    return Batch(x, target, None, reset)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mixer", [*APART, "gla"])
def test_one_step_is_exact_for_channels_apart(mixer, batch):
    """A column is an LSTM of one unit: what moves its output reaches its cell a step later."""
    model = make(mixer)
    whole, _ = gradients(model, "bptt", batch)
    n = 2 if mixer == "columnar" else 1
    close(gradients(model, "snap", batch, n=n)[0], whole, "mixer")
    close(gradients(model, "snap", batch, parts="together")[0], whole, "mixer")


@pytest.mark.parametrize(
    ("mixer", "n"), [("tanh_rnn", 2), ("gru", 2), ("lstm", 2), ("delta_net", 9)]
)
def test_as_many_steps_as_reach_everything_are_exact(mixer, n, batch):
    model = make(mixer)
    whole, _ = gradients(model, "bptt", batch)
    close(gradients(model, "snap", batch, n=n)[0], whole, "mixer")
    far = gradients(model, "snap", batch, n=1)[0]
    assert any(not torch.allclose(g, whole[n], rtol=1e-3) for n, g in far.items() if "mixer" in n)


class Ring(Mixer):
    """Each unit of a ring sees itself and the one before it."""

    family = "dense"

    def __init__(self, d_model, *, device=None, dtype=None):
        super().__init__()
        self.d_model = d_model
        self.own, self.other = (
            torch.nn.Parameter(torch.rand(d_model, device=device, dtype=dtype)) for _ in range(2)
        )
        self.W = torch.nn.Parameter(torch.randn(d_model, d_model, device=device, dtype=dtype))

    def state_spec(self):
        return real(d_model=self.d_model)

    def _read(self, x, h, reset):
        states = []
        for t in range(x.shape[1]):
            if reset is not None:
                h = torch.where(reset[:, t, None], 0, h)
            h = torch.tanh(self.own * h + self.other * h.roll(1, 1) + x[:, t] @ self.W.T)
            states.append(h)
        return torch.stack(states, 1), h


WIDTH = 5


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 9])
def test_derivatives_are_those_of_the_definition(n):
    """``M <- (J M + m) * P_n``, all of it dense and written out."""
    torch.manual_seed(0)
    layer, learner = Ring(WIDTH, dtype=torch.float64), learn.build("snap", {"n": n})
    known, traces = reach(layer, n), {}
    parameters = {k: p.detach() for k, p in layer.named_parameters()}
    h, M = torch.zeros(1, WIDTH, dtype=torch.float64), {}
    ring = torch.eye(WIDTH) + torch.eye(WIDTH).roll(1, 0)
    reached = torch.linalg.matrix_power(ring, n - 1) > 0  # row k, column i: k within n - 1 of i
    for _ in range(8):
        u = torch.randn(1, 1, WIDTH, dtype=torch.float64)
        traces = learner.advance(layer, known, traces, Heard(u, h, {}))

        def after(h, u=u, **some):
            return functional_call(layer, {**parameters, **some}, (u, h))[1][0]

        J = jacobian(after, h)[:, 0]
        for name, p in parameters.items():
            m = jacobian(lambda p, h=h, name=name: after(h, **{name: p}), p).flatten(1)
            P = reached.repeat_interleave(p.numel() // WIDTH, 1)
            M[name] = (J @ M.get(name, torch.zeros_like(m)) + m) * P
        h = after(h)[None].detach()
    assert traces.keys() == M.keys()
    for name, dense in M.items():
        torch.testing.assert_close(spread(known.by_name[name], traces[name]), dense, msg=name)
        assert len(traces[name]) == min(n, WIDTH)  # and no more is kept


def spread(kept, trace):
    """A trace of one row as (units, elements)."""
    groups = kept.units.shape[1]
    flat = trace[:, 0].reshape(len(trace), groups, -1)
    dense = torch.zeros(WIDTH, groups, flat.shape[2], dtype=flat.dtype)
    for slot, group in kept.kept.nonzero().tolist():
        dense[kept.units[slot, group], group] = flat[slot, group]
    return dense.flatten(1)


def test_blocks_stay_among_themselves():
    """However many steps are counted, nothing reaches another block."""
    torch.manual_seed(0)
    known = reach(Cut(6, dtype=torch.float64), 50)
    for kept in known.by_name.values():
        for slot, group in kept.kept.nonzero().tolist():
            assert kept.units[slot, group] // 2 == group // 2
        assert len(kept.units) == 2


class Cut(Ring):
    """Pairs of units, of which none sees another."""

    def _read(self, x, h, reset):
        states = []
        for t in range(x.shape[1]):
            other = h.unflatten(1, (-1, 2)).flip(2).flatten(1)
            h = torch.tanh(self.own * h + self.other * other + x[:, t] @ self.W.T)
            states.append(h)
        return torch.stack(states, 1), h


def test_it_departs_from_back_propagation_as_units_see_more_of_each_other(batch):
    """The more of a recurrent matrix is off its diagonal, the less of the gradient is found."""
    cosines = []
    for size in (0.05, 0.4, 1.5):
        model = make("tanh_rnn", d_model=4)
        A = model.blocks[0].mixer.A
        with torch.no_grad():
            torch.manual_seed(2)
            A.copy_(0.5 * torch.eye(4) + size * (1 - torch.eye(4)) * torch.randn(4, 4))
        whole, found = (gradients(model, name, batch)[0] for name in ("bptt", "snap"))
        name = "blocks.0.mixer.A"
        pair = (g[name].flatten() for g in (found, whole))
        cosines.append(float(torch.nn.functional.cosine_similarity(*pair, 0)))
    assert cosines == sorted(cosines, reverse=True)
    assert cosines[0] > 0.99


def test_memory_of_one_step_is_a_trace_for_each_parameter(batch):
    model = make("lstm", d_model=6)
    learner = learn.build("snap")
    gradients(model, "snap", batch, learner=learner)
    for name, trace in learner.traces["blocks.0.mixer"].items():
        p = model.get_parameter(f"blocks.0.mixer.{name}")
        assert trace.shape == (2, ROWS, *p.shape)  # of c and of h


@pytest.mark.unchecked
def test_what_it_cannot_do_is_said():
    with pytest.raises(
        ArgumentError,
        match=r"^SnAp: every layer must have a state of fixed size, got blocks.0.mixer "
        r"\(Attention\), one whose state grows with what was read. Use tbptt.$",
    ):
        learn.build("snap").check(make("attention"))
    with pytest.raises(ArgumentError, match=r"^SnAp: no layer must draw random numbers"):
        learn.build("snap").check(make("noisy_rnn"))
    learn.build("snap").check(make("noisy_rnn").eval())
    with pytest.raises(ArgumentError, match="SnAp: n must be an integer of at least 1, got 0"):
        learn.build("snap", {"n": 0})
    with pytest.raises(ArgumentError, match="SnAp: pool must be 'none' or 'last'"):
        learn.build("snap").check(make("lru", pool="mean"))
