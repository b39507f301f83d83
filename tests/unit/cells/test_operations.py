"""All that one can do with a value of a step: PyTorch's numbers, or a refusal with a way out."""

import builtins
import copy
import math
import operator
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.overrides import get_overridable_functions

from linrnn.cells import Cell, functions
from linrnn.engine.functions import FUNCTIONS
from linrnn.engine.graph import ELEMENTWISE
from linrnn.errors import ArgumentError

from test_adjoint import check  # isort: skip

REFUSED = re.compile(
    r"cell \S+(, .*?)?: (a step must be elementwise operations and products with matrices, "
    r"got .+\. [A-Z].+|the (step|state) .*must .+ got .+\. .+)",
    re.DOTALL,
)
#: Of h, x and y, numbers in between.
PATTERNS = {
    "f(h)": lambda f, h, x, y: f(h),
    "f(h, x)": lambda f, h, x, y: f(h, x),
    "f(h, 0.7)": lambda f, h, x, y: f(h, 0.7),
    "f(2, h)": lambda f, h, x, y: f(2, h),
    "f(h, x, y)": lambda f, h, x, y: f(h, x, y),
    "f(h > x, x, y)": lambda f, h, x, y: f(h > x, x, y),
    "f(h, x > y, 0.5)": lambda f, h, x, y: f(h, x > y, 0.5),
    "f(h > x, x > y)": lambda f, h, x, y: f(h > x, x > y),
    "f(h, -0.5, 0.5)": lambda f, h, x, y: f(h, -0.5, 0.5),
    "f(h, -1)": lambda f, h, x, y: f(h, -1),
    "f(h, W)": None,  # filled in below
    "f([h, x])": lambda f, h, x, y: f([h, x]),
}


def every_function():
    """PyTorch's functions that take tensors, by name."""
    found = {}
    for module, some in get_overridable_functions().items():
        where = getattr(module, "__name__", str(module))
        for f in some:
            name = getattr(f, "__name__", None)
            if where.endswith("Tensor") and name and name != "__get__":
                found[f"Tensor.{name}"] = method(name)
            elif name and name != "__get__":
                found.setdefault(f"{where}.{name}", f)
    return found


def method(name):
    """A method of a tensor as a function."""

    def call(h, *others):
        return getattr(h, name)(*others)

    call.__name__ = name
    return call


EVERY = every_function()
_MODULES = sorted({name.rpartition(".")[0] for name in EVERY})


def traced(step, **declared):
    """The cell, or None of one that is refused properly; other errors are failures."""
    refused = ""
    try:
        return Cell(step, **{"state": "h", **declared})
    except ArgumentError as error:
        refused = str(error)
    assert REFUSED.fullmatch(refused), refused
    return None


def compare(cell, what):
    """A cell against its function, where PyTorch has that: numbers and gradients."""
    inner = cell.function
    torch.manual_seed(3)
    tensors = [torch.rand(1, 5, dtype=torch.float64) * 0.9 + 0.05 for _ in range(3)]
    try:
        y, _ = cell.function(*tensors)
    except (TypeError, RuntimeError, ValueError, AttributeError, IndexError):
        return False  # nor can PyTorch
    if not isinstance(y, torch.Tensor) or y.shape != tensors[0].shape or y.is_complex():
        return False
    if y.dtype == torch.float32:  # of booleans: single precision, whatever the others have
        return False
    if not y.dtype.is_floating_point:
        cell = traced(lambda h, x, y: (torch.where(inner(h, x, y)[0] != 0, h, x), h))
    plain = Cell(lambda h, x, y: (cell.function(h, x, y)[0] + 0.0, h), state="h")
    leaves = [x.requires_grad_() for x in tensors]
    try:
        check(plain, [leaves[:1], leaves[1:], [], []])
    except RuntimeError as error:
        # True ** tensor; what is a number or a truth value
        if "INTERNAL ASSERT" in str(error) or "does not require grad" in str(error):
            return False
        raise AssertionError(f"{what}: a derivative that PyTorch has not: refuse it") from error
    return True


