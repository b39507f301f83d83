"""S4 against dense matrices, SciPy, published kernels and the diagonal layer."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.signal import cont2discrete, dlsim
from scipy.stats import kstest

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import S4, S4D
from linrnn.nn.hippo import hippo, hippo_normal, nplr
from linrnn.ops.conv import cauchy, dplr
from linrnn.testing import check_property

GOLDEN = [0.5470521977, 0.2234393675, 0.0639939291, -0.0045994186]  # N = 4, dt = 0.1, C = 1
each_form = pytest.mark.parametrize("form", S4.forms)


def make(d_model=3, d_state=6, *, seed=0, **options):
    torch.manual_seed(seed)
    return S4(d_model, d_state=d_state, dtype=torch.float64, **options)


def dense(layer):
    """Bilinear A and B of SciPy, C and D, of each channel, with all modes: complex128."""
    p = {n: v.detach().double().numpy() for n, v in layer.named_parameters()}

    def both(name):
        z = p[f"{name}_re"] + 1j * p[f"{name}_im"]
        return np.concatenate([z, z.conj()], -1)

    kept = -np.exp(p["A_log"]) + 1j * p["A_im"]
    lam, P, B, C = np.concatenate([kept, kept.conj()], -1), both("P"), both("B"), both("C")
    for i, dt in enumerate(np.exp(p["log_dt"])):
        A = np.diag(lam[i]) - P[i].T @ P[i].conj()
        step, into, *_ = cont2discrete((A, B[i][:, None], C[i][None], 0), dt, "bilinear")
        yield step, into[:, 0], C[i], p["D"][i]


def numpy_s4(layer, x, h0):
    """The recurrence with dense matrices in complex128, one step at a time."""
    ys, last = np.empty(x.shape), np.empty(h0.shape, complex)
    for i, (A, B, C, D) in enumerate(dense(layer)):
        h = np.concatenate([h0[:, i], h0[:, i].conj()], -1)
        for t in range(x.shape[1]):
            h = h @ A.T + x[:, t, i, None] * B
            ys[:, t, i] = (h @ C).real + D * x[:, t, i]
        last[:, i] = h[:, : h0.shape[-1]]
    return ys, last


@pytest.mark.parametrize("rank", [1, 2])
@each_form
def test_forward_equals_dense_matrices(form, rank):
    layer = make(2, 8, form=form)
    with torch.no_grad():
        layer.P_re.set_(torch.randn(2, rank, 4, dtype=torch.float64))
        layer.P_im.set_(torch.randn(2, rank, 4, dtype=torch.float64))
    h0 = torch.randn(2, 2, 4, dtype=torch.complex128)
    for time in (1, 2, 2 * dplr.BLOCK + 22, dplr.LONG + 22):  # blocks, long ones too, and a rest
        x = torch.randn(2, time, 2, dtype=torch.float64)
        for start in (h0, torch.zeros_like(h0)):
            y, last = layer(x, start)
            expected, expected_last = numpy_s4(layer, x.numpy(), start.numpy())
            np.testing.assert_allclose(y.detach(), expected, rtol=1e-9, atol=1e-10)
            np.testing.assert_allclose(last.detach(), expected_last, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("time", [1, 2, 7, 64, 257])
def test_kernel_three_ways(time):
    """Powers of the dense matrix, the textbook generating function, and ours."""
    layer = make(2, 16, seed=1)
    system = layer.system()
    matrices = dplr.Transition.of(system).matrices(system.c, time, 4, torch.float64)
    after = matrices.after(system.c, time)
    ours = dplr.kernel(system, time, after).detach().numpy()
    z = np.exp(-2j * np.pi * np.arange(time) / time)
    for i, (A, B, C, _) in enumerate(dense(layer)):
        row, powers = C, []
        for _ in range(time):
            powers.append((row @ B).real)
            row = row @ A
        np.testing.assert_allclose(ours[i], powers, rtol=1e-9, atol=1e-10)
        resolvent = [np.linalg.solve(np.eye(16) - A * node, B) for node in z]
        generated = np.fft.ifft(np.array(resolvent) @ (C - row)).real
        np.testing.assert_allclose(generated, powers, rtol=1e-9, atol=1e-10)


def impulse(layer, time):
    x = torch.zeros(1, time, layer.d_model, dtype=layer.D.dtype)
    x[:, 0] = 1
    return layer(x)[0][0].detach()


@each_form
def test_kernel_of_legs_is_the_published_one(form):
    """With C of ones for the states of HiPPO, before they are turned into those kept here."""
    layer, V = make(1, 4, dt_min=0.1, dt_max=0.1, form=form), hippo_normal(4)[1]
    C = V.sum(0)[2:]
    with torch.no_grad():
        layer.C_re.copy_(C.real)
        layer.C_im.copy_(C.imag)
        layer.D.zero_()
    np.testing.assert_allclose(impulse(layer, 4)[:, 0], GOLDEN, atol=1e-10)


MEMORIES = {
    "legs": ("legs", {}),
    "legt": ("legt", {"theta": 2.0}),
    "lagt": ("lagt", {"beta": 0.01}),
    "fout": ("fout", {"theta": 2.0}),
}


@pytest.mark.parametrize("measure", MEMORIES)
def test_it_starts_as_the_memory(measure):
    """The response to a pulse, read by the states of HiPPO before they are turned."""
    name, options = MEMORIES[measure]
    A, B = (z.numpy() for z in hippo(name, 8, **options))
    C = np.cos(np.arange(8))
    turned = torch.tensor(C).to(torch.complex128) @ nplr(name, 8, **options).V
    layer = make(1, 8, dt_min=0.05, dt_max=0.05, measure=measure)
    with torch.no_grad():
        layer.C_re.copy_(turned[4:].real)
        layer.C_im.copy_(turned[4:].imag)
        layer.D.zero_()
    step, into, *_ = cont2discrete((A, B[:, None], B[None], 0), 0.05, "bilinear")
    expected, h = [], into[:, 0]
    for _ in range(60):
        expected.append(C @ h)
        h = step @ h
    # real parts of 0 begin at -1e-4, over 60 steps of 0.05
    near = 1e-3 if measure in ("legt", "fout") else 1e-10
    np.testing.assert_allclose(impulse(layer, 60)[:, 0], expected, atol=near)


def test_half_of_the_systems_of_hippo_are_legs_and_half_fourier():
    layer = make(8, 6, measure="hippo", n_ssm=4)
    legs, fout = make(1, 6), make(1, 6, measure="fout")
    for name in ("A_log", "A_im", "P_re", "P_im", "B_re", "B_im"):
        for rows, other in ((slice(0, 2), legs), (slice(2, 4), fout)):
            for row in layer.get_parameter(name)[rows]:
                torch.testing.assert_close(row, other.get_parameter(name)[0])
    torch.testing.assert_close(layer.A_im[2], torch.pi * torch.tensor([0.0, 1, 2]).double())


def test_systems_are_shared_in_turn_and_their_gradients_added():
    shared, each = make(6, 4, n_ssm=3), make(6, 4)
    with torch.no_grad():
        for name, parameter in each.named_parameters():
            other = shared.get_parameter(name)
            other.add_(0.1 * torch.randn_like(other))
            parameter.copy_(other if len(other) == 6 else other.repeat(2, *[1] * (other.ndim - 1)))
    x = torch.randn(2, 40, 6, dtype=torch.float64)
    y, expected = shared(x)[0], each(x)[0]
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    for name in ("A_im", "P_re", "B_re", "C_re"):
        got = torch.autograd.grad(y.square().sum(), shared.get_parameter(name), retain_graph=True)
        into = each.get_parameter(name)
        want = torch.autograd.grad(expected.square().sum(), into, retain_graph=True)[0]
        want = want if len(want) == len(got[0]) else want[:3] + want[3:]
        torch.testing.assert_close(got[0], want, rtol=1e-10, atol=1e-10)


def test_clipped_inputs_are_those_of_the_public_code():
    """state-spaces/s4 at e757cef, nplr("legs", 8); the sign of a pair says nothing."""
    layer = make(1, 8, B_clip=2.0)
    B = [0.6076476574 + 0.5195251107j, 0.2907406092 + 1.1384202242j]
    B += [0.1714429259 + 1.8358811141j, 0.1297750473 + 2j]
    P = [0.4296717048 + 0.3673598368j, 0.2055846453 + 0.8049846888j]
    P += [0.1212285161 + 1.2981640100j, 0.0917646885 + 3.6444227695j]
    found_B = torch.complex(layer.B_re, layer.B_im)[0].detach().numpy()
    found_P = torch.complex(layer.P_re, layer.P_im)[0, 0].detach().numpy()
    np.testing.assert_allclose(np.abs(found_B.real), np.real(B), atol=1e-6)
    np.testing.assert_allclose(np.abs(found_B.imag), np.imag(B), atol=1e-6)
    np.testing.assert_allclose(found_B / found_P, np.conj(B) / np.conj(P), atol=1e-5)


def test_columns_that_a_measure_lacks_begin_at_zero():
    layer = make(2, 6, rank=3)
    assert layer.P_re.shape == (2, 3, 3)
    assert layer.P_re[:, 1:].eq(0).all()
    assert layer.P_im[:, 1:].eq(0).all()
    torch.testing.assert_close(layer.P_re[:, :1], make(2, 6).P_re)


@pytest.mark.parametrize("measure", ["fout", "legt", "hippo", "lagt"])
def test_modes_that_hardly_fade_are_as_exact_by_fft(measure):
    """Their poles lie 1e-7 from nodes of the FFT, by which the generating function divides."""
    double = make(4, 16, measure=measure)
    x, results = torch.randn(2, 300, 4), []
    for form, like in (("scan", double), ("conv", double), ("conv", None)):
        layer = S4(4, d_state=16, measure=measure, form=form, dtype=like and torch.float64)
        layer.load_state_dict(double.state_dict())
        y = layer(x.to(layer.D.dtype))[0]
        names = ("A_log", "A_im", "B_re", "P_im", "C_re", "log_dt")
        sources = [layer.get_parameter(name) for name in names]
        results.append([y, *torch.autograd.grad(y.sum(), sources)])
    expected, exact, single = results
    for want, got, rough in zip(expected, exact, single, strict=True):
        size = want.abs().max()
        assert (got - want).abs().max() < 1e-12 * size
        assert (rough.double() - want).abs().max() < 1e-5 * size


@each_form
def test_channels_are_outputs_of_one_system_behind_one_map(form):
    layer = make(4, 6, channels=3, form=form)
    x, h0 = torch.randn(2, 40, 4, dtype=torch.float64), torch.randn(2, 4, 3).to(torch.complex128)
    outputs, states = [], []
    for C_re, C_im, D in zip(layer.C_re, layer.C_im, layer.D, strict=True):
        one = make(4, 6, form=form)
        one.load_state_dict(
            {**layer.state_dict(), "C_re": C_re, "C_im": C_im, "D": D}, strict=False
        )
        y, last = one(x, h0)
        outputs.append(y)
        states.append(last)
    z = layer.out(torch.nn.functional.gelu(torch.cat(outputs, -1)))
    y, last = layer(x, h0)
    torch.testing.assert_close(y, z[..., :4] * z[..., 4:].sigmoid(), rtol=1e-10, atol=1e-10)
    assert last.shape == (2, 4, 3)
    for state in states:
        torch.testing.assert_close(last, state, rtol=1e-10, atol=1e-10)


def test_a_layer_with_channels_is_no_long_filter():
    assert make(2, 4, channels=1).impulse_responses(5) is None
    assert make(2, 4).impulse_responses(5).shape == (1, 2, 5)


OPTIONS = [
    {"channels": 2},
    {"measure": "legt", "n_ssm": 2},
    {"measure": "hippo", "n_ssm": 2, "rank": 2, "B_clip": 2.0},
    {"measure": "lagt"},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients"])
def test_laws_hold_with_every_option(law, options):
    check_property(law, partial(S4, **options))


@each_form
def test_forward_equals_scipy_dlsim(form):
    """A channel as a real system of d_state states, in control theory's delayed convention."""
    layer = make(1, 6, seed=1, form=form)
    A, B, C, D = next(dense(layer))
    real = np.kron([[1, 1], [-1j, 1j]], np.eye(3)) / 2  # both parts of the kept half
    step = (real @ A @ np.linalg.inv(real)).real
    into, out = (real @ B)[:, None].real, (C @ np.linalg.inv(real))[None].real
    x = torch.randn(1, 100, 1, dtype=torch.float64)
    _, expected, _ = dlsim((step, into, out @ step, out @ into + D, 1.0), x[0].numpy())
    np.testing.assert_allclose(layer(x)[0][0].detach(), expected, rtol=1e-9, atol=1e-10)


