"""DSS against SciPy's zero-order hold, the paper's softmax and S4D."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import DSS, S4D
from linrnn.nn.hippo import hippo_normal
from linrnn.testing import check_property

each_form = pytest.mark.parametrize("form", DSS.forms)


def make(d_model=3, d_state=5, *, seed=0, **options):
    torch.manual_seed(seed)
    return DSS(d_model, d_state=d_state, dtype=torch.float64, **options)


def numbers(layer):
    p = {n: v.detach().numpy() for n, v in layer.named_parameters()}
    lam = (p["A_re"] if "A_re" in p else -np.exp(p["A_log"])) + 1j * p["A_im"]
    dt = np.exp(p["log_dt"]).reshape(layer.d_model, -1)
    return lam, dt[:, :1] * lam.real + 1j * dt[:, -1:] * lam.imag, p["C_re"] + 1j * p["C_im"]


def kernel(layer, time):
    """(time, d_model): the published formulas, power by power in complex128."""
    lam, z, W = numbers(layer)
    powers = np.exp(z[..., None] * np.arange(time))
    weights = W / lam * (np.exp(z) - 1)
    if layer.kernel == "softmax":  # a row of the softmax, shifted by its largest exponent
        rows = z[..., None] * np.arange(layer.length)
        shift = np.where(z.real > 0, z * (layer.length - 1), 0)
        total = np.exp(rows - shift[..., None]).sum(-1)
        powers = np.exp(z[..., None] * np.arange(time) - shift[..., None])
        weights = W / lam / total
    return (weights[..., None] * powers).sum(1).real.T


def impulse(layer, time):
    x = torch.zeros(1, time, layer.d_model, dtype=torch.float64)
    x[:, 0] = 1
    y = layer(x)[0][0].detach()
    y[0] -= layer.D.detach()
    return y


@pytest.mark.parametrize("separate_dt", [False, True])
@pytest.mark.parametrize("name", ["exp", "softmax", "growing"])
@each_form
def test_kernel_is_the_published_one(form, name, separate_dt):
    what = "exp" if name == "exp" else "softmax"
    layer = make(kernel=what, length=70, separate_dt=separate_dt, form=form)
    if name == "growing":
        layer.A_re.data.copy_(torch.tensor([3.0, 0.2, 1e-6, -1.0, -1e-6]))
    np.testing.assert_allclose(impulse(layer, 70), kernel(layer, 70), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("growth", [50, 90, 200, 599])
@pytest.mark.parametrize("separate_dt", [False, True])
@each_form
def test_growing_modes_are_the_published_ones_in_float32(form, separate_dt, growth):
    """Beyond 88 ``exp`` of the growth is no number of float32; the largest power is taken out."""
    layer = make(kernel="softmax", length=70, separate_dt=separate_dt, form=form)
    with torch.no_grad():
        layer.log_dt.fill_(-2.0)
        rate = growth / layer.length / np.exp(-2.0)
        layer.A_re.copy_(torch.tensor([rate, 0.3 * rate, 0.0, -0.1, -rate]))
    single = make(kernel="softmax", length=70, separate_dt=separate_dt, form=form).float()
    single.load_state_dict(layer.state_dict())
    x = torch.randn(2, 70, 3, dtype=torch.float64)
    y, wide_y = single(x.float())[0], layer(x)[0]
    torch.testing.assert_close(y.double(), wide_y, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(impulse(layer, 70), kernel(layer, 70), rtol=1e-8, atol=1e-9)
    grads, wide_grads = (
        torch.autograd.grad(out.square().sum(), tuple(m.parameters()))
        for out, m in ((y, single), (wide_y, layer))
    )
    for got, expected in zip(grads, wide_grads, strict=True):
        scale = expected.abs().max().item()
        torch.testing.assert_close(got.double(), expected, rtol=1e-3, atol=1e-3 * scale)


def test_more_growth_than_a_state_holds_is_refused():
    layer = make(kernel="softmax", length=70).float()
    layer.A_re.data.fill_(1e4)
    with pytest.raises(ArgumentError, match=r"^DSS: Re Lambda \* dt \* length must be at most 600"):
        layer(torch.randn(1, 5, 3))


@pytest.mark.parametrize("kernel", ["exp", "softmax"])
@pytest.mark.parametrize("separate_dt", [False, True])
def test_a_mode_at_zero_is_finite_with_its_gradients(kernel, separate_dt):
    layer = make(kernel=kernel, separate_dt=separate_dt).float()
    with torch.no_grad():
        (layer.A_log if kernel == "exp" else layer.A_re).fill_(-1e3 if kernel == "exp" else 0.0)
        layer.A_im.zero_()
    y, last = layer(torch.randn(2, 30, 3))
    grads = torch.autograd.grad(y.sum() + last.real.sum(), tuple(layer.parameters()))
    assert all(bool(x.isfinite().all()) for x in (y, last.real, *grads))
    if kernel == "softmax":  # as by the public code, whose inverse of 0 is 0
        torch.testing.assert_close(impulse(layer.double(), 30), torch.zeros(30, 3).double())


def test_a_saved_state_of_single_precision_goes_on():
    layer = make(kernel="softmax").float()
    x = torch.randn(2, 30, 3)
    last = layer(x)[1]
    assert last.dtype == torch.complex128
    again, _ = layer(x, last.to(torch.complex64))
    torch.testing.assert_close(again, layer(x, last)[0], rtol=1e-4, atol=1e-4)


@each_form
def test_start_pieces_and_steps(form):
    layer = make(2, kernel="softmax", form=form)
    x = torch.randn(2, 75, 2, dtype=torch.float64)
    y, last = layer(x)
    first, h = layer(x[:, :40])
    second, h = layer(x[:, 40:], h)
    torch.testing.assert_close(torch.cat([first, second], 1), y, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(h, last, rtol=1e-10, atol=1e-10)


def test_exp_is_s4d_of_as_many_pairs_with_half_its_weights():
    layer, other = make(3, 5), S4D(3, d_state=10, dtype=torch.float64)
    with torch.no_grad():
        for name in ("A_log", "A_im", "log_dt", "D"):
            other.get_parameter(name).copy_(layer.get_parameter(name))
        other.C_re.copy_(layer.C_re / 2)
        other.C_im.copy_(layer.C_im / 2)
    x = torch.randn(2, 50, 3, dtype=torch.float64)
    torch.testing.assert_close(layer(x), other(x), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients", "low_precision"])
@pytest.mark.parametrize("kernel", ["exp", "softmax"])
def test_laws_hold_with_both_kernels(law, kernel):
    def short(**to):
        return DSS(d_state=4, kernel=kernel, separate_dt=True, **to)

    check_property(law, short)


def test_initial_statistics():
    torch.manual_seed(0)
    layer = DSS(3000, d_state=8)
    u = (layer.log_dt.detach().double().numpy() - np.log(1e-3)) / np.log(100)
    assert kstest(u, "uniform").pvalue > 1e-3
    for weight in (layer.C_re, layer.C_im, layer.D):
        assert weight.var().item() == pytest.approx(1.0, rel=0.1)
    torch.testing.assert_close(layer.A_log.exp().detach(), torch.full((8,), 0.5))
    expected = hippo_normal(16)[0].imag[8:]
    torch.testing.assert_close(layer.A_im.detach().double(), expected, rtol=1e-6, atol=0)
    assert (layer.A_im > 0).all()
    assert DSS(2, d_state=8, kernel="softmax").A_re.eq(-0.5).all()


BAD = [
    ({"d_state": 0}, ArgumentError, "d_state must be an integer of at least 1, got 0"),
    ({"length": 0}, ArgumentError, "length must be an integer of at least 1, got 0"),
    ({"kernel": "soft"}, UnknownNameError, "no DSS kernel named 'soft'. Did you mean 'softmax'?"),
    ({"dt_max": 1e-4}, ArgumentError, "0 < dt_min <= dt_max, got dt_min=0.001, dt_max=0.0001"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_constructor_words_its_errors(options, error, message):
    with pytest.raises(error, match=message):
        DSS(**{"d_model": 4, **options})