@pytest.mark.unchecked
@pytest.mark.parametrize("module", _MODULES)
def test_every_function_of_pytorch_works_or_is_refused(module):
    worked = set()
    for name, f in EVERY.items():
        if name.rpartition(".")[0] != module:
            continue
        for pattern, call in PATTERNS.items():
            if call is None:
                step = lambda h, x, W: (f(h, W), h)  # noqa: B023, E731
                traced(step, matrix="W")
                continue
            cell = traced(lambda h, x, y: (call(f, h, x, y), h))  # noqa: B023
            if cell is not None and compare(cell, f"{name}: {pattern}"):
                worked.add(f.__name__)
    if module == "torch":
        assert len(worked) > 60


UNARY = [operator.neg, operator.pos, operator.abs, operator.invert, operator.not_, operator.truth]
UNARY += [abs, bool, int, float, complex, len, iter, list, tuple, str, repr, hash, reversed, sorted]
UNARY += [
    round,
    sum,
    min,
    max,
    any,
    all,
    divmod,
    math.floor,
    math.ceil,
    math.trunc,
    math.sqrt,
    math.exp,
]
UNARY += [np.asarray, np.tanh, np.abs, np.floor, copy.copy, copy.deepcopy, range, format, bin, next]
UNARY += [torch.tensor, torch.as_tensor, torch.from_numpy, torch.is_tensor, operator.index]
UNARY += [
    lambda h: h[0],
    lambda h: h[..., :2],
    lambda h: h.nothing,
    lambda h: h.shape[-1],
    lambda h: h(),
]
UNARY += [lambda h: f"{h:.2f}", lambda h: h.data, lambda h: h.grad, lambda h: h.T, lambda h: [*h]]
UNARY += [lambda h: None, lambda h: "text", lambda h: [h], lambda h: {"h": h}, lambda h: 1 / 0]
UNARY += [lambda h: torch.tanh(), lambda h: torch.tanh(h, h), lambda h: torch.tanh(h, nonsense=1)]
UNARY += [
    lambda h: h.clamp(),
    lambda h: h.clamp("a"),
    lambda h: h.clamp(min=h),
    lambda h: F.elu(h, "a"),
]
UNARY += [
    lambda h: h.round(decimals=2),
    lambda h: torch.div(h, 2, rounding_mode="up"),
    lambda h: -(h > 0),
]
BINARY = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod),
    *(operator.pow, operator.matmul, operator.and_, operator.or_, operator.xor, operator.lshift),
    *(
        operator.rshift,
        operator.lt,
        operator.le,
        operator.eq,
        operator.ne,
        operator.gt,
        operator.ge,
    ),
    *(operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.imod, operator.ipow),
    *(operator.ifloordiv, operator.iand, operator.ior, operator.ixor, operator.imatmul),
    *(operator.contains, operator.getitem, divmod, pow, np.add, np.multiply, math.atan2, math.pow),
    *(torch.maximum, torch.where, torch.clamp, torch.lerp, F.leaky_relu, torch.atan2, torch.fmod),
]
WRONG = [None, "a", b"a", [1], [], (1.0, 2.0), {}, {1}, object(), int, Decimal("0.5"), 10**400, 1j]
WRONG += [
    torch.ones(3),
    torch.tensor(0.5, requires_grad=True),
    torch.ones(1),
    np.ones(3),
    np.float32(0.5),
]
WRONG += [
    np.ones(()),
    np.int64(2),
    Fraction(1, 2),
    True,
    math.nan,
    math.inf,
    torch.tensor(0.5),
    slice(None),
]


@pytest.mark.unchecked
@pytest.mark.parametrize("function", UNARY, ids=lambda f: getattr(f, "__name__", "f"))
def test_python_on_a_value(function):
    cell = traced(lambda h, x, y: (function(h), h))
    if cell is not None:
        compare(cell, function)


def applied(function, other, swapped):
    return lambda h, x, y: (function(*((other, h) if swapped else (h, other))), h)


