"""The LRU against oracles written from the equations alone, and its initial statistics."""

from functools import partial
from math import log, pi

import numpy as np
import pytest
import torch
from scipy.signal import dlsim
from scipy.stats import kstest
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from linrnn import mixers
from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import LRU
from linrnn.mixers.lru import PARAMETRISATIONS, ladder
from linrnn.ops import linear_scan
from linrnn.testing import check_property
from linrnn.testing._mixer_laws import compare, results, signal

ABLATIONS = {
    ablation: partial(LRU, **options)
    for ablation, (name, options) in ladder().items()
    if name == "lru"
}
each_ablation = pytest.mark.parametrize("ablation", ABLATIONS)


def complex_weights(layer):
    """``B`` (d_state, d_model) and ``C`` (d_model, d_state), complex."""
    B, C = layer.B.detach().numpy(), layer.C.detach().numpy()
    return B[:, 0] + 1j * B[:, 1], C[..., 0] - 1j * C[..., 1]


def numpy_lru(layer, x, h0):
    """``y_t = Re(C h_t) + D x_t`` in complex128, one step and one sequence at a time."""
    p = {name: value.detach().double().numpy() for name, value in layer.named_parameters()}
    lam = np.exp(-np.exp(p["nu_log"]) + 1j * np.exp(p["theta_log"]))
    B, C = complex_weights(layer)
    y = np.empty_like(x)
    last = np.empty_like(h0)
    for i in range(len(x)):
        h = h0[i]
        for t in range(x.shape[1]):
            h = lam * h + np.exp(p["gamma_log"]) * (B @ x[i, t])
            y[i, t] = (C @ h).real + p["D"] * x[i, t]
        last[i] = h
    return y, last


