"""S4D against control theory, explicit powers and published kernels."""

from functools import partial
from math import pi

import numpy as np
import pytest
import torch
from scipy.signal import cont2discrete, dlsim
from scipy.stats import kstest

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import S4D
from linrnn.nn.hippo import hippo_normal
from linrnn.ops.conv import siso
from linrnn.testing import check_property

INITS = ("lin", "inv", "legs", "real")
GOLDEN = {  # d_state 4, lin, dt = 0.1, B = C = 1
    "zoh": [0.3870112086, 0.3503411878, 0.3009849527, 0.2440201623],
    "bilinear": [0.3857665979, 0.3498772321, 0.3014449025, 0.2453624960],
}
each_init = pytest.mark.parametrize("init", INITS)
each_form = pytest.mark.parametrize("form", S4D.forms)
each_rule = pytest.mark.parametrize("discretisation", ["zoh", "bilinear"])


def make(d_model=3, d_state=6, *, seed=0, **options):
    torch.manual_seed(seed)
    return S4D(d_model, d_state=d_state, dtype=torch.float64, **options)


def impulse_response(layer, time):
    """(time, d_model): the output for a one followed by zeros."""
    x = torch.zeros(1, time, layer.d_model, dtype=layer.D.dtype)
    x[:, 0] = 1
    return layer(x)[0][0].detach()


def continuous(layer):
    """``A, B, C`` in complex128 and the factor of the real part, from the parameters alone."""
    p = {n: v.detach().double().numpy() for n, v in layer.named_parameters()}
    A = -np.exp(p["A_log"]) + 1j * p.get("A_im", 0)
    B = p.get("B_re", np.ones_like(A)) + 1j * p.get("B_im", 0)
    C = p["C_re"] + 1j * p.get("C_im", 0)
    return A, B, C, (2 if "A_im" in p else 1), np.exp(p["log_dt"]), p["D"]


def numpy_s4d(layer, x, h0):
    """The recurrence in complex128, one step at a time; discretised by SciPy mode by mode."""
    A, B, C, factor, dt, D = continuous(layer)
    rule = layer.discretisation
    one = np.ones((1, 1))
    a, b = np.empty_like(A), np.empty_like(A)
    for i, n in np.ndindex(A.shape):
        system = (A[i, n] * one, B[i, n] * one, one, 0 * one)
        a[i, n], b[i, n] = (m.item() for m in cont2discrete(system, dt[i], rule)[:2])
    h, ys = h0.astype(complex), []
    for t in range(x.shape[1]):
        h = a * h + b * x[:, t, :, None]
        ys.append(factor * (C * h).real.sum(-1) + D * x[:, t])
    return np.stack(ys, 1), h