@pytest.mark.unchecked
@pytest.mark.parametrize("function", BINARY, ids=lambda f: f.__name__)
def test_operators_on_whatever_there_is(function):
    for other in (*WRONG, 2, 0.5, -1, 0):
        for swapped in (False, True):
            cell = traced(applied(function, other, swapped))
            plain = isinstance(other, (int, float)) and other not in (10**400,)
            if cell is not None and plain:
                compare(cell, (function, other, swapped))
    cell = traced(lambda h, x, y: (function(h, x), h))
    if cell is not None:
        compare(cell, function)


@pytest.mark.unchecked
def test_whatever_a_step_returns():
    for found in (
        None,
        1,
        (),
        (1,),
        (1, 2, 3),
        ("a", 1),
        (1, "a"),
        ([1], 1),
        object(),
        (None, None),
    ):
        traced(returning(found))
    for other in (None, "a", torch.ones(3), object(), [1]):
        traced(applied(lambda *pair: pair, other, False))
        traced(lambda h, x, y: (h, returning(other)(h, x)))  # noqa: B023


def returning(found):
    return lambda h, x: found


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("step", "text"),
    [
        (lambda h, x: (h // x, h), r"floor_divide\(\). Write torch.div\(x, y, rounding_mode"),
        (lambda h, x: (2 % h, h), r"the remainder of a number. Write torch.remainder"),
        (lambda h, x: (torch.asin(h), h), r"asin\(\). Write torch.atan2"),
        (lambda h, x: (h << 1, h), r"lshift\(\). Bits of numbers have no derivative"),
        (lambda h, x: (math.floor(h), h), r"math.floor\(\) of a value. Write torch.floor"),
        (lambda h, x: (h & x, h), r"bitwise_and\(\) of numbers. Write torch.logical_and"),
        (lambda h, x: (h - (x > 0), h), r"a difference of truth values. Write torch.where"),
        (lambda h, x: (F.relu(h, inplace=True), h), r"relu\(\) in place. Leave inplace=True"),
        (lambda h, x: (np.tanh(h), h), r"got TypeError: .*Stay with values and with the functions"),
        (lambda h, x: ({}[0], h), r"got KeyError: 0. Stay with values"),
        (
            lambda h, x: (torch.round(h, decimals=1), h),
            r"round\(\) to 1 decimals. Write torch.round",
        ),
    ],
)
def test_a_refusal_says_what_to_write(step, text):
    with pytest.raises(ArgumentError, match=text) as error:
        Cell(step, state="h")
    assert f"test_operations.py:{step.__code__.co_firstlineno}" in str(error.value)


def test_errors_that_are_not_of_values_stay():
    def step(h, x):
        return nothing_of_this_name, h

    with pytest.raises(NameError):
        Cell(step, state="h")


def test_the_list_of_functions_is_that_of_the_tracer():
    names = functions()
    assert names == tuple(sorted(names))
    assert {"torch.tanh", "torch.atan2", "torch.floor", "linrnn.cells.fold"} <= {*names}
    short = {name.rpartition(".")[2] for name in names}
    assert short <= {*FUNCTIONS}
    hidden = {*FUNCTIONS} - short
    assert hidden == {"log_sigmoid", "rdiv", "rpow"}  # what PyTorch calls itself
    scope = {"torch": torch, "linrnn": __import__("linrnn.cells")}
    assert all(
        callable(operator.attrgetter(name.partition(".")[2])(scope[name.partition(".")[0]]))
        for name in names
    )
    elementwise = {*ELEMENTWISE} - {"where", "gelu", "softplus", "relu", "logsigmoid"}
    assert elementwise <= {*FUNCTIONS}


def test_the_page_lists_every_function(root):
    page = (root / "docs" / "cell-functions.md").read_text(encoding="utf-8")
    words = {*re.findall(r"[A-Za-z_0-9]+", page)}
    missing = {name.rpartition(".")[2] for name in functions()} - words
    assert not missing


def test_sums_of_choices_are_choices():
    """PyTorch's sum of booleans is one: what is added to true stays true."""

    def step(h, x):
        h = x * ((h > 0) + (x > 0)) + 0.5 * h
        return h, h

    compare(Cell(lambda h, x, y: (step(h - 0.5, x - 0.5)[0], h), state="h"), "sum")
    assert builtins.bool(Cell(step, state="h"))