def test_without_low_rank_part_it_is_s4d_by_the_bilinear_rule():
    layer, plain = make(2, 6), S4D(2, d_state=6, discretisation="bilinear", separate_B=True)
    layer.P_re.data.zero_()
    plain.double().load_state_dict(layer.state_dict(), strict=False)
    x = torch.randn(1, 70, 2, dtype=torch.float64)
    for form in S4.forms:
        layer.form = form
        torch.testing.assert_close(layer(x), plain(x), rtol=1e-11, atol=1e-11)


def test_eigenvalues_are_inside_the_unit_circle_whatever_is_learned():
    for seed in range(3):
        layer = make(2, 8, seed=seed, dt_min=0.1, dt_max=1.0)
        with torch.no_grad():
            for p in layer.parameters():
                p.add_(3 * torch.randn_like(p))
        assert (layer.eigenvalues().abs() < 1).all()
    a = np.linalg.eigvals(next(dense(make(1, 8)))[0])
    found = make(1, 8).eigenvalues().detach().numpy()
    np.testing.assert_allclose(np.sort_complex(found), np.sort_complex(a), atol=1e-10)


@pytest.mark.parametrize("form", ["steps", "conv"])
def test_gradients_of_blocks_are_those_of_steps_and_of_the_kernel(form):
    layer, other = make(2, 4), make(2, 4, form="conv")
    x = torch.randn(2, 2 * dplr.BLOCK + 5, 2, dtype=torch.float64).requires_grad_()
    state = torch.randn(2, 2, 2, dtype=torch.complex128).requires_grad_()

    def by_steps(x, h):
        ys = []
        for x_t in x.unbind(1):
            y_t, h = layer.step(x_t, h)
            ys.append(y_t)
        return torch.stack(ys, 1), h

    def gradients(run, layer):
        y, last = run(x, state)
        loss = y.square().sum() + last.abs().square().sum()
        return torch.autograd.grad(loss, [x, state, *layer.parameters()])

    expected = gradients(layer, layer)
    got = gradients(by_steps, layer) if form == "steps" else gradients(other, other)
    for one, two in zip(got, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-8)