@pytest.mark.parametrize("separate_B", [False, True])
@each_form
@each_rule
@each_init
def test_forward_equals_a_transcription_in_numpy(init, discretisation, form, separate_B):
    layer = make(
        d_state=8, init=init, discretisation=discretisation, form=form, separate_B=separate_B
    )
    state = layer.init_state(2)
    h0 = torch.randn(state.shape, dtype=state.dtype)
    x = torch.randn(2, 75, 3, dtype=torch.float64)  # two blocks and a rest
    y, last = layer(x, h0)
    expected, expected_last = numpy_s4d(layer, x.numpy(), h0.numpy())
    np.testing.assert_allclose(y.detach(), expected, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(last.detach(), expected_last, rtol=1e-9, atol=1e-10)


@each_rule
def test_kernel_is_the_published_one(discretisation):
    layer = make(1, 4, discretisation=discretisation, dt_min=0.1, dt_max=0.1)
    with torch.no_grad():
        for parameter, value in ((layer.C_re, 1), (layer.C_im, 0), (layer.D, 0)):
            parameter.fill_(value)
    kernel = impulse_response(layer, 4)[:, 0]
    np.testing.assert_allclose(kernel, GOLDEN[discretisation], atol=1e-10)


@each_rule
def test_forward_equals_scipy_dlsim_of_the_real_system(discretisation):
    """A channel as a real system of d_state states, in control theory's delayed convention."""
    layer = make(1, 6, init="inv", discretisation=discretisation, seed=1)
    A, B, C, _, dt, D = (np.squeeze(v) for v in continuous(layer))
    real = np.block([[np.diag(A.real), -np.diag(A.imag)], [np.diag(A.imag), np.diag(A.real)]])
    B, C = np.concatenate([B.real, B.imag])[:, None], 2 * np.concatenate([C.real, -C.imag])[None]
    step, into, *_ = cont2discrete((real, B, C, 0), float(dt), discretisation)
    x = torch.randn(1, 60, 1, dtype=torch.float64)
    _, expected, _ = dlsim((step, into, C @ step, C @ into + D, 1.0), x[0].numpy())
    np.testing.assert_allclose(layer(x)[0][0].detach(), expected, rtol=1e-9, atol=1e-10)


@each_form
@each_init
def test_constant_and_oscillating_inputs_reach_the_transfer_function(init, form):
    """``sum_n C gain B / (1 - a e^{-i omega}) + D``, and its value at 0, the gain of a constant."""
    layer = make(2, 4, init=init, form=form, dt_min=0.3, dt_max=0.5, seed=2)
    a, b, c = (p.detach() for p in layer.system()[:3])
    for omega in (0.0, 0.7, 2.0):
        wave = torch.exp(1j * omega * torch.arange(400, dtype=torch.float64))
        parts = [layer(w[None, :, None].repeat(1, 1, 2))[0][0, -1] for w in (wave.real, wave.imag)]
        got = torch.complex(*(p.detach() for p in parts)) / wave[-1]
        z = torch.exp(torch.tensor(-1j * omega, dtype=torch.complex128))
        response = c * b / (1 - a * z)
        if response.is_complex() and init != "real":  # the conjugate modes, half each
            response = (response + (c * b).conj() / (1 - a.conj() * z)) / 2
        expected = response.sum(-1) + layer.D.detach()
        torch.testing.assert_close(got, expected.to(got.dtype), rtol=1e-9, atol=1e-9)


@each_form
def test_float32_keeps_the_phase_of_distant_steps(form):
    """Top frequencies of "inv" turn 128 radians a step; float32 would lose the phase (0.1 rad)."""
    torch.manual_seed(0)
    layer = S4D(2, d_state=64, init="inv", dt_min=0.1, dt_max=0.1, form=form)
    with torch.no_grad():
        layer.A_log.fill_(-9)  # slow, or there is nothing left to compare
    exact = S4D(2, d_state=64, init="inv", dt_min=0.1, dt_max=0.1, dtype=torch.float64)
    exact.load_state_dict(layer.state_dict())
    a, b, c = exact.system()[:3]
    t = 16_000
    expected = (c * b * torch.exp(a.log() * t)).real.sum(-1)
    got = impulse_response(layer, t + 1)[t]
    scale = (c * b).abs().sum(-1).max().item()
    assert (got - expected).abs().max().item() < 1e-5 * scale


@pytest.mark.parametrize("init", ["legs", "real"])
def test_blocks_and_steps_agree_with_their_gradients(init):
    layer = make(2, 4, init=init, separate_B=True, project=True)
    x = torch.randn(2, 2 * siso.BLOCK + 5, 2, dtype=torch.float64).requires_grad_()
    shape = layer.init_state(2)
    state = torch.randn(shape.shape, dtype=shape.dtype).requires_grad_()
    sources = [x, state, *layer.parameters()]

    def gradients(y, last):
        loss = y.square().sum() + last.abs().square().sum()
        return torch.autograd.grad(loss, sources)

    whole = gradients(*layer(x, state))
    ys, h = [], state
    for x_t in x.unbind(1):
        y_t, h = layer.step(x_t, h)
        ys.append(y_t)
    for got, expected in zip(whole, gradients(torch.stack(ys, 1), h), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-8)


@each_init
def test_one_channel_alone_is_what_it_is_among_others(init):
    """Any length: the remainder of one block may begin at an odd place of a product."""
    layer, one = make(2, 6, init=init), make(1, 6, init=init)
    one.load_state_dict({n: p[:1] for n, p in layer.state_dict().items()})
    for time in range(1, 2 * siso.BLOCK + 2, 3):
        x = torch.randn(1, time, 1, dtype=torch.float64)
        y, expected = one(x)[0], layer(x.expand(-1, -1, 2))[0][..., :1]
        torch.testing.assert_close(y, expected, rtol=1e-11, atol=1e-11)
        for got, want in zip(
            torch.autograd.grad(y.square().sum(), list(one.parameters())),
            torch.autograd.grad(expected.square().sum(), list(layer.parameters())),
            strict=True,
        ):
            torch.testing.assert_close(got, want[:1], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("form", S4D.forms)
@pytest.mark.parametrize(("init", "separate_B"), [("legs", True), ("lin", False), ("real", True)])
def test_channels_that_share_a_system_have_its_modes(init, separate_B, form):
    """In turn, as in the public code; the gradient of a system is the sum of its channels'."""
    options = {"init": init, "separate_B": separate_B, "form": form}
    shared, each = make(4, 6, n_ssm=2, **options), make(4, 6, **options)
    with torch.no_grad():
        for p in (shared.A_log, shared.A_im, shared.B_re):
            if p is not None:
                p.add_(0.1 * torch.randn_like(p))  # else both systems are alike
    of_systems = [n for n, p in shared.named_parameters() if n[:2] in ("A_", "B_")]
    tiled = {n: p.detach().repeat(2, 1) for n, p in shared.named_parameters() if n in of_systems}
    each.load_state_dict({**shared.state_dict(), **tiled})
    assert all(shared.get_parameter(n).shape == (2, each.modes) for n in of_systems)
    x = torch.randn(2, 40, 4, dtype=torch.float64)
    found = []
    for layer in (shared, each):
        y = layer(x)[0]
        names = [*of_systems, "log_dt", "C_re"]
        parameters = [layer.get_parameter(n) for n in names]
        grads = torch.autograd.grad(y.square().sum(), parameters)
        found.append((y, dict(zip(names, grads, strict=True))))
    (y, grads), (expected, wanted) = found
    torch.testing.assert_close(y, expected, rtol=1e-11, atol=1e-11)
    for name, grad in grads.items():
        want = wanted[name]
        want = want.view(2, 2, -1).sum(0) if name in of_systems else want
        torch.testing.assert_close(grad, want, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("init", ["lin", "real"])
def test_resets_cut_blocks_anywhere(init):
    """Each sequence packed into long rows is what it is alone; NaN stays in its own."""
    layer = make(2, 4, init=init)
    time = 5 * siso.RESET_BLOCK + 3
    starts = [0, 7, 8, 31, 32, 33, 64, 80]
    x = torch.randn(2, time, 2, dtype=torch.float64)
    reset = torch.zeros(2, time, dtype=torch.bool)
    reset[0, starts[1:]] = True
    state = layer(x[:, :3])[1]
    y, last = layer(x, state, reset=reset)
    ends = [*starts[1:], time]
    for start, end in zip(starts, ends, strict=True):
        alone, h = layer(x[:1, start:end], None if start else state[:1])
        torch.testing.assert_close(y[:1, start:end], alone, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(last[:1], h, rtol=1e-10, atol=1e-10)
    untouched, h = layer(x[1:], state[1:])
    torch.testing.assert_close(y[1:], untouched, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(last[1:], h, rtol=1e-10, atol=1e-10)
    poisoned = x.clone()
    poisoned[0, 40] = float("nan")
    y_poisoned, last_poisoned = layer(poisoned, state, reset=reset)
    assert torch.equal(y_poisoned[0, 64:], y[0, 64:])
    assert torch.equal(last_poisoned, last)


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"init": "real", "d_state": 3},
        {"init": "legs", "discretisation": "bilinear", "separate_B": True, "project": True},
        {"init": "inv", "bandlimit": 0.5},
    ],
    ids=lambda o: o["init"],
)
def test_laws_hold_with_every_option(law, options):
    check_property(law, partial(S4D, **{"d_state": 8, **options}))


def test_separate_B_is_a_factor_of_the_absorbed_one():
    both = make(2, 4, separate_B=True)
    with torch.no_grad():
        both.B_re.normal_()
        both.B_im.normal_()
    one = make(2, 4)
    with torch.no_grad():
        one.load_state_dict(both.state_dict(), strict=False)
        product = torch.complex(both.B_re, both.B_im) * torch.complex(both.C_re, both.C_im)
        one.C_re.copy_(product.real)
        one.C_im.copy_(product.imag)
    x = torch.randn(1, 40, 2, dtype=torch.float64)
    torch.testing.assert_close(both(x)[0], one(x)[0], rtol=1e-11, atol=1e-11)


def test_bandlimit_drops_the_fast_modes():
    """With dt = 0.1 "lin" turns 0.05 n cycles a step; above 0.25 are those with n > 5."""
    free = make(1, 20, dt_min=0.1, dt_max=0.1)
    limited = make(1, 20, dt_min=0.1, dt_max=0.1, bandlimit=0.5001)
    assert torch.equal(free.C_re, limited.C_re)
    c = limited.system().c[0]
    assert torch.equal(c[:6], free.system().c[0, :6])
    assert not c[6:].any()


def test_projection_is_a_linear_layer_behind():
    bare, layer = make(3, 4), make(3, 4, project=True)
    layer.load_state_dict(bare.state_dict(), strict=False)
    x = torch.randn(2, 9, 3, dtype=torch.float64)
    expected = layer.out(bare(x)[0])
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-12, atol=1e-12)


def test_initial_statistics():
    torch.manual_seed(0)
    layer = S4D(4000, d_state=8)
    u = (layer.log_dt.detach().double().numpy() - np.log(1e-3)) / np.log(100)
    assert kstest(u, "uniform").pvalue > 1e-3
    for weight, variance in ((layer.C_re, 0.5), (layer.C_im, 0.5), (layer.D, 1.0)):
        assert weight.var().item() == pytest.approx(variance, rel=0.1)
        assert abs(weight.mean().item()) < 4 * (variance / weight.numel()) ** 0.5
    expected = torch.tensor([0, pi, 2 * pi, 3 * pi]).expand(4000, 4)
    torch.testing.assert_close(layer.A_im.detach(), expected)
    torch.testing.assert_close(layer.A_log.exp(), torch.full((4000, 4), 0.5))
    real = S4D(4000, d_state=3, init="real")
    assert real.C_re.var().item() == pytest.approx(1.0, rel=0.1)
    torch.testing.assert_close(real.A_log.exp()[7], torch.tensor([1.0, 2.0, 3.0]))


def test_legs_puts_its_input_vector_into_B_or_C():
    size = hippo_normal(16)[2][8:]
    layer = make(3000, 16, init="legs")
    square = (layer.C_re**2 + layer.C_im**2).mean(0)
    np.testing.assert_allclose(square.detach(), size**2, rtol=0.15)
    layer = make(2, 16, init="legs", separate_B=True)
    np.testing.assert_allclose(layer.B_re[1].detach(), size, rtol=1e-12)
    assert not layer.B_im.any()


def test_state_and_eigenvalues_are_real_for_real_systems():
    layer = S4D(3, d_state=5, init="real")
    assert layer.init_state(2).shape == (2, 3, 5)
    assert layer.init_state(2).dtype == torch.float32
    assert not layer.eigenvalues().is_complex()
    layer = S4D(3, d_state=6, dtype=torch.bfloat16)
    assert layer.init_state(2).dtype == torch.complex64
    assert layer.eigenvalues().shape == (9,)
    assert (layer.eigenvalues().abs() < 1).all()


def test_resets_need_no_state_for_every_step():
    """The largest tensor of a call holds one state a block: sixteen times less than the states."""
    layer = S4D(2, d_state=64)
    x, reset = torch.randn(1, 512, 2), torch.zeros(1, 512, dtype=torch.bool)
    for options in ({}, {"reset": reset}):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t
        ):
            layer(x, **options)
        assert max(sizes) * 8 <= 512 * 2 * 64


