"""Every function of a step at 0, infinity, NaN and the ends of its domain: values and gradients."""

import math

import pytest
import torch
import torch.nn.functional as F

from linrnn.cells import Cell
from linrnn.engine.functions import FUNCTIONS
from linrnn.ops import cell_scan
from linrnn.ops.cell.cell_scan import _cpu

INF, NAN = math.inf, math.nan
#: Of one number: 0, what is next to it, ends of domains, kinks, and where single precision ends.
EDGES = [
    0.0,
    -0.0,
    INF,
    -INF,
    NAN,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -1.5,
    3.0,
    -3.0,
    6.0,
    20.0,
    20.5,
]
EDGES += [1e-12, -1e-12, 1e-30, 60.0, -60.0, 88.0, 1e4, -1e4, 1e12, -1e12, 1e30, -1e30, 0.7, -2.0]
FEW = [0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 0.5, 2.0, -2.5, 3.0, 1e-12, 1e12, -1e30]
POWERS = [-4, -3, -2, -1, -0.5, 0, 0.5, 1, 2, 3, 4, 5, -5, 1.5, -1.5, 0.3, -7.25, 2.0, 1e3]

ONE = {
    **{f"x ** {p}": lambda x, p=p: x**p for p in POWERS},
    **{f"{p} ** x": lambda x, p=p: p**x for p in (0.0, 0.5, 1.0, 2.0, 10.0)},
    **{f"x % {p}": lambda x, p=p: x % p for p in (0.75, -0.75, 2.0, INF)},
    **{f"fmod {p}": lambda x, p=p: torch.fmod(x, p) for p in (0.75, -0.75, 2.0, INF)},
    **{f"{p} / x": lambda x, p=p: p / x for p in (1.0, -2.0)},
    **{f"x / {p}": lambda x, p=p: x / p for p in (3.0, -INF)},
    "floor of x / 0.75": lambda x: torch.div(x, 0.75, rounding_mode="floor"),
    "trunc of x / 0.75": lambda x: torch.div(x, 0.75, rounding_mode="trunc"),
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp_min": lambda x: x.clamp(min=0.5),
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softplus 2 10": lambda x: F.softplus(x, 2.0, 10.0),
    "where": lambda x: torch.where(x > 0, x, 2 * x),
    "threshold": lambda x: F.threshold(x, 0.5, -1.0),
    "slope inf": lambda x: F.leaky_relu(x, INF),
}
#: Of more than one number, or tried above with others.
_OTHERS = "roll linear matmul block_linear fold spread complex polar where masked_fill "
_OTHERS += "add sub subtract rsub mul multiply div divide true_divide rdiv rpow pow fmod "
_OTHERS += "remainder lerp addcmul addcdiv logaddexp atan2 arctan2 maximum minimum lt le "
_OTHERS += "gt ge eq ne less less_equal greater greater_equal not_equal logical_and "
_OTHERS += "bitwise_and logical_or bitwise_or logical_xor bitwise_xor clamp clip clamp_min "
_OTHERS += "clamp_max threshold zeros_like ones_like full_like bitwise_not log_sigmoid "
_OTHERS += "type_as "


def named(name):
    """A function of one number by its name."""
    f = getattr(torch, name, None) or getattr(F, name, None) or getattr(torch.special, name, None)
    return f or (lambda x: getattr(x, name)())