def test_resets_cut_blocks_anywhere():
    layer, time = make(2, 4), 5 * dplr.RESET_BLOCK + 3
    starts = [0, 7, 8, 31, 32, 33, 64, 80, time]
    x, reset = torch.randn(1, time, 2, dtype=torch.float64), torch.zeros(1, time, dtype=torch.bool)
    reset[0, starts[1:-1]] = True
    state = layer(x[:, :3])[1]
    y, last = layer(x, state, reset=reset)
    for start, end in pairwise(starts):
        alone, h = layer(x[:, start:end], None if start else state)
        torch.testing.assert_close(y[:, start:end], alone, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(last, h, rtol=1e-10, atol=1e-10)


def test_float32_forms_agree_at_the_published_size():
    torch.manual_seed(0)
    exact = S4(2, dtype=torch.float64)
    x = torch.randn(1, 3000, 2)
    for form in S4.forms:
        layer = S4(2, form=form)
        layer.load_state_dict(exact.state_dict())
        y, expected = layer(x)[0], exact(x.double())[0]
        assert (y - expected).abs().max() < 1e-5 * expected.abs().max()


@each_form
def test_no_array_of_states_times_length_is_ever_held(form, monkeypatch):
    monkeypatch.setattr(cauchy, "TILE", 2**13)
    channels, time = 2, 2**12
    layer, x = S4(channels, form=form), torch.randn(1, time, channels)
    with torch.profiler.profile(profile_memory=True) as profile:
        layer(x)[0].sum().backward()
    largest = max(e.cpu_memory_usage for e in profile.events() if e.name.startswith("aten::"))
    assert largest <= channels * layer.d_state * time * 4 / 8  # of the states, in float32


def test_initial_statistics():
    torch.manual_seed(0)
    layer = S4(3000, d_state=8)
    u = (layer.log_dt.detach().double().numpy() - np.log(1e-3)) / np.log(100)
    assert kstest(u, "uniform").pvalue > 1e-3
    for weight, variance in ((layer.C_re, 0.5), (layer.C_im, 0.5), (layer.D, 1.0)):
        assert weight.var().item() == pytest.approx(variance, rel=0.1)
        assert abs(weight.mean().item()) < 4 * (variance / weight.numel()) ** 0.5


BAD = [
    ({"d_state": 5}, ArgumentError, "d_state must be even, .*, got 5. Use another size"),
    ({"d_state": 0}, ArgumentError, "d_state must be an integer of at least 1, got 0"),
    ({"form": "scam"}, UnknownNameError, "no S4 form named 'scam'. Did you mean 'scan'?"),
    ({"measure": "lags"}, UnknownNameError, "no S4 measure named 'lags'. Did you mean"),
    (
        {"measure": "legt", "rank": 1},
        ArgumentError,
        "rank must be at least 2 for measure='legt'",
    ),
    ({"n_ssm": 3}, ArgumentError, "n_ssm must divide d_model=4, got 3"),
    ({"measure": "hippo", "n_ssm": 1}, ArgumentError, "and even for measure='hippo', got 1"),
    ({"B_clip": 0.0}, ArgumentError, "B_clip must be positive and finite, got 0.0"),
    ({"dt_min": 0.5}, ArgumentError, "0 < dt_min <= dt_max, got dt_min=0.5, dt_max=0.1"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_constructor_words_its_errors(options, error, message):
    with pytest.raises(error, match=message):
        S4(**{"d_model": 4, **options})
