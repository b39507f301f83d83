"""LSSL against SciPy's simulation of discrete systems, and its initial values."""

import numpy as np
import pytest
import torch
from scipy.signal import cont2discrete, dlsim
from scipy.special import erf
from scipy.stats import kstest

from linrnn.errors import LinrnnError
from linrnn.mixers import LSSL
from linrnn.mixers.lssl import structured
from linrnn.nn.hippo import POLYNOMIALS, hippo

F64 = {"dtype": torch.float64}


def simulated(layer, x):
    """One row: every channel by `dlsim`, whose output is a step late."""
    A, B = (p.detach().numpy() for p in layer.continuous())
    C, D = layer.C.detach().numpy(), layer.D.detach().numpy()
    found = []
    for h, dt in enumerate(layer.log_dt.detach().exp().tolist()):
        a, b, *_ = cont2discrete((A, B[:, None], C[h], D[h][:, None]), dt, "gbt", layer.alpha)
        late = (a, b, C[h] @ a, C[h] @ b + D[h][:, None], 1.0)
        found.append(dlsim(late, x[:, h])[1])
    s = np.concatenate(found, 1)
    gelu = s * (1 + erf(s / 2**0.5)) / 2
    return gelu @ layer.out.weight.detach().numpy().T + layer.out.bias.detach().numpy()


@pytest.mark.parametrize("form", ["scan", "conv"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"measure": "legt", "alpha": 1.0},
        {"measure": "lagt", "alpha": 0.75},
        {"learn_A": True},
        {"learn_A": True, "measure": "legt"},
    ],
)
def test_equals_scipy(options, form):
    torch.manual_seed(0)
    layer = LSSL(3, d_state=7, n_outputs=2, form=form, **options, **F64)
    if layer.learn_A:
        with torch.no_grad():
            for name in ("left", "right", "middle", "diagonal", "below", "above"):
                p = getattr(layer, f"A_{name}")
                p.mul_(1 + 0.1 * torch.rand(p.shape))
    x = torch.randn(2, 50, 3, **F64)
    expected = torch.from_numpy(np.stack([simulated(layer, row.numpy()) for row in x]))
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-9, atol=1e-10)
    first, state = layer(x[:, :17])
    steps, rest = [first], x[:, 17:]
    for x_t in rest.unbind(1):
        y_t, state = layer.step(x_t, state)
        steps.append(y_t[:, None])
    torch.testing.assert_close(torch.cat(steps, 1), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("size", [1, 2, 9, 64])
@pytest.mark.parametrize("measure", POLYNOMIALS)
def test_structured_matrix_is_that_of_hippo(measure, size):
    p = structured(measure, size)
    T = torch.diag(p["diagonal"]) + torch.diag(p["below"], -1) + torch.diag(p["above"], 1)
    inner = torch.diag(p["middle"]) + torch.linalg.inv(T)
    got, A = -p["left"][:, None] * inner * p["right"], hippo(measure, size)[0]
    torch.testing.assert_close(got, A, rtol=0, atol=1e-12 * size)


def test_learned_matrix_begins_where_the_fixed_one_stands():
    torch.manual_seed(0)
    fixed = LSSL(4, d_state=8, **F64)
    torch.manual_seed(0)
    learned = LSSL(4, d_state=8, learn_A=True, **F64)
    x = torch.randn(1, 30, 4, **F64)
    torch.testing.assert_close(learned(x)[0], fixed(x)[0], rtol=0, atol=1e-11)


def test_kernel_is_the_published_one():
    layer = LSSL(1, d_state=4, dt_min=0.1, dt_max=0.1, **F64)
    a, b, *_ = (x.detach() for x in layer.system())
    kernel = [float((torch.linalg.matrix_power(a[0], k) @ b[0]).sum()) for k in range(4)]
    expected = [0.5470521977, 0.2234393675, 0.0639939291, -0.0045994186]
    np.testing.assert_allclose(kernel, expected, atol=1e-10)


@pytest.mark.parametrize("time", [1, 2, 3, 16, 17, 500])
def test_forms_agree_at_every_length(time):
    torch.manual_seed(0)
    scan, conv = LSSL(3, d_state=5, **F64), LSSL(3, d_state=5, form="conv", **F64)
    conv.load_state_dict(scan.state_dict())
    x, state = torch.randn(2, time, 3, **F64), torch.randn(2, 3, 5, **F64)
    for got, expected in zip(conv(x, state), scan(x, state), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-11)


def test_initial_parameters_are_the_published_ones():
    torch.manual_seed(0)
    layer = LSSL(100, d_state=6, n_outputs=3)
    for p in (layer.C, layer.D):
        assert kstest(p.detach().flatten(), "norm").pvalue > 1e-3
    u = (layer.log_dt.detach() - np.log(1e-3)) / np.log(100)
    assert kstest(u, "uniform").pvalue > 1e-3


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"alpha": 1.5}, r"alpha must lie between 0 and 1, got 1.5. Use 0.5"),
        ({"measure": "fourier"}, "measure"),
        ({"n_outputs": 0}, "n_outputs must be an integer of at least 1"),
        ({"dt_min": 0.2}, "0 < dt_min <= dt_max"),
        ({"form": "krylov"}, "form"),
    ],
)
def test_errors(options, text):
    with pytest.raises(LinrnnError, match=text):
        LSSL(4, **options)


def test_a_learned_matrix_without_an_inverse_is_refused():
    layer = LSSL(4, d_state=3, learn_A=True)
    layer.A_diagonal.data.zero_()
    with pytest.raises(
        LinrnnError, match=r"^LSSL: the tridiagonal matrix of A must have an inverse"
    ):
        layer(torch.randn(1, 5, 4))