BAD = [
    ({"n_ssm": 3}, ArgumentError, r"n_ssm must divide d_model=4, got 3"),
    ({"n_ssm": 0}, ArgumentError, "n_ssm must be"),
    ({"d_state": 5}, ArgumentError, "d_state must be even, .*, got 5. Use another size, or init="),
    ({"d_state": 0}, ArgumentError, "d_state must be an integer of at least 1, got 0"),
    ({"d_model": -1}, ArgumentError, "d_model must be an integer of at least 1, got -1"),
    ({"init": "lon"}, UnknownNameError, "no S4D init named 'lon'. Did you mean 'lin'?"),
    ({"discretisation": "euler"}, UnknownNameError, "no S4D discretisation named 'euler'"),
    ({"form": "scam"}, UnknownNameError, "no S4D form named 'scam'. Did you mean 'scan'?"),
    ({"dt_min": 0.5}, ArgumentError, "0 < dt_min <= dt_max, got dt_min=0.5, dt_max=0.1"),
    ({"bandlimit": 0.0}, ArgumentError, "bandlimit must be positive or None, got 0.0"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_constructor_words_its_errors(options, error, message):
    with pytest.raises(error, match=message):
        S4D(**{"d_model": 4, **options})


def test_an_odd_real_system_is_fine():
    assert S4D(2, d_state=5, init="real")(torch.ones(1, 3, 2))[1].shape == (1, 2, 5)


@pytest.mark.unchecked
def test_conv_form_refuses_a_reset():
    with pytest.raises(ArgumentError, match="reset must be None for form='conv'"):
        S4D(2, form="conv")(torch.ones(1, 3, 2), reset=torch.zeros(1, 3, dtype=torch.bool))


@pytest.mark.parametrize("form", S4D.forms)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_modes_next_to_zero_have_gradients(form, dtype):
    """exp(-200) is 1e-87, whose square has no inverse: a mode that sums what it reads."""
    layer = make(form=form).to(dtype)
    with torch.no_grad():
        layer.A_log.fill_(-200)
        layer.A_im.zero_()
    x = torch.randn(2, 40, 3, dtype=dtype)
    y, _ = layer(x)
    gain = 2 * layer.C_re.sum(1) * layer.log_dt.exp()
    expected = x.cumsum(1) * gain + layer.D * x
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    wanted = (layer.log_dt, layer.C_re, layer.D)
    for got, other in zip(
        torch.autograd.grad(y.sum(), (*wanted, layer.A_log, layer.A_im)),
        (*torch.autograd.grad(expected.sum(), wanted), None, None),
        strict=True,
    ):
        assert got.isfinite().all()
        if other is not None:
            torch.testing.assert_close(got, other, rtol=1e-3, atol=1e-3)
