"""H3 against linear attention, a plain convolution and the equations."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import H3
from linrnn.testing import check_property

each_form = pytest.mark.parametrize("form", H3.forms)
each_head = pytest.mark.parametrize("d_head", [1, 2, 4])


def make(d_model=4, *, seed=0, **options):
    torch.manual_seed(seed)
    options = {"d_state": 4, "d_shift": 3, **options}
    return H3(d_model, dtype=torch.float64, **options)


def projections(layer, x):
    return layer.in_proj(x).detach().chunk(3, -1)


@each_form
@each_head
def test_forward_equals_a_transcription_of_the_equations(d_head, form):
    layer = make(d_head=d_head, form=form)
    x = torch.randn(2, 45, 4, dtype=torch.float64)
    q, k, v = projections(layer, x)
    taps = layer.shift.weight.detach().flip(1)  # of lag 0, 1, 2
    a, b, c = (p.detach() for p in layer.diag.system()[:3])
    heads, D = 4 // d_head, layer.diag.D.detach()
    h = torch.zeros(2, heads, d_head, d_head, 2, dtype=torch.complex128)
    ys = []
    for t in range(45):
        s = sum(taps[:, j] * k[:, t - j] for j in range(3) if t >= j) + layer.D_k.detach() * k[:, t]
        s, v_t, q_t = (z.view(2, heads, d_head) for z in (s, v[:, t], q[:, t]))
        kv = s[..., :, None] * v_t[..., None, :]
        h = a[:, None, None] * h + b[:, None, None] * kv[..., None]
        z = (c[:, None, None] * h).real.sum(-1) + D[:, None, None] * kv
        ys.append((q_t[..., None] * z).sum(2).flatten(1))
    y, state = layer(x)
    expected = layer.out_proj(torch.stack(ys, 1))
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    got = state["diag"].view(2, d_head, d_head, heads, 2).permute(0, 3, 1, 2, 4)
    torch.testing.assert_close(got, h, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(state["shift"], k[:, -2:], rtol=1e-12, atol=1e-12)


@each_head
def test_a_constant_kernel_makes_it_linear_attention(d_head):
    """``y_t = sum_{s <= t} (q_t . k_s) v_s`` in every head, without normalisation."""
    layer = make(d_head=d_head, discretisation="zoh")
    with torch.no_grad():
        layer.shift.weight.copy_(torch.tensor([0.0, 0.0, 1.0]))  # sees the current input only
        layer.D_k.zero_()
        layer.diag.D.zero_()
        layer.diag.A_log.fill_(-60)  # an integrator
        layer.diag.A_im.zero_()
        layer.diag.log_dt.zero_()
        layer.diag.C_re.fill_(0.25)  # times two modes, times two for the conjugates
        layer.diag.C_im.zero_()
        layer.out_proj.weight.copy_(torch.eye(4))
        layer.out_proj.bias.zero_()
    x = torch.randn(2, 70, 4, dtype=torch.float64)
    q, k, v = (z.unflatten(-1, (-1, d_head)).transpose(1, 2) for z in projections(layer, x))
    scores = (q @ k.transpose(2, 3)).tril()  # (B, heads, T, T)
    expected = (scores @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-9, atol=1e-9)


def test_shift_system_is_a_grouped_convolution():
    """Seen through a diagonal system that passes its input on: ``q s v`` with ``s`` the shift."""
    layer = make(d_shift=5)
    with torch.no_grad():
        layer.diag.C_re.zero_()
        layer.diag.C_im.zero_()
        layer.diag.D.fill_(1)
    x = torch.randn(2, 20, 4, dtype=torch.float64)
    q, k, v = projections(layer, x)
    taps = layer.shift.weight.detach()[:, None]
    s = F.conv1d(F.pad(k.transpose(1, 2), (4, 0)), taps, groups=4).transpose(1, 2)
    expected = layer.out_proj(q * (s + layer.D_k * k) * v)
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("d_shift", [1, 2, 9])
def test_state_of_the_shift_system_is_carried(d_shift):
    layer = make(d_shift=d_shift)
    x = torch.randn(2, 30, 4, dtype=torch.float64)
    whole, last = layer(x)
    assert last["shift"].shape == (2, d_shift - 1, 4)
    ys, state = [], None
    for part in x.split([1, 3, 20, 6], 1):
        y, state = layer(part, state)
        ys.append(y)
    torch.testing.assert_close(torch.cat(ys, 1), whole, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(state, last, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize(
    "options",
    [
        {"d_head": 2, "d_shift": 4, "d_state": 4},
        {"d_head": 3, "d_shift": 1, "d_state": 3, "init": "real", "discretisation": "zoh"},
    ],
    ids=["pairs", "real"],
)
def test_laws_hold_with_every_option(law, options):
    check_property(law, partial(H3, **options))


def test_initial_statistics():
    torch.manual_seed(0)
    layer = H3(400)
    limit = 64**-0.5
    taps = layer.shift.weight.detach()
    assert taps.shape == (400, 64)
    assert taps.abs().max() <= limit
    assert taps.var().item() == pytest.approx(limit**2 / 3, rel=0.05)
    for skip in (layer.D_k, layer.diag.D):
        assert skip.var().item() == pytest.approx(1, rel=0.25)
    limit = 400**-0.5
    for linear in (layer.in_proj, layer.out_proj):
        assert linear.weight.abs().max() <= limit
        assert linear.weight.var().item() == pytest.approx(limit**2 / 3, rel=0.05)
    assert layer.diag.discretisation == "bilinear"
    np.testing.assert_allclose(layer.diag.A_im[3].detach(), np.pi * np.arange(32), rtol=1e-6)


def test_parameters_of_the_diagonal_system_learn_slowly():
    layer = make()
    assert "A_log" in layer.diag.recurrent_parameters
    assert not hasattr(layer, "A_log")


def test_state_is_at_least_float32():
    state = H3(4, d_state=4, d_shift=3, d_head=2, dtype=torch.bfloat16).init_state(3)
    assert state["shift"].dtype == torch.float32
    assert state["diag"].dtype == torch.complex64
    assert state["diag"].shape == (3, 4, 2, 2)


BAD = [
    ({"d_state": 5}, ArgumentError, "H3: d_state must be even, .*, got 5"),
    ({"d_shift": 0}, ArgumentError, "d_shift must be an integer of at least 1, got 0"),
    ({"d_head": 3}, ArgumentError, "H3: d_head must divide d_model=4, got 3"),
    ({"dt_min": 0.0}, ArgumentError, "H3: dt_min and dt_max must satisfy .*, got dt_min=0.0"),
    ({"init": "lon"}, UnknownNameError, "no H3 init named 'lon'. Did you mean 'lin'?"),
    ({"discretisation": "euler"}, UnknownNameError, "no H3 discretisation named 'euler'"),
    ({"form": "scam"}, UnknownNameError, "no H3 form named 'scam'. Did you mean 'scan'?"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_constructor_words_its_errors(options, error, message):
    with pytest.raises(error, match=message):
        H3(**{"d_model": 4, **options})


@pytest.mark.unchecked
def test_conv_form_refuses_a_reset():
    with pytest.raises(ArgumentError, match=r"H3.forward: reset must be None for form='conv'"):
        H3(2, form="conv")(torch.ones(1, 3, 2), reset=torch.zeros(1, 3, dtype=torch.bool))


@pytest.mark.unchecked
def test_a_state_of_another_mixer_is_an_error():
    with pytest.raises(
        TypeError, match=r"state must be a dict with \['diag', 'shift'\], got Tensor"
    ):
        H3(2)(torch.ones(1, 3, 2), torch.zeros(1, 2))