def test_forward_equals_a_transcription_in_numpy():
    torch.manual_seed(0)
    layer = LRU(5, d_state=7, dtype=torch.float64)
    x = torch.randn(2, 40, 5, dtype=torch.float64)
    h0 = torch.randn(2, 7, dtype=torch.complex128)
    y, last = layer(x, h0)
    expected_y, expected_last = numpy_lru(layer, x.numpy(), h0.numpy())
    np.testing.assert_allclose(y.detach().numpy(), expected_y, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(last.detach().numpy(), expected_last, rtol=1e-11, atol=1e-11)


def test_forward_equals_explicit_powers():
    """``y_t = Re sum_s C lam^(t-s) gamma B x_s + D x_t``: no recurrence at all."""
    torch.manual_seed(1)
    layer = LRU(3, d_state=4, dtype=torch.float64)
    x = torch.randn(1, 12, 3, dtype=torch.float64)
    lam, gamma = layer.eigenvalues(), layer.gamma_log.exp()
    B, C = map(torch.from_numpy, complex_weights(layer))
    expected = layer.D * x[0]
    for t in range(12):
        for s in range(t + 1):
            kernel = (C * (lam ** (t - s) * gamma)) @ B
            expected[t] = expected[t] + kernel.real @ x[0, s]
    torch.testing.assert_close(layer(x)[0][0], expected, rtol=1e-10, atol=1e-10)


def test_forward_equals_scipy_dlsim():
    """The layer as a real system of twice the size, in control theory's delayed convention."""
    torch.manual_seed(2)
    layer = LRU(2, d_state=3, dtype=torch.float64)
    lam = layer.eigenvalues().detach().numpy()
    B, C = complex_weights(layer)
    B = B * layer.gamma_log.exp().detach().numpy()[:, None]
    A = np.block([[np.diag(lam.real), -np.diag(lam.imag)], [np.diag(lam.imag), np.diag(lam.real)]])
    Br, Cr = np.vstack([B.real, B.imag]), np.hstack([C.real, -C.imag])
    D = np.diag(layer.D.detach().numpy())
    x = torch.randn(1, 30, 2, dtype=torch.float64)
    _, expected, _ = dlsim((A, Br, Cr @ A, Cr @ Br + D, 1.0), x[0].numpy())
    np.testing.assert_allclose(layer(x)[0][0].detach().numpy(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("r_min", "r_max", "max_phase"), [(0, 1, 2 * pi), (0.9, 0.999, pi / 10)])
def test_initial_eigenvalues_are_uniform_on_the_ring(r_min, r_max, max_phase):
    """Lemma 2: the squared radius is uniform, and so is the phase, independently."""
    torch.manual_seed(0)
    lam = LRU(1, d_state=20_000, r_min=r_min, r_max=r_max, max_phase=max_phase).eigenvalues()
    radius = lam.abs().detach().double().numpy()
    phase = np.angle(lam.detach().numpy()) % (2 * pi)
    assert radius.min() >= r_min - 1e-6
    assert radius.max() <= r_max
    square = (radius**2 - r_min**2) / (r_max**2 - r_min**2)
    assert kstest(square, "uniform").pvalue > 1e-3
    assert kstest(phase / max_phase, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(radius, phase)[0, 1]) < 0.03


def test_initial_weights_have_the_stated_variances():
    torch.manual_seed(0)
    layer = LRU(200, d_state=400)
    for weight, variance in (
        (layer.B[:, 0], 1 / 400),
        (layer.B[:, 1], 1 / 400),
        (layer.C[..., 0], 1 / 400),
        (layer.C[..., 1], 1 / 400),
        (layer.D, 1.0),
    ):
        assert weight.var().item() == pytest.approx(
            variance, rel=0.25 if weight.ndim == 1 else 0.03
        )
        assert abs(weight.mean().item()) < 4 * (variance / weight.numel()) ** 0.5


def test_gamma_normalises_the_state_of_white_input():
    """With gamma E|h|^2 = E|Bx|^2; without it the gain of Proposition 3 of the paper."""
    torch.manual_seed(0)
    r_min, r_max = 0.5, 0.95
    layer = LRU(16, d_state=256, r_min=r_min, r_max=r_max)
    x = torch.randn(64, 400, 16)
    power = layer.B.pow(2).sum((1, 2)).mean()
    with torch.no_grad():
        normalised = layer(x)[1].abs().pow(2).mean() / power
        layer.gamma_log.zero_()
        plain = layer(x)[1].abs().pow(2).mean() / power
    gain = log((1 - r_min**2) / (1 - r_max**2)) / (r_max**2 - r_min**2)
    assert normalised.item() == pytest.approx(1.0, rel=0.06)
    assert plain.item() == pytest.approx(gain, rel=0.12)


def test_gamma_survives_a_radius_that_rounds_to_one():
    layer = LRU(2, d_state=3, r_min=1 - 1e-9, r_max=1.0)
    assert layer.gamma_log.isfinite().all()
    assert (layer.gamma_log < -6).all()  # 1 - |lam|^2 is 0 in float32; gamma is not
    y, _ = layer(torch.randn(1, 1000, 2))
    assert y.isfinite().all()


def test_initialisation_follows_the_seed():
    torch.manual_seed(3)
    first = LRU(4).state_dict()
    torch.manual_seed(3)
    second = LRU(4).state_dict()
    assert all(torch.equal(first[n], second[n]) for n in first)


def test_state_defaults_to_the_model_width_and_complex64():
    state = LRU(4).init_state(3)
    assert state.shape == (3, 4)
    assert state.dtype == torch.complex64
    assert LRU(4, dtype=torch.bfloat16).init_state(1).dtype == torch.complex64
    assert LRU(4).init_state(1, dtype=torch.float64).dtype == torch.complex128


def test_ladder_is_that_of_the_paper():
    layers = {
        ablation: mixers.build(name, 4, options) for ablation, (name, options) in ladder().items()
    }
    weights = {"A", "B", "C", "D"}
    expected = {
        "dense": {"A"},
        "naive": {"lam_re", "lam_im"},
        "exponential": {"nu", "theta"},
        "stable exponential": {"nu_log", "theta"},
        "ring": {"nu_log", "theta"},
        "gamma": {"nu_log", "theta", "gamma_log"},
        "small phase": {"nu_log", "theta_log", "gamma_log"},
    }
    got = {ablation: {n for n, _ in layer.named_parameters()} for ablation, layer in layers.items()}
    assert list(got) == list(expected)
    for ablation, names in got.items():
        assert names - (weights - {"A"}) == expected[ablation]
        assert names <= weights | set(layers[ablation].recurrent_parameters) - {"b"}


@each_ablation
def test_rung_starts_where_it_should(ablation):
    """On the unit disk, from "ring" on in the ring, on the last ablation at small phases."""
    lam = ABLATIONS[ablation](1, d_state=2000).eigenvalues().detach()
    radius, phase = lam.abs(), lam.angle() % (2 * pi)
    on_ring = ablation in ("ring", "gamma", "small phase")
    assert (radius.min() >= 0.9 - 1e-6) == on_ring
    assert (radius.max() <= 0.999 + 1e-6) == on_ring
    assert (phase.max() <= pi / 10 + 1e-6) == (ablation == "small phase")


@pytest.mark.parametrize("parametrisation", PARAMETRISATIONS)
def test_parametrisations_start_from_the_same_eigenvalues(parametrisation):
    def lam(parametrisation):
        torch.manual_seed(5)
        layer = LRU(2, d_state=50, parametrisation=parametrisation, dtype=torch.float64)
        return layer.eigenvalues()

    torch.testing.assert_close(lam(parametrisation), lam("stable"))


@each_ablation
@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "round_trip"])
def test_rung_keeps_law(ablation, law):
    check_property(law, ABLATIONS[ablation])


