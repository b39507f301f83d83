"""S5 against another implementation, control theory, S4D and the equations."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy.signal import cont2discrete, dlsim
from scipy.stats import kstest

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import S4D, S5
from linrnn.nn.hippo import hippo_normal
from linrnn.testing import check_property

each_form = pytest.mark.parametrize("form", S5.forms)
each_rule = pytest.mark.parametrize("discretisation", ["zoh", "bilinear"])
each_symmetry = pytest.mark.parametrize("conj_sym", [True, False])


def make(d_model=3, d_state=6, *, seed=0, **options):
    torch.manual_seed(seed)
    return S5(d_model, d_state=d_state, dtype=torch.float64, **options)


def matrices(layer):
    """``A, B, C`` of all modes in complex128, conjugates included, so that y = C h is real."""
    p = {n: v.detach().double().numpy() for n, v in layer.named_parameters()}
    A = p["A_re"] + 1j * p["A_im"]
    B, C = p["B"][:, 0] + 1j * p["B"][:, 1], p["C"][..., 0] - 1j * p["C"][..., 1]
    dt = layer.step_rescale * np.exp(p["log_dt"])
    if layer.conj_sym:
        A, B, C = np.r_[A, A.conj()], np.r_[B, B.conj()], np.c_[C, C.conj()]
        dt = np.r_[dt, dt]
    return A, B, C, dt, p["D"]


def discretised(layer):
    """``a`` and ``gain B`` by SciPy, mode by mode."""
    A, B, _, dt, _ = matrices(layer)
    one, a, b = np.ones((1, 1)), np.empty_like(A), np.empty_like(B)
    for n in range(len(A)):
        system = (A[n] * one, B[n : n + 1], one, 0 * B[n : n + 1])
        step, into, *_ = cont2discrete(system, dt[n], layer.discretisation)
        a[n], b[n] = step.item(), into
    return a, b


@each_form
@each_rule
@each_symmetry
def test_forward_equals_a_transcription_in_numpy(conj_sym, discretisation, form):
    layer = make(conj_sym=conj_sym, discretisation=discretisation, form=form, step_rescale=1.5)
    a, b = discretised(layer)
    _, _, C, _, D = matrices(layer)
    x = torch.randn(2, 50, 3, dtype=torch.float64)
    h0 = torch.randn(2, layer.modes, dtype=torch.complex128)
    y, last = layer(x, h0)
    h = h0.numpy()
    h = np.concatenate([h, h.conj()], 1) if conj_sym else h
    expected = []
    for t in range(50):
        h = a * h + x[:, t].numpy() @ b.T
        expected.append((h @ C.T).real + D * x[:, t].numpy())
    np.testing.assert_allclose(y.detach(), np.stack(expected, 1), rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(last.detach(), h[:, : layer.modes], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("blocks", [1, 3])
@each_symmetry
def test_forward_equals_s5_pytorch(conj_sym, blocks):
    """The same weights in the package s5-pytorch, which keeps both of a conjugate pair."""
    peer_package = pytest.importorskip("s5")
    layer = make(5, 12, blocks=blocks, conj_sym=conj_sym)
    A, B, C, dt, D = matrices(layer)
    peer = peer_package.S5(5, 12)
    with torch.no_grad():
        peer.seq.Lambda.copy_(torch.from_numpy(A))
        peer.seq.B.copy_(torch.view_as_real(torch.from_numpy(B)))
        peer.seq.C.copy_(torch.from_numpy(C))
        peer.seq.D.copy_(torch.from_numpy(D))
        peer.seq.log_step.copy_(torch.from_numpy(np.log(dt)))
    x = torch.randn(2, 40, 5, dtype=torch.float64)
    with torch.no_grad():
        expected = peer(x.float())
    y = layer(x)[0].detach()
    assert (y - expected).abs().max() < 2e-5 * y.abs().max()  # the peer is float32


def test_initial_eigenvalues_are_those_of_s5_pytorch():
    peer_package = pytest.importorskip("s5")
    expected = peer_package.S5(4, 16, block_count=2).seq.Lambda.detach().to(torch.complex128)
    layer = make(4, 16, blocks=2, conj_sym=False)
    got = torch.complex(layer.A_re, layer.A_im).detach()
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@each_rule
def test_forward_equals_scipy_dlsim_of_the_real_system(discretisation):
    layer = make(2, 8, discretisation=discretisation, dt_min=0.05, dt_max=0.05)
    p = {n: v.detach().numpy() for n, v in layer.named_parameters()}
    A = np.block(
        [[np.diag(p["A_re"]), -np.diag(p["A_im"])], [np.diag(p["A_im"]), np.diag(p["A_re"])]]
    )
    B, C = np.vstack(p["B"].swapaxes(0, 1)), 2 * np.hstack([p["C"][..., 0], p["C"][..., 1]])
    step, into, *_ = cont2discrete((A, B, C, np.zeros((2, 2))), 0.05, discretisation)
    x = torch.randn(1, 60, 2, dtype=torch.float64)
    D = C @ into + np.diag(p["D"])
    _, expected, _ = dlsim((step, into, C @ step, D, 1.0), x[0].numpy())
    np.testing.assert_allclose(layer(x)[0][0].detach(), expected, rtol=1e-9, atol=1e-10)


def test_block_selecting_matrices_make_it_a_row_of_S4D_layers():
    """Mode m of channel c reads and writes channel c alone."""
    channels, modes = 3, 4
    single = S4D(channels, d_state=2 * modes, init="inv", dtype=torch.float64)
    layer = make(channels, 2 * modes * channels)
    with torch.no_grad():
        layer.B.zero_()
        layer.C.zero_()
        layer.A_re.copy_(-single.A_log.exp().flatten())
        layer.A_im.copy_(single.A_im.flatten())
        layer.log_dt.copy_(single.log_dt.repeat_interleave(modes))
        layer.D.copy_(single.D)
        for c in range(channels):
            own = slice(c * modes, (c + 1) * modes)
            layer.B[own, 0, c] = 1
            layer.C[c, own] = torch.stack([single.C_re[c], -single.C_im[c]], -1)
    x = torch.randn(2, 70, channels, dtype=torch.float64)
    y, last = layer(x)
    expected, expected_last = single(x)
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(last, expected_last.flatten(1), rtol=1e-10, atol=1e-10)


def test_impulse_constant_and_oscillating_inputs_reach_the_transfer_function():
    """``C (I - a e^{-i omega})^-1 gain B + D``, and the kernel ``C a^j gain B``."""
    layer = make(2, 6, dt_min=0.3, dt_max=0.5)
    a, b = discretised(layer)
    _, _, C, _, D = matrices(layer)
    impulse = torch.zeros(1, 20, 2, dtype=torch.float64)
    impulse[0, 0, 1] = 1
    kernel = np.stack([(C * a**j) @ b[:, 1] for j in range(20)]).real
    kernel[0, 1] += D[1]
    np.testing.assert_allclose(layer(impulse)[0][0].detach(), kernel, rtol=1e-9, atol=1e-10)
    direction = torch.tensor([1.0, -0.5], dtype=torch.float64)
    for omega in (0.0, 0.7, 2.0):
        wave = torch.exp(1j * omega * torch.arange(400, dtype=torch.float64))
        parts = [layer((w[:, None] * direction)[None])[0][0, -1] for w in (wave.real, wave.imag)]
        got = torch.complex(*(p.detach() for p in parts)) / wave[-1]
        expected = (C / (1 - a * np.exp(-1j * omega))) @ (b @ direction.numpy())
        np.testing.assert_allclose(got, expected + D * direction.numpy(), rtol=1e-9, atol=1e-9)


def test_initial_statistics():
    torch.manual_seed(0)
    layer = S5(200, d_state=160, blocks=2, dtype=torch.float64)
    lam = hippo_normal(80)[0]
    for block in range(2):
        own = slice(40 * block, 40 * (block + 1))
        torch.testing.assert_close(layer.A_im[own].detach(), lam.imag[:40])
        torch.testing.assert_close(layer.A_re[own].detach(), lam.real[:40])
    assert (layer.A_im < 0).all()
    # V^* mixes real draws of variance 1/160 unitarily, V complex ones of twice 1/160
    for square, variance in ((layer.B.square().sum(1), 1 / 160), (layer.C.square().sum(2), 1 / 80)):
        assert square.mean().item() == pytest.approx(variance, rel=0.05)
    u = (layer.log_dt.detach().numpy() - np.log(1e-3)) / np.log(100)
    assert kstest(u, "uniform").pvalue > 1e-3
    assert layer.D.var().item() == pytest.approx(1, rel=0.3)


def test_B_is_real_in_the_coordinates_of_hippo():
    """``B = V^* B'`` with B' real and cut at two standard deviations, so B' = 2 Re(V B)."""
    layer = make(50, 40, blocks=2)
    V = hippo_normal(20)[1][:, :10]
    B = torch.complex(*layer.B.detach().unbind(1))
    real = 2 * (torch.block_diag(V, V) @ B).real
    full = torch.cat([B, B.conj()])
    assert full.abs().square().sum().item() == pytest.approx(real.square().sum().item())
    assert real.abs().max() <= 2 / 0.8796256610342398 / 40**0.5 + 1e-9
    assert real.var().item() == pytest.approx(1 / 40, rel=0.1)


