"""The selective LRU against its unrolled double sum, the LRU, and the range of its cumsum form."""

from math import pi

import pytest
import torch
from scipy.stats import kstest

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import LRU, SelectiveLRU
from linrnn.mixers.selective_lru import _gamma
from linrnn.ops import linear_scan
from linrnn.ops.linear.cumsum import LIMITS, cumsum_mean, cumsum_scan
from linrnn.ops.linear.weighted_mean import mean_of_past
from linrnn.state import leaves, map_state
from linrnn.testing import check_property
from linrnn.testing._mixer_laws import NUMERIC_LAWS

GATES = ("stable", "free", "normalised")
each_gate = pytest.mark.parametrize("gate", GATES)


def lively(gate, **options):
    """Weights of size 1 also where the published ones are 1e-3."""

    def make(d_model, **more):
        layer = SelectiveLRU(d_model, gate=gate, **{**options, **more})
        for weight in (layer.U, layer.W):
            torch.nn.init.normal_(weight, std=0.5 * d_model**-0.5)
        return layer

    make.__name__ = "-".join([gate, *options])
    return make


def build(gate="stable", d_model=3, **options):
    torch.manual_seed(0)
    return lively(gate)(d_model, **{"dtype": torch.float64, **options})


# the free gate may grow beyond any float from inputs of 1e4, which
# `test_only_the_free_gate_grows` shows
GROWING = {"edges"}
CASES = [
    (make, law)
    for make in (
        lively("free"),
        lively("normalised"),
        lively("stable", learn_initial=True),
        lively("normalised", learn_initial=True),
    )
    for law in NUMERIC_LAWS
    if not (make.__name__ == "free" and law in GROWING)
]


@pytest.mark.parametrize(("make", "law"), CASES)
def test_keeps_the_laws_with_every_gate(make, law):
    check_property(law, make)


def g_and_b(layer, x):
    """``g_t`` and the input of the recurrence, from the equations alone."""
    u, b = x @ layer.U.mT, x @ layer.W.mT + 0j
    real = u - layer.nu
    if layer.gate == "stable":
        real = -torch.log1p(torch.exp(layer.nu - u))
        b = b * torch.sqrt(1 - torch.exp(2 * real))
    return real - 1j * layer.theta, b


def unrolled(g, b, h0):
    """``sum_s exp(g_{s+1} + ... + g_t) b_s`` and the share of h0, without any recurrence."""
    states = []
    for t in range(b.shape[1]):
        h = torch.exp(g[:, : t + 1].sum(1)) * h0
        for s in range(t + 1):
            h = h + torch.exp(g[:, s + 1 : t + 1].sum(1)) * b[:, s]
        states.append(h)
    return torch.stack(states, 1)


@each_gate
@pytest.mark.parametrize("form", SelectiveLRU.forms)
def test_forward_equals_the_unrolled_double_sum(gate, form):
    layer = build(gate, d_state=4, form=form)
    x = torch.randn(2, 20, 3, dtype=torch.float64)
    h0 = torch.randn(2, 4, dtype=torch.complex128)
    g, b = g_and_b(layer, x)
    if gate == "normalised":
        d0 = torch.rand(2, 4, dtype=torch.float64)
        y, last = layer(x, {"mean": h0 / d0, "log_norm": d0.log()})
        d = unrolled(g.real, torch.ones_like(b.real), d0)
        h = unrolled(g, b, h0) / d
        torch.testing.assert_close(last["log_norm"], d[:, -1].log())
        last = last["mean"]
    else:
        y, last = layer(x, h0)
        h = unrolled(g, b, h0)
    expected = (h @ torch.complex(layer.C_re, layer.C_im).mT).real + layer.D * x
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(last, h[:, -1])