@pytest.mark.parametrize(
    "law",
    [
        *("reset_and_packing", "batch_independence", "gradients", "low_precision", "edges"),
        pytest.param("finite_when_long", marks=pytest.mark.slow),
    ],
)
def test_real_form_keeps_law(law):
    check_property(law, partial(LRU, form="real"))


@pytest.mark.unchecked
@pytest.mark.parametrize("options", [{"form": "real"}, {"parametrisation": "naive"}], ids=str)
def test_option_compiles(options):
    check_property("compiles", partial(LRU, **options))


@pytest.mark.parametrize("time", [1, 2, 64, 1500])
def test_real_form_equals_the_scan(time):
    """With every gradient, at lengths on both sides of the last halving, and across resets."""
    torch.manual_seed(0)
    scan = LRU(4, d_state=3, r_min=0.9, dtype=torch.float64)
    real = LRU(4, d_state=3, form="real", dtype=torch.float64)
    real.load_state_dict(scan.state_dict())
    x, h0 = signal(2, time, 4), torch.randn(2, 3, dtype=torch.complex128, requires_grad=True)
    reset = torch.zeros(2, time, dtype=torch.bool)
    reset[0, time // 2] = reset[1, 0] = True
    for mask in (None, reset):
        got, expected = (
            results(lambda x, h, m=m, mask=mask: m(x, h, reset=mask), m, x, h0)
            for m in (real, scan)
        )
        compare(f"{time} steps", got, expected, 2**14)


def test_real_form_in_single_precision_is_as_close_as_a_loop():
    torch.manual_seed(0)
    layer = LRU(8, r_min=0.99, r_max=0.9999, form="real")
    exact = LRU(8, dtype=torch.float64)
    exact.load_state_dict(layer.state_dict())
    x = torch.randn(2, 1200, 8)
    b = torch.view_as_complex(layer._project_in(x))
    h, _ = linear_scan(layer.eigenvalues(), b, backend="reference")
    loop = layer._project_out(torch.view_as_real(h), x)
    errors = [(y - exact(x.double())[0]).norm() for y in (layer(x)[0], loop)]
    assert errors[0] <= 2 * errors[1]


class ComplexOperations(TorchDispatchMode):
    """Collects the operations with a complex result."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if any(isinstance(x, torch.Tensor) and x.is_complex() for x in tree_leaves(out)):
            self.seen.add(func.overloadpacket.__name__)
        return out


def test_real_form_computes_with_real_numbers():
    """A sequence, a step and the way back: complex is but the state handed in and out."""
    layer = LRU(4, form="real")
    x, state = torch.randn(2, 9, 4, requires_grad=True), layer.init_state(2)
    with ComplexOperations() as found:
        y, state = layer(x, state)
        y_t, _ = layer.step(x[:, 0], state)
        (y.sum() + y_t.sum()).backward()
    assert found.seen <= {"zeros", "view_as_complex"}
    with ComplexOperations() as found:
        LRU(4)(x)
    assert "linear_scan" in found.seen


@pytest.mark.parametrize("form", LRU.forms)
@pytest.mark.parametrize("parametrisation", ["naive", "exponential"])
def test_what_is_not_stable_grows(parametrisation, form):
    layer = LRU(1, parametrisation=parametrisation, gamma=False, form=form, dtype=torch.float64)
    with torch.no_grad():
        for name, value in (("lam_re", 1.2), ("lam_im", 0.0), ("nu", -log(1.2)), ("theta", 0.0)):
            if hasattr(layer, name):
                getattr(layer, name).fill_(value)
    _, last = layer(torch.zeros(1, 50, 1).double(), torch.ones(1, 1, dtype=torch.complex128))
    assert last.real.item() == pytest.approx(1.2**50)


def test_initial_values_of_the_field_guide(monkeypatch):
    """A quarter of the way through the ring [0.9, 0.999]."""
    monkeypatch.setattr(torch, "rand", lambda *shape, **kw: torch.full(shape, 0.25, **kw))
    layer = LRU(1, r_min=0.9, r_max=0.999, dtype=torch.float64)
    assert layer.nu_log.item() == pytest.approx(-2.5618930863, abs=1e-10)
    assert layer.eigenvalues().abs().item() == pytest.approx(0.9257430799, abs=1e-10)
    assert layer.gamma_log.item() == pytest.approx(-0.9724561985, abs=1e-10)


def test_step_casts_a_state_of_another_precision():
    """The short way past the checks is for states that need none."""
    layer, x_t = LRU(4), torch.randn(2, 4)
    state = torch.randn(2, 4, dtype=torch.complex64)
    expected = layer.step(x_t, state)
    torch.testing.assert_close(layer.step(x_t, state.to(torch.complex128)), expected)
    y_t, last = layer.step(x_t.bfloat16(), state)
    assert (y_t.dtype, last.dtype) == (torch.bfloat16, torch.complex64)


BAD = [
    ({"d_state": 0}, ArgumentError, "d_state must be an integer of at least 1, got 0"),
    ({"d_state": 2.5}, ArgumentError, "got 2.5"),
    ({"d_model": -1}, ArgumentError, "d_model must be an integer of at least 1, got -1"),
    ({"r_min": 0.9, "r_max": 0.5}, ArgumentError, r"r_min=0.9, r_max=0.5"),
    ({"r_min": 0.5, "r_max": 0.5}, ArgumentError, "0 <= r_min < r_max <= 1"),
    ({"r_max": 1.5}, ArgumentError, "r_max=1.5"),
    ({"r_min": float("nan")}, ArgumentError, "r_min=nan"),
    ({"max_phase": 0.0}, ArgumentError, r"max_phase must be in \(0, 2 pi\], got 0.0"),
    ({"max_phase": 7.0}, ArgumentError, "got 7.0"),
    ({"parametrisation": "nave"}, UnknownNameError, "Did you mean 'naive'?"),
    ({"form": "scam"}, UnknownNameError, "no LRU form named 'scam'. Did you mean 'scan'?"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_constructor_words_its_errors(options, error, message):
    with pytest.raises(error, match=message):
        LRU(**{"d_model": 4, **options})


@pytest.mark.unchecked
def test_conv_form_refuses_a_reset():
    with pytest.raises(ArgumentError, match="reset must be None for form='conv'"):
        LRU(2, form="conv")(torch.ones(1, 3, 2), reset=torch.zeros(1, 3, dtype=torch.bool))


@pytest.mark.unchecked
def test_complex_state_is_not_taken_for_a_real_one():
    with pytest.raises(TypeError, match=r"state must be torch.complex64, got torch.float32"):
        LRU(2)(torch.ones(1, 3, 2), torch.zeros(1, 2))