@pytest.mark.parametrize(("d_model", "d_state"), [(256, 32), (32, 256), (96, 96)])
@each_symmetry
def test_initial_variances_are_those_of_the_public_code(d_model, d_state, conj_sym):
    """JAX's LeCun initialiser takes the last axis but one, times those before it, for the fan-in:
    d_state of B (d_state, d_model) and of a row of C (1, d_state, 2), of which
    "trunc_standard_normal" is made, and d_model d_state of C (d_model, d_state, 2), of which
    "lecun_normal" is. Jax 0.10.2 gave 1/63.8 for (64, 1000), 1/64.1 for rows of (1, 64, 2) and
    1/3120 for (50, 64, 2).
    """
    variances = {"truncated": 2 / d_state, "lecun": 2 / (d_model * d_state), "normal": 1.0}
    for C_init, variance in variances.items():
        layer = make(d_model, d_state, C_init=C_init, conj_sym=conj_sym, blocks=2)
        assert layer.B.square().sum(1).mean().item() == pytest.approx(1 / d_state, rel=0.1)
        assert layer.C.square().sum(2).mean().item() == pytest.approx(variance, rel=0.1)


def test_normal_C_has_parts_of_variance_one_half():
    layer = make(400, 20, C_init="normal")
    for part in layer.C.unbind(-1):
        assert part.var().item() == pytest.approx(0.5, rel=0.05)


