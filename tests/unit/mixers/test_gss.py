"""GSS against its equation in NumPy, and against DSS with steps of one."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy.special import erf

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import DSS, GSS
from linrnn.testing import check_property
from linrnn.testing._mixer_laws import NUMERIC_LAWS

each_form = pytest.mark.parametrize("form", GSS.forms)


def make(d_model=8, d_state=5, *, seed=0, **options):
    torch.manual_seed(seed)
    return GSS(d_model, d_state=d_state, dtype=torch.float64, **options)


def numpy_gss(layer, x, h0):
    """One step at a time in complex128."""
    p = {n: v.detach().numpy() for n, v in layer.named_parameters()}

    def linear(name, x):
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    lam = -np.exp(p["A_log"]) + 1j * np.exp(p["A_im_log"])
    both = linear("in_proj", x)
    both = 0.5 * both * (1 + erf(both / 2**0.5))
    v, z = both[..., : layer.d_inner], both[..., layer.d_inner :]
    C, h, s = p["C_re"] + 1j * p["C_im"], h0, []
    for t in range(x.shape[1]):
        h = np.exp(lam) * h + (np.exp(lam) - 1) / lam * z[:, t, :, None]
        s.append((C * h).real.sum(-1) + p["D"] * z[:, t])
    return linear("out_proj", v * linear("up_proj", np.stack(s, 1))), h


@each_form
def test_forward_equals_a_transcription_in_numpy(form):
    layer = make(form=form)
    h0 = torch.randn(2, 2, 5, dtype=torch.complex128)
    for time in (1, 75):
        x = torch.randn(2, time, 8, dtype=torch.float64)
        y, last = layer(x, h0)
        expected, expected_last = numpy_gss(layer, x.numpy(), h0.numpy())
        np.testing.assert_allclose(y.detach(), expected, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(last.detach(), expected_last, rtol=1e-9, atol=1e-10)


def test_its_system_is_that_of_dss_with_steps_of_one():
    layer, other = make(), DSS(2, d_state=5, dtype=torch.float64)
    with torch.no_grad():
        for name in ("A_log", "C_re", "C_im", "D"):
            other.get_parameter(name).copy_(layer.get_parameter(name))
        other.A_im.copy_(layer.A_im_log.exp())
        other.log_dt.zero_()
    for one, two in zip(layer.system(), other.system(), strict=True):
        torch.testing.assert_close(one.expand(two.shape), two, rtol=1e-12, atol=1e-13)


def test_initial_statistics_and_sizes():
    torch.manual_seed(0)
    layer = GSS(16, d_ssm=2000, d_inner=8)
    for weight in (layer.A_log, layer.A_im_log, layer.C_re, layer.C_im, layer.D):
        assert weight.mean().item() == pytest.approx(0.0, abs=0.2)
        assert weight.std().item() == pytest.approx(1.0, abs=0.15)
    layer = GSS(16)
    assert (layer.d_inner, layer.d_ssm, layer.d_state) == (64, 4, 512)
    assert layer.init_state(3).shape == (3, 4, 512)
    assert GSS(3, d_state=2).d_ssm == 1


@pytest.mark.parametrize("law", NUMERIC_LAWS)
def test_laws_hold_with_a_norm_of_its_input(law):
    check_property(law, partial(GSS, d_state=5, d_ssm=3, norm="layer"))


@pytest.mark.unchecked
def test_constructor_words_its_errors():
    with pytest.raises(ArgumentError, match="d_ssm must be an integer of at least 1, got 0"):
        GSS(4, d_ssm=0)
    with pytest.raises(UnknownNameError, match="no GSS form named 'scam'\\. Did you mean 'scan'"):
        GSS(4, form="scam")
    with pytest.raises(UnknownNameError, match="no GSS norm named 'rms'"):
        GSS(4, norm="rms")
    with pytest.raises(ArgumentError, match="d_ssm must be at least 2 for norm='layer'"):
        GSS(4, norm="layer")
