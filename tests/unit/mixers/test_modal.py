from math import log, pi

import numpy as np
import pytest
import scipy.signal
import torch

from linrnn.errors import ArgumentError
from linrnn.mixers import Modal
from linrnn.nn.modal import Modes
from linrnn.testing import check_close


def filtered(layer, x):
    """Every channel by SciPy's lfilter: the modes and their conjugates as one rational filter."""
    p = {n: v.detach().double().numpy() for n, v in layer.named_parameters()}
    lam = np.exp(-np.exp(p["nu_log"]) + 1j * p["theta"])
    R = p["R_re"] + 1j * p["R_im"]
    y = np.zeros(x.shape)
    for c in range(layer.d_model):
        y[..., c] = p["D"][c] * x[..., c]
        for pole, residue in zip(lam[c], R[c], strict=True):
            # R/2 / (z - lam) + its conjugate, over one denominator
            a = [1, -2 * pole.real, abs(pole) ** 2]
            b = [0, residue.real, -(residue * np.conj(pole)).real]
            y[..., c] += scipy.signal.lfilter(b, a, x[..., c], axis=1)
    return torch.from_numpy(y)


@pytest.mark.parametrize("form", Modal.forms)
def test_modal_is_a_rational_filter_whole_and_split(form):
    torch.manual_seed(0)
    layer = Modal(3, d_state=4, l_max=20, form=form, dtype=torch.float64)
    x = torch.randn(2, 70, 3, dtype=torch.float64)
    expected = filtered(layer, x.numpy())
    for sizes in ((70,), (7, 1, 62), (1,) * 70):
        state, ys = None, []
        for part in x.split(sizes, 1):
            y, state = layer(part, state)
            ys.append(y)
        check_close(f"in {sizes}", torch.cat(ys, 1), expected, roundings=2**10)


def test_its_impulse_response_is_what_it_does_to_an_impulse():
    torch.manual_seed(0)
    layer = Modal(3, d_state=4, dtype=torch.float64)
    impulse = torch.zeros(1, 30, 3, dtype=torch.float64)
    impulse[:, 0] = 1
    y, _ = layer(impulse)
    check_close("response", layer.impulse_responses(30)[0], y[0].T.detach(), roundings=2**8)


def test_modes_that_are_put_are_its_filters():
    poles = torch.tensor([[0.9 + 0.1j, -0.5, 0], [1e-16, 0.3j, 0]], dtype=torch.complex128)
    residues = torch.tensor([[1 + 2j, 3, 0], [4, 1j, 0]], dtype=torch.complex128)
    modes = Modes(poles, residues, torch.tensor([1.0, -1.0], dtype=torch.float64))
    layer = Modal(2, d_state=3, dtype=torch.float64)
    layer.put(modes)
    assert all(bool(p.isfinite().all()) for p in layer.parameters())
    check_close("filters", layer.impulse_responses(20)[0], modes.kernel(20), roundings=2**8)


def test_initial_statistics():
    torch.manual_seed(0)
    layer = Modal(256, d_state=8, l_max=101)
    lam = layer.eigenvalues().detach().view(256, 8)
    left = lam.abs() ** 100  # of a window at its end
    torch.testing.assert_close(left[0], torch.full_like(left[0], 0.01 ** (1 / 1.5)))
    torch.testing.assert_close(left[-1], torch.full_like(left[-1], 0.01 ** (1 / 0.3)))
    steps = -lam.abs().log()[:, 0]
    torch.testing.assert_close(steps.diff(), steps.diff()[:1].expand(255), rtol=1e-3, atol=0)
    assert steps[0] == pytest.approx(log(100) / 1.5 / 100)
    torch.testing.assert_close(layer.theta[7].detach(), torch.arange(8) * (2 * pi / 101))
    assert abs(float(layer.R_re.detach().std()) * 8**0.5 * 8 - 1) < 0.1
    assert abs(float(layer.D.detach().std()) - 1) < 0.15


@pytest.mark.unchecked
def test_modal_words_its_errors():
    with pytest.raises(ArgumentError, match="Modal: d_state must be an integer of at least 1"):
        Modal(4, d_state=0)


def test_with_times_the_filter_is_read_at_them():
    """A sum over all inputs of Re(R lam^(tau - 1)), tau the time that is gone since each."""
    layer = Modal(2, d_state=3, l_max=20, dtype=torch.float64)
    x, dt = torch.randn(1, 15, 2).double(), 3 * torch.rand(1, 15).double()
    dt[0, 4] = 0
    y, _ = layer(x, dt=dt)
    at, system = dt[0].cumsum(0), layer.system()
    expected = layer.D * x[0]
    for t in range(15):
        for s in range(t):
            power = system.a.log() * (at[t] - at[s] - 1)
            expected[t] += (system.c * power.exp()).sum(-1).real * x[0, s]
    torch.testing.assert_close(y[0], expected, rtol=1e-10, atol=1e-12)


def test_a_filter_that_is_gone_at_once_is_finite_between_steps_of_no_time():
    layer = Modal(2, d_state=3)
    with torch.no_grad():
        layer.nu_log.fill_(39.0)
    dt = torch.tensor([[0.0, 1e-30, 0.5, 0, 1e6, 0, 1]]).requires_grad_()
    y, _ = layer(torch.randn(1, 7, 2), dt=dt)
    y.sum().backward()
    for value in (y, dt.grad, layer.nu_log.grad, layer.theta.grad, layer.R_re.grad):
        assert value.isfinite().all()