def test_clipped_eigenvalues_stay_inside_the_disc():
    layer, free = make(2, 4, clip_eigs=True), make(2, 4)
    for one in (layer, free):
        with torch.no_grad():
            one.A_re.fill_(0.3)
    assert (layer.eigenvalues().abs() < 1).all()
    assert (free.eigenvalues().abs() > 1).all()
    dt = layer.log_dt.exp()
    torch.testing.assert_close(layer.eigenvalues().abs(), (-1e-4 * dt).exp())


def test_step_rescale_multiplies_the_step_size():
    """Reading every second sample of a held signal with steps of twice the size changes nothing."""
    layer = make(2, 6)
    x = torch.randn(1, 30, 2, dtype=torch.float64)
    fine, _ = layer(x.repeat_interleave(2, 1))
    layer.step_rescale = 2.0
    coarse, _ = layer(x)
    torch.testing.assert_close(coarse, fine[:, 1::2], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"conj_sym": False, "d_state": 5, "discretisation": "bilinear"},
        {"blocks": 2, "d_state": 8, "C_init": "normal", "clip_eigs": True, "step_rescale": 3.0},
        {"shared_dt": True},
    ],
    ids=["full", "blocks", "one dt"],
)
def test_laws_hold_with_every_option(law, options):
    check_property(law, partial(S5, **options))


@each_form
def test_a_shared_step_size_is_one_that_all_modes_have(form):
    """And its gradient is the sum of theirs; of times between steps as well."""
    shared, each = make(shared_dt=True, form=form), make(form=form)
    assert shared.log_dt.shape == (1,)
    each.load_state_dict({**shared.state_dict(), "log_dt": shared.log_dt.expand(3)})
    x = torch.randn(2, 20, 3, dtype=torch.float64)
    more = {} if form == "conv" else {"dt": 0.5 + torch.rand(2, 20, dtype=torch.float64)}
    found = []
    for layer in (shared, each):
        y = layer(x, **more)[0]
        found.append((y, *torch.autograd.grad(y.square().sum(), [layer.log_dt, layer.A_re])))
    (y, dt, A), (expected, dts, As) = found
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(dt, dts.sum(0, keepdim=True), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(A, As, rtol=1e-10, atol=1e-10)


def test_state_holds_half_of_each_pair():
    assert S5(4).init_state(3).shape == (3, 2)
    assert S5(4, d_state=7, conj_sym=False).init_state(3).shape == (3, 7)
    assert S5(4, dtype=torch.bfloat16).init_state(1).dtype == torch.complex64


BAD = [
    ({"d_state": 5}, ArgumentError, "d_state must be even, .*, got 5. Use another size, or conj"),
    ({"d_model": 3}, ArgumentError, "d_state must be even, .*, got 3"),
    ({"d_state": 12, "blocks": 4}, ArgumentError, "multiple of 8 for blocks=4, got 12"),
    ({"d_state": 9, "blocks": 2, "conj_sym": False}, ArgumentError, "multiple of 2 .*, got 9"),
    ({"blocks": 0}, ArgumentError, "blocks must be an integer of at least 1, got 0"),
    ({"discretisation": "euler"}, UnknownNameError, "no S5 discretisation named 'euler'"),
    ({"C_init": "norm"}, UnknownNameError, "no S5 C_init named 'norm'. Did you mean 'normal'?"),
    ({"form": "scam"}, UnknownNameError, "no S5 form named 'scam'. Did you mean 'scan'?"),
    ({"dt_max": 1e-4}, ArgumentError, "got dt_min=0.001, dt_max=0.0001"),
    ({"step_rescale": -1.0}, ArgumentError, "step_rescale must be positive, got -1.0"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_constructor_words_its_errors(options, error, message):
    with pytest.raises(error, match=message):
        S5(**{"d_model": 4, **options})


@pytest.mark.unchecked
def test_conv_form_refuses_a_reset():
    with pytest.raises(ArgumentError, match="reset must be None for form='conv'"):
        S5(2, form="conv")(torch.ones(1, 3, 2), reset=torch.zeros(1, 3, dtype=torch.bool))
