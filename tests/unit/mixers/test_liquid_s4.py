"""Liquid-S4 against its sums over products of inputs, and S4D."""

from itertools import product

import numpy as np
import pytest
import torch

from linrnn.errors import ArgumentError, UnknownNameError
from linrnn.mixers import S4D, LiquidS4
from linrnn.testing import check_property

KERNELS = [("pb", "scan"), ("pb", "conv"), ("kb", "scan"), ("kb", "conv"), ("exact", "scan")]
each_kernel = pytest.mark.parametrize(("kernel", "form"), KERNELS)


def make(d_model=2, d_state=6, *, seed=0, **options):
    torch.manual_seed(seed)
    return LiquidS4(d_model, d_state=d_state, dtype=torch.float64, **options)


def numpy_liquid(layer, x):
    """From zero, every product of inputs written out: ``x`` (T, H) to the same."""
    a, b, c, d = (p.detach().numpy() for p in layer.linear.system())
    y = d * x
    for t, s in product(range(len(x)), repeat=2):
        if s > t:
            continue
        for p in range(1, (1 if layer.kernel == "exact" else layer.degree) + 1):
            if p > s + 1 or (p > 1 and layer.kernel == "pb" and s < t):
                continue
            lags = x[s - p + 1 : s + 1].prod(0)
            y[t] += (c * a ** (t - s) * b**p).real.sum(-1) * lags
    if layer.kernel == "exact":
        h, y = np.zeros_like(b), np.empty_like(x)
        for t in range(len(x)):
            h = (a + b * x[t, :, None]) * h + b * x[t, :, None]
            y[t] = (c * h).real.sum(-1) + d * x[t]
    return y


@pytest.mark.parametrize("degree", [1, 2, 4])
@each_kernel
def test_forward_equals_every_product_written_out(kernel, form, degree):
    layer = make(kernel=kernel, form=form, degree=degree)
    for time in (1, 3, 40):
        x = torch.randn(1, time, 2, dtype=torch.float64)
        expected = numpy_liquid(layer, x[0].numpy())
        np.testing.assert_allclose(layer(x)[0][0].detach(), expected, rtol=1e-9, atol=1e-10)


def test_all_agree_to_second_order_in_the_first_two_steps():
    """``y_2 = C (a b x_1 + b x_2 + b^2 x_1 x_2) + D x_2``."""
    x = torch.randn(1, 2, 2, dtype=torch.float64)
    ys = [make(kernel=kernel, form=form)(x)[0] for kernel, form in KERNELS]
    for y in ys[1:]:
        torch.testing.assert_close(y, ys[0], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("form", LiquidS4.forms)
def test_degree_one_is_s4d(form):
    layer = make(degree=1, form=form)
    other = S4D(2, d_state=6, discretisation="bilinear", separate_B=True, dtype=torch.float64)
    other.load_state_dict(layer.linear.state_dict())
    x = torch.randn(2, 50, 2, dtype=torch.float64)
    y, state = layer(x)
    assert list(state) == ["h"]
    torch.testing.assert_close((y, state["h"]), other(x), rtol=1e-11, atol=1e-11)


def test_terms_of_each_order_are_those_of_the_exact_model_where_steps_follow():
    """The second derivative along the input at zero is that of the exact model's, next steps."""
    for kernel in ("kb", "pb"):
        approximate, exact = make(kernel=kernel, degree=3), make(kernel="exact")
        x = torch.zeros(1, 3, 2, dtype=torch.float64)
        x[:, :2] = torch.randn(1, 2, 2, dtype=torch.float64)

        def second(layer, x=x):
            plus, minus = (layer(s * x)[0] for s in (1e-2, -1e-2))
            return (plus + minus)[:, 1] / 2e-4

        torch.testing.assert_close(second(approximate), second(exact), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("law", ["forms_agree", "reset_and_packing", "gradients"])
@pytest.mark.parametrize(("kernel", "degree"), [("pb", 3), ("kb", 3), ("exact", 1)])
@pytest.mark.unchecked
def test_laws_hold_with_every_kernel(law, kernel, degree):
    class Small(LiquidS4):
        forms = ("scan",) if kernel == "exact" else LiquidS4.forms

        def __init__(self, **to):
            super().__init__(d_state=4, kernel=kernel, degree=degree, **to)

    check_property(law, Small)


BAD = [
    ({"degree": 0}, ArgumentError, "degree must be an integer of at least 1, got 0"),
    ({"kernel": "pc"}, UnknownNameError, "no LiquidS4 kernel named 'pc'"),
    ({"kernel": "exact", "form": "conv"}, ArgumentError, "form must be 'scan' for kernel='exact'"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_constructor_words_its_errors(options, error, message):
    with pytest.raises(error, match=message):
        LiquidS4(4, **options)