ONE |= {name: named(name) for name in FUNCTIONS if name not in _OTHERS.split()}
TWO = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": lambda x, y: x / y,
    "**": lambda x, y: x**y,
    "%": lambda x, y: x % y,
    "floor of x / y": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc of x / y": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    **{
        name: getattr(torch, name)
        for name in ("fmod", "atan2", "maximum", "minimum", "logaddexp", "true_divide")
    },
    "where": lambda x, y: torch.where(x < y, x, y),
    "masked_fill": lambda x, y: x.masked_fill(x > y, 2.0),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=2.0),
}
#: Where our numbers are others than PyTorch's, each with its reason: the numbers x.
EXCEPT = {
    "x ** -0.5": [-0.0, -INF],  # PyTorch takes the value of rsqrt and the gradient of pow
    "gelu": [INF, -3.0],  # PyTorch's is NaN in single precision, and wrong by 1e-4
    "elu": [NAN],  # PyTorch's gradient is 1 in single precision and NaN in double
    "hardtanh": [NAN],  # the same, of the last numbers of a tensor and of the others
    "relu6": [NAN],
    "selu": [NAN],
    "celu": [NAN],
    "%": [INF, -INF],  # the remainder is NaN; its gradient by the divisor is infinite here
    "logaddexp": [INF, -INF],  # PyTorch's gradient is NaN where both are one infinity
}


def cell(function, arity):
    if arity == 1:
        return Cell(lambda h, x: (function(x) + 0.0, h), state="h")
    return Cell(lambda h, x, y: (function(x, y) + 0.0, h), state="h")


def check(name, function, values, dtype, form):
    """Values and gradients of a step beside PyTorch's own."""
    leaves = [x.to(dtype)[None, None].requires_grad_() for x in values]
    want = function(*leaves)
    want = want + torch.zeros_like(leaves[0])
    given = dict(zip("xy", leaves, strict=False))
    got, _ = cell_scan(cell(function, len(leaves)), form=form, **given)
    close(name, "value", got, want, leaves)
    if want.requires_grad:
        grads = [torch.autograd.grad(y.sum(), leaves, materialize_grads=True) for y in (got, want)]
        for x, true in zip(*grads, strict=True):
            close(name, "gradient", x, true, leaves)


def close(name, what, got, want, leaves):
    eps = torch.finfo(got.dtype).eps
    same = (got == want) | (got.isnan() & want.isnan())
    finite = got.isfinite() & want.isfinite()
    # differences from 1, as in the slope of a sigmoid, have an absolute error
    near = finite & ((got - want).abs() <= 64 * eps * want.abs() + 4 * eps)
    for x in EXCEPT.get(name, ()):
        there = leaves[0].isnan() if x != x else leaves[0] == x
        near |= there & (leaves[0].signbit() == (math.copysign(1, x) < 0))
    wrong = ~(same | near)
    places = [tuple(float(x.flatten()[i]) for x in leaves) for i in wrong.flatten().nonzero()]
    pairs = list(zip(places, got[wrong].tolist(), want[wrong].tolist(), strict=True))
    assert not pairs, f"{name}: {what} at, got, want: {pairs}"


native = pytest.mark.skipif(
    _cpu.unavailable(torch.device("cpu"), torch.float64) is not None,
    reason="the native kernels are not installed, or not these",
)
FORMS = [
    pytest.param(torch.float64, "native", marks=native),
    pytest.param(torch.float32, "native", marks=native),
    (torch.float64, "newton"),  # by PyTorch's operators
]


@pytest.mark.parametrize(("dtype", "form"), FORMS)
@pytest.mark.parametrize("name", ONE)
def test_one_number(name, dtype, form):
    check(name, ONE[name], [torch.tensor(EDGES, dtype=torch.float64)], dtype, form)


@pytest.mark.parametrize(("dtype", "form"), FORMS)
@pytest.mark.parametrize("name", TWO)
def test_two_numbers(name, dtype, form):
    values = torch.tensor(FEW, dtype=torch.float64)
    x, y = torch.meshgrid(values, values, indexing="ij")
    check(name, TWO[name], [x.flatten(), y.flatten()], dtype, form)


@pytest.mark.parametrize(("dtype", "form"), FORMS)
def test_zeros_that_are_written_keep_their_sign(dtype, form):
    def step(h, x):
        return torch.where(x < 0, -0.0, 0.0), h

    x = torch.tensor([-1.0, 1.0], dtype=dtype).view(1, 2, 1)
    y, _ = cell_scan(Cell(step, state="h"), x=x, form=form)
    assert torch.equal(y, torch.zeros_like(x))
    assert torch.equal(torch.signbit(y), x < 0)