def scalar(gate, form):
    """U = 0.5, nu = 0.2, theta = 0.3, W = 1 and y = Re h."""
    layer = SelectiveLRU(1, gate=gate, form=form, dtype=torch.float64)
    values = {"U": 0.5, "nu": 0.2, "theta": 0.3, "W": 1.0, "C_re": 1.0, "C_im": 0.0, "D": 0.0}
    with torch.no_grad():
        for name, value in values.items():
            getattr(layer, name).fill_(value)
    return layer, torch.arange(1.0, 6, dtype=torch.float64).cos()[None, :, None]


@pytest.mark.parametrize("form", SelectiveLRU.forms)
def test_golden_values(form):
    layer, x = scalar("free", form)
    y, last = layer(x, torch.ones(1, 1, dtype=torch.complex128))
    expected = [1.5650633902, 0.5157416796, -0.8191505590, -1.1713442022, -0.7824021547]
    assert y.flatten().tolist() == pytest.approx(expected, abs=5e-11)
    assert last.imag.item() == pytest.approx(0.2933878800, abs=5e-11)
    layer, x = scalar("normalised", form)
    expected = [0.5403023059, -0.0438033717, -0.5682492090, -0.5994399074, -0.2687446597]
    assert layer(x)[0].flatten().tolist() == pytest.approx(expected, abs=5e-11)


@pytest.mark.parametrize("gate", ["stable", "free"])
def test_without_selection_it_is_an_lru(gate):
    layer = build(gate, d_state=5)
    lru = LRU(3, d_state=5, dtype=torch.float64)
    with torch.no_grad():
        layer.U.zero_()
        nu = torch.log1p(torch.exp(layer.nu)) if gate == "stable" else layer.nu
        lru.nu_log.copy_(nu.log())
        lru.theta_log.copy_((2 * pi - layer.theta).log())  # its phase turns the other way
        gamma = torch.sqrt(1 - torch.exp(-2 * nu)) if gate == "stable" else torch.ones_like(nu)
        lru.gamma_log.copy_(gamma.log())
        lru.B.copy_(torch.stack([layer.W, torch.zeros_like(layer.W)], 1))
        lru.C.copy_(torch.stack([layer.C_re, -layer.C_im], -1))
        lru.D.copy_(layer.D)
    x, h0 = torch.randn(2, 30, 3).double(), torch.randn(2, 5, dtype=torch.complex128)
    torch.testing.assert_close(layer(x, h0)[0], lru(x, h0)[0])


def test_normalised_output_is_bounded_by_the_values():
    layer = build("normalised")
    x = 30 * torch.randn(2, 200, 3, dtype=torch.float64)
    _, last = layer(x)
    assert (last["mean"].abs() <= (x @ layer.W.mT).abs().amax(1) * (1 + 1e-12)).all()


@each_gate
def test_only_the_free_gate_grows(gate):
    layer = build(gate)
    x = 5 * torch.randn(1, 1, 3, dtype=torch.float64).expand(1, 500, 3)
    largest = max(h.abs().max() for h in leaves(layer(x)[0]))
    assert (largest > 1e30) == (gate == "free")


def test_gradients_of_the_gate_are_finite_where_it_shuts():
    """At a decay of exactly 1 gamma is 0, and the gradient of a square root infinite."""
    layer = build("stable")
    x = torch.randn(1, 9, 3, dtype=torch.float64) * 1e5
    grads = torch.autograd.grad(layer(x)[0].sum(), list(layer.parameters()))
    assert all(g.isfinite().all() for g in grads)
    z = torch.tensor([0.3, -8.0], dtype=torch.float64)
    torch.testing.assert_close(_gamma(z), torch.sqrt(1 - torch.sigmoid(-z) ** 2))


@each_gate
def test_learned_state_starts_every_sequence(gate):
    layer = build(gate, learn_initial=True)
    x = torch.randn(1, 9, 3, dtype=torch.float64)
    reset = torch.zeros(1, 9, dtype=torch.bool)
    reset[:, [0, 4]] = True
    y, last = layer(x, map_state(torch.zeros_like, layer.init_state(1)), reset=reset)
    parts = [layer(part) for part in x.split([4, 5], 1)]
    torch.testing.assert_close(y, torch.cat([p[0] for p in parts], 1))
    torch.testing.assert_close(leaves(last)[0], leaves(parts[1][1])[0])
    learned = {n: p for n, p in layer.named_parameters() if "0" in n}
    assert set(learned) == {"h0_re", "h0_im"} | ({"log_norm0"} if gate == "normalised" else set())
    grads = torch.autograd.grad(layer(x)[0].sum(), list(learned.values()))
    assert all(g.abs().min() > 0 for g in grads)


