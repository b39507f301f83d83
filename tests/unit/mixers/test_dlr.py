"""DLR against sums of powers, an inverse DFT, and the LRU."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import DLR
from linrnn.ops.conv import siso
from linrnn.testing import check_property

KINDS = ("complex", "imaginary", "real")
each_form = pytest.mark.parametrize("form", DLR.forms)
each_kind = pytest.mark.parametrize("kind", KINDS)


def make(d_model=3, d_state=5, *, seed=0, **options):
    torch.manual_seed(seed)
    return DLR(d_model, d_state=d_state, dtype=torch.float64, **options)


def numpy_dlr(layer, x, h0):
    """One step at a time in complex128."""
    p = {n: v.detach().numpy() for n, v in layer.named_parameters()}
    lam = -np.square(p.get("A_re", 0)) + 1j * p.get("A_im", 0)
    C, h, ys = p["C_re"] + 1j * p.get("C_im", 0), h0.astype(complex), []
    for t in range(x.shape[1]):
        h = np.exp(lam) * h + x[:, t, :, None]
        ys.append((C * h).real.sum(-1) + p["D"] * x[:, t])
    return np.stack(ys, 1), h


@each_kind
@each_form
def test_forward_equals_a_transcription_in_numpy(form, kind):
    layer = make(kind=kind, form=form, d_state=80)  # blocks of 80 or 40 steps
    h0 = layer.init_state(2)
    h0 = torch.randn(h0.shape, dtype=h0.dtype)
    for time in (1, 7, 170):
        x = torch.randn(2, time, 3, dtype=torch.float64)
        y, last = layer(x, h0)
        expected, expected_last = numpy_dlr(layer, x.numpy(), h0.numpy())
        np.testing.assert_allclose(y.detach(), expected, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(last.detach(), expected_last, rtol=1e-9, atol=1e-9)


@each_form
def test_without_decay_the_kernel_is_an_inverse_dft(form):
    layer = make(2, 96, form=form)
    layer.A_re.data.zero_()
    layer.D.data.zero_()
    x = torch.zeros(1, 96, 2, dtype=torch.float64)
    x[:, 0] = 1
    w = torch.complex(layer.C_re, layer.C_im).detach().numpy()
    expected = 96 * np.fft.ifft(w).real.T
    np.testing.assert_allclose(layer(x)[0][0].detach(), expected, atol=1e-12)


def test_powers_of_shared_modes_are_held_once():
    """No matrix of channels times modes times steps, and a state once in many steps."""
    layer, x = DLR(16, d_state=256), torch.randn(1, 1024, 16)
    sizes = []
    keep = torch.autograd.graph.saved_tensors_hooks(
        lambda t: sizes.append(t.numel() * t.element_size()) or t, lambda t: t
    )
    with keep:
        layer(x)
    states = 16 * 256 * 8 * (1024 // siso.LONGEST)  # bytes of those that are held
    assert max(sizes) <= 2 * max(states, siso.LONGEST * 256 * 16)


def test_blocks_are_longer_where_states_are_large():
    assert [siso._block(2 * modes) for modes in (4, 32, 100, 1024)] == [32, 32, 64, 64]


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@each_kind
def test_laws_hold_with_every_kind(law, kind):
    def small(**to):
        return DLR(d_state=4, kind=kind, **to)

    check_property(law, small)


def test_initial_statistics():
    torch.manual_seed(0)
    layer = DLR(64, d_state=2000)
    decay = layer.A_re.detach().double().numpy() ** 2
    assert kstest(np.log(2 * decay / 1e-4) / np.log(1000), "uniform").pvalue > 1e-3
    turns = layer.A_im.detach().double() * 2000 / (2 * torch.pi)
    torch.testing.assert_close(turns, torch.arange(2000).double(), rtol=1e-6, atol=1e-3)
    for weight in (layer.C_re, layer.C_im):
        assert weight.std().item() == pytest.approx(1 / 2000, rel=0.02)
    assert not layer.eigenvalues().abs().ge(1).any()
    real = DLR(2, d_state=4, kind="real")
    assert real.init_state(1).dtype == torch.float32
    assert not real.eigenvalues().is_complex()


@pytest.mark.unchecked
def test_constructor_words_its_errors():
    with pytest.raises(ArgumentError, match="d_state must be an integer of at least 1, got 0"):
        DLR(4, d_state=0)
    with pytest.raises(UnknownNameError, match="no DLR kind named 'reel'\\. Did you mean 'real'"):
        DLR(4, kind="reel")