def spanning(span, dtype, pattern):
    """Log decays whose sums span ``span``, inputs, a state and phases."""
    torch.manual_seed(0)
    t = torch.arange(200, dtype=torch.float64) / 200
    sums = {"decay": -t, "grow": t, "wave": (4 * pi * t).sin() / 2}[pattern] * span
    log_decay = sums.diff(prepend=sums[:1])[None, :, None].expand(2, 200, 3)
    b, h0 = torch.randn(2, 200, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.complex128)
    phase = torch.rand(3, dtype=torch.float64) * 6
    is_half = dtype == torch.float32
    case = [log_decay, phase, b, h0]
    case = [z.to(torch.complex64 if z.is_complex() else dtype) if is_half else z for z in case]
    return [z.clone().requires_grad_() for z in case]


def with_gradients(function, case):
    h, last = function(*case)
    outputs = [h, *leaves(last)]
    generator = torch.Generator().manual_seed(5)
    cotangents = [
        torch.randn(z.shape, dtype=torch.complex128, generator=generator) for z in outputs
    ]
    cotangents = [
        (c if z.is_complex() else c.real).to(z.dtype)
        for c, z in zip(cotangents, outputs, strict=True)
    ]
    return [*outputs, *torch.autograd.grad(outputs, case, cotangents)]


def scan(log_decay, phase, b, h0):
    return linear_scan(torch.polar(log_decay.exp(), phase.expand_as(log_decay)), b, h0)


def mean_by_scan(log_decay, phase, v, mean0):
    state = {"mean": mean0, "log_norm": torch.zeros_like(mean0.real)}
    turn = torch.polar(torch.ones_like(phase), phase)
    weight = torch.zeros_like(log_decay)
    mean, _, last = mean_of_past(log_decay, weight, v, state, None, turn)
    return mean, last


def mean_by_cumsum(log_decay, phase, v, mean0):
    state = {"mean": mean0, "log_norm": torch.zeros_like(mean0.real)}
    return cumsum_mean("test", log_decay, phase, v, state)


@pytest.mark.parametrize("pattern", ["decay", "grow", "wave"])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 5e-5), (torch.float64, 1e-12)])
def test_cumsum_is_accurate_up_to_its_limit(dtype, error, pattern):
    """Outputs and all gradients, relative to the largest; with tiny inputs too."""
    case = spanning(0.99 * LIMITS[dtype], dtype, pattern)
    wide = [z.detach().to(torch.complex128 if z.is_complex() else torch.float64) for z in case]
    wide = [z.requires_grad_() for z in wide]
    for by_sums, by_scan in (
        (lambda *z: cumsum_scan("test", *z), scan),
        (mean_by_cumsum, mean_by_scan),
    ):
        for got, truth in zip(
            with_gradients(by_sums, case), with_gradients(by_scan, wide), strict=True
        ):
            assert (got.to(truth.dtype) - truth).abs().max() <= error * truth.abs().max()
    tiny = [case[0], case[1], 1e-25 * case[2], 1e-25 * case[3]]
    got, truth = cumsum_scan("test", *tiny)[0], scan(wide[0], wide[1], wide[2], wide[3])[0]
    assert (1e25 * got.to(truth.dtype) - truth).abs().max() <= error * truth.abs().max()


@pytest.mark.unchecked
@pytest.mark.parametrize("pattern", ["decay", "grow", "wave"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cumsum_refuses_what_it_cannot_compute(dtype, pattern):
    case = spanning(1.02 * LIMITS[dtype], dtype, pattern)
    message = rf"must span at most {LIMITS[dtype]:g} in {dtype}, got 6.*Use form=\"scan\""
    for by_sums in (lambda *z: cumsum_scan("test", *z), mean_by_cumsum):
        with pytest.raises(ArgumentError, match=message):
            by_sums(*case)
    case[0] = case[0] * torch.nan
    with pytest.raises(ArgumentError, match="got nan"):
        cumsum_scan("test", *case)


@pytest.mark.unchecked
def test_a_large_initial_weight_counts_towards_the_span():
    layer = build("normalised", form="cumsum")
    x, state = torch.randn(2, 5, 3, dtype=torch.float64), layer.init_state(2)
    assert not state["log_norm"].any()
    layer(x, state)
    state["log_norm"].fill_(700.0)
    with pytest.raises(ArgumentError, match="got 70"):
        layer(x, state)


@pytest.mark.unchecked
@each_gate
def test_compiled_cumsum_refuses_too(gate):
    layer = build(gate, form="cumsum", dtype=torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 9, 3)
    torch.testing.assert_close(compiled(x)[0], layer(x)[0])
    with pytest.raises(RuntimeError, match=r"must span at most 60 .*Use form=\"scan\""):
        compiled(100 * x)


@pytest.mark.unchecked
def test_cumsum_form_refuses_a_reset():
    with pytest.raises(ArgumentError, match="reset must be None for form='cumsum', got a mask"):
        build(form="cumsum")(torch.ones(1, 3, 3), reset=torch.zeros(1, 3, dtype=torch.bool))


@pytest.mark.parametrize("gate", ["stable", "normalised"])
def test_initial_decays_lie_on_the_ring(gate):
    torch.manual_seed(0)
    layer = SelectiveLRU(1, d_state=20_000, gate=gate, r_min=0.5, r_max=0.9, max_phase=1.0)
    a = layer._decay(layer.nu.detach()).detach()  # at x = 0
    square = (a.abs().double().numpy() ** 2 - 0.25) / (0.81 - 0.25)
    assert kstest(square, "uniform").pvalue > 1e-3
    assert kstest(layer.theta.detach().numpy(), "uniform").pvalue > 1e-3


def test_stable_gate_keeps_the_size_of_its_input():
    """gamma makes E|h|^2 = E|W x|^2 for white inputs and a decay of any size."""
    torch.manual_seed(0)
    layer = SelectiveLRU(16, d_state=64, r_min=0.5, r_max=0.95)
    with torch.no_grad():
        layer.U.zero_()
        h = layer(torch.randn(64, 300, 16))[1]
        ratio = (h.abs() ** 2).mean() / (layer.W**2).sum(1).mean()
    assert ratio.item() == pytest.approx(1, rel=0.06)


def test_free_gate_starts_as_published():
    torch.manual_seed(0)
    layer = SelectiveLRU(50, d_state=60, gate="free")
    torch.testing.assert_close(layer.nu.detach(), torch.linspace(0.1, 0.9, 60))
    torch.testing.assert_close(layer.theta.detach(), 2 * pi * torch.arange(60) / 60)
    for weight in (layer.U, layer.W):
        assert weight.std().item() == pytest.approx(1e-3, rel=0.05)


BAD = [
    ({"d_state": 0}, ArgumentError, "SelectiveLRU: d_state must be an integer of at least 1, got"),
    ({"r_min": 0.9, "r_max": 0.5}, ArgumentError, r"r_min=0.9, r_max=0.5"),
    ({"max_phase": 0.0}, ArgumentError, r"max_phase must be in \(0, 2 pi\], got 0.0"),
    ({"gate": "open"}, UnknownNameError, "no SelectiveLRU gate named 'open'"),
    ({"form": "conv"}, UnknownNameError, "no SelectiveLRU form named 'conv'"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_constructor_words_its_errors(options, error, message):
    with pytest.raises(error, match=message):
        SelectiveLRU(4, **options)
