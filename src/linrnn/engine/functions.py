"""PyTorch's functions on the values of a step: every function that the tracer reads.

Each stands in `FUNCTIONS` by the names that it has in PyTorch. What the graph has no operation for
is written with those it has, with the same gradients at ties and kinks.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.engine.operations import ELEMENTWISE
from linrnn.engine.values import FUNCTIONS as FUNCTIONS
from linrnn.engine.values import Symbol, Tracer, Value, product

Function = Callable[..., Value]


def named(*names: str) -> Callable[[Function], Function]:
    """Enter a function under all names that it has in PyTorch."""

    def register(function: Function) -> Function:
        FUNCTIONS.update(dict.fromkeys(names, function))
        return function

    return register


def _simple(op: str) -> Function:
    """The function of one real number that is an operation of the graph."""
    return lambda t, x: t.real(op, x)


def _of_two(op: str) -> Function:
    return lambda t, input, other: t.real(op, input, other)


#: Those of complex numbers, with options or of three arguments are replaced below.
FUNCTIONS |= {op: _simple(op) for op in ELEMENTWISE}
FUNCTIONS |= {op: _of_two(op) for op in ("lt", "le", "maximum", "minimum", "atan2", "fmod")}


def _compared(op: str, join: str) -> Function:
    """Whether two numbers are equal or not; of complex ones both parts are compared."""

    def compare(t: Tracer, input: Any, other: Any) -> Value:
        a, b = t.value(input), t.value(other)
        if a.im is None and b.im is None:
            return t.real(op, a, b)
        pairs = zip(a.pair(), b.pair(), strict=True)
        return t.real(join, *(Value(t, t.graph(op, x, y)) for x, y in pairs))

    return compare


FUNCTIONS |= {"eq": _compared("eq", "mul"), "ne": _compared("ne", "maximum")}


@named("trunc", "fix")
def _trunc(t: Tracer, x: Any) -> Value:
    below = t.real("lt", x, 0.0)
    return t.real("where", below, FUNCTIONS["ceil"](t, x), t.real("floor", x))


@named("round")
def _round(t: Tracer, x: Any, *, decimals: int = 0) -> Value:
    if decimals:
        raise t.refuse(f"round() to {decimals} decimals", "Write torch.round(x * 10) / 10.")
    return t.real("round", x)


@named("remainder")
def _remainder(t: Tracer, input: Any, other: Any) -> Value:
    """With the sign of the divisor, exactly, as in Python."""
    if not isinstance(input, Symbol):  # PyTorch has no derivative of it
        raise t.refuse("the remainder of a number", "Write torch.remainder(x * 0 + number, x).")
    a, b = t.value(input), t.value(other)
    remainder = t.real("fmod", a, b)
    return t.real("where", _wrong_side(t, remainder, b), remainder + b, remainder)


def _wrong_side(t: Tracer, remainder: Value, divisor: Value) -> Value:
    """Whether what a division left has another sign than the divisor."""
    differs = t.real("ne", t.real("lt", divisor, 0.0), t.real("lt", remainder, 0.0))
    return t.real("mul", differs, t.real("ne", remainder, 0.0))


def _rounded_quotient(t: Tracer, input: Any, other: Any, rounding_mode: str) -> Value:
    """`torch.div` to an integer, whose gradient is 0."""
    a, b = t.value(input), t.value(other)
    if rounding_mode == "trunc":
        return _trunc(t, t.real("div", a, b))
    if rounding_mode != "floor":
        raise t.refuse(f"rounding_mode={rounding_mode!r}", "It is 'floor' or 'trunc'.")
    remainder = t.real("fmod", a, b)
    quotient = t.real("div", t.real("sub", a, remainder), b)  # an integer but for its rounding
    quotient = t.real("where", _wrong_side(t, remainder, b), quotient - 1.0, quotient)
    low = t.real("floor", quotient)
    nearest = t.real("where", t.real("lt", 0.5, quotient - low), low + 1.0, low)
    ratio = t.real("div", a, b)
    zero = t.real("where", t.real("lt", ratio, 0.0), -0.0, 0.0)
    nearest = t.real("where", t.real("eq", quotient, 0.0), zero, nearest)
    infinite = t.real("floor", ratio)  # where the divisor is 0; it has no gradient
    return t.real("where", t.real("eq", b, 0.0), infinite, nearest)


@named("add")
def _add(t: Tracer, input: Any, other: Any, *, alpha: float = 1) -> Value:
    a, b = t.value(input), t.value(other)
    b = b if alpha == 1 else b * alpha
    if t.is_truth(a.re) and t.is_truth(b.re):  # the sum of booleans is one: True + True is True
        return t.real("maximum", a, b)
    return _by_parts(t, "add", a, b)


@named("sub", "subtract")
def _sub(t: Tracer, input: Any, other: Any, *, alpha: float = 1) -> Value:
    a, b = t.value(input), t.value(other)
    _not_of_truth(t, "a difference", a, b)
    return _by_parts(t, "sub", a, b if alpha == 1 else b * alpha)


def _by_parts(t: Tracer, op: str, *values: Value) -> Value:
    """Real parts, and imaginary ones where there are any."""
    re = t.graph(op, *[x.re for x in values])
    if all([x.im is None for x in values]):
        return Value(t, re)
    return Value(t, re, t.graph(op, *[x.pair()[1] for x in values]))


def _not_of_truth(t: Tracer, what: str, *values: Value) -> None:
    """Refuse what PyTorch has not of booleans."""
    if any(t.is_truth(x.re) for x in values):
        raise t.refuse(f"{what} of truth values", "Write torch.where(condition, 1.0, 0.0).")


@named("mul")
def _mul(t: Tracer, input: Any, other: Any) -> Value:
    a, b, g = t.value(input), t.value(other), t.graph
    if b.im is None:
        a, b = b, a
    if a.im is None:
        im = None if b.im is None else g("mul", a.re, b.im)
        return Value(t, g("mul", a.re, b.re), im)
    assert b.im is not None
    re = g("sub", g("mul", a.re, b.re), g("mul", a.im, b.im))
    return Value(t, re, g("add", g("mul", a.re, b.im), g("mul", a.im, b.re)))


@named("div")
def _div(t: Tracer, input: Any, other: Any, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode is not None:
        return _rounded_quotient(t, input, other, rounding_mode)
    a, b, g = t.value(input), t.value(other), t.graph
    if b.im is not None:
        size = g("add", g("square", b.re), g("square", b.im))
        above = a * Value(t, b.re, g("neg", b.im))
        return Value(t, g("div", above.re, size), g("div", above.pair()[1], size))
    im = None if a.im is None else g("div", a.im, b.re)
    return Value(t, g("div", a.re, b.re), im)


@named("neg")
def _neg(t: Tracer, x: Value) -> Value:
    _not_of_truth(t, "the negative", x)
    return _by_parts(t, "neg", x)


@named("abs")
def _abs(t: Tracer, x: Value) -> Value:
    """Absolute value; its gradient at 0 is 0, for complex numbers too."""
    if x.im is None:
        return t.real("abs", x)
    size = x.real * x.real + x.imag * x.imag
    zero = t.real("eq", size, 0.0)
    root = t.real("sqrt", t.real("where", zero, 1.0, size))
    return t.real("where", zero, 0.0, root)


@named("polar")
def _polar(t: Tracer, abs: Any, angle: Any) -> Value:
    size = t.value(abs)
    return Value(t, (size * t.real("cos", angle)).re, (size * t.real("sin", angle)).re)


@named("exp")
def _exp(t: Tracer, x: Value) -> Value:
    return t.real("exp", x) if x.im is None else _polar(t, t.real("exp", x.real), x.imag)


@named("pow")
def _pow(t: Tracer, x: Any, exponent: Any) -> Value:
    """Integers from -4 to 4, and roots, as products."""
    if not isinstance(exponent, (int, float)) or isinstance(exponent, bool):
        return t.real("pow", x, exponent)
    if exponent in (0.5, -0.5):
        root = t.real("sqrt", x)
        return root if exponent > 0 else _div(t, 1.0, root)
    if exponent not in (-4, -3, -2, -1, 0, 1, 2, 3, 4):
        return t.real("pow", x, exponent)
    # of the reciprocal: the reciprocal of a power has no gradient where that is 0 or infinite
    base = x = t.value(x) if exponent > 0 else _div(t, 1.0, x)
    for _ in range(abs(int(exponent)) - 1):
        base = base * x
    return base if exponent else t.value(1.0)


@named("where")
def _where(t: Tracer, condition: Any, input: Any, other: Any) -> Value:
    c, a, b = t.value(condition), t.value(input), t.value(other)
    if a.im is None and b.im is None:
        return t.real("where", c, a, b)
    pairs = zip(a.pair(), b.pair(), strict=True)
    return Value(t, *(t.graph("where", c.re, x, y) for x, y in pairs))


def _truth(t: Tracer, x: Any) -> Value:
    return t.real("ne", x, 0.0)


#: Functions that are one line of others.
FUNCTIONS |= {
    "complex": lambda t, real, imag: Value(
        t, t.real("add", real, 0.0).re, t.real("add", imag, 0.0).re
    ),
    "ceil": lambda t, x: -t.real("floor", -t.value(x)),
    "frac": lambda t, x: t.value(x) - _trunc(t, x),
    "rsub": lambda t, input, other, *, alpha=1: _sub(t, other, input, alpha=alpha),
    "rdiv": lambda t, input, other: _div(t, other, input),
    "rpow": lambda t, exponent, x: _pow(t, x, exponent),
    "positive": lambda t, x, *ignored: x,
    "reciprocal": lambda t, x: _div(t, 1.0, x),
    "square": lambda t, x: x * x,
    "rsqrt": lambda t, x: _div(t, 1.0, t.real("sqrt", x)),
    "exp2": lambda t, x: t.real("pow", 2.0, x),
    "log2": lambda t, x: t.real("log", x) / math.log(2),
    "log10": lambda t, x: t.real("log", x) / math.log(10),
    "tan": lambda t, x: t.real("sin", x) / t.real("cos", x),
    "atan": lambda t, x: t.real("atan2", x, 1.0),
    "deg2rad": lambda t, x: t.value(x) * (math.pi / 180),
    "rad2deg": lambda t, x: t.value(x) * (180 / math.pi),
    "lerp": lambda t, input, end, weight: _add(
        t, input, _mul(t, weight, t.value(end) - t.value(input))
    ),
    "addcdiv": lambda t, input, a, b, *, value=1: _add(t, input, _div(t, t.value(a) * value, b)),
    "addcmul": lambda t, input, a, b, *, value=1: _add(t, input, _mul(t, t.value(a) * value, b)),
    "masked_fill": lambda t, x, mask, value: _where(t, mask, value, x),
    "gt": lambda t, input, other: t.real("lt", other, input),
    "ge": lambda t, input, other: t.real("le", other, input),
    "isnan": lambda t, x: t.real("ne", x, x),
    "isinf": lambda t, x: t.real("eq", t.real("abs", x), math.inf),
    "isfinite": lambda t, x: t.real("lt", t.real("abs", x), math.inf),
    "sign": lambda t, x: t.real("sub", t.real("lt", 0.0, x), t.real("lt", x, 0.0)),
    "logical_not": lambda t, x: t.real("eq", x, 0.0),
    "logical_and": lambda t, input, other: t.real("mul", _truth(t, input), _truth(t, other)),
    "logical_or": lambda t, input, other: t.real("maximum", _truth(t, input), _truth(t, other)),
    "logical_xor": lambda t, input, other: t.real("ne", _truth(t, input), _truth(t, other)),
    "conj": lambda t, x: x if x.im is None else Value(t, x.re, t.graph("neg", x.im)),
    "zeros_like": lambda t, x: _full_like(t, x, 0.0),
    "ones_like": lambda t, x: _full_like(t, x, 1.0),
    "clamp_min": lambda t, x, min: _clamp(t, x, min),
    "clamp_max": lambda t, x, max: _clamp(t, x, None, max),
    "matmul": lambda t, input, other: product(t, "linear", other, input, True),
    "block_linear": lambda t, x, weight: product(t, "block_linear", weight, x, False),
}


def _bitwise(name: str, logical: Function) -> Function:
    """Make an operation on truth values; PyTorch has it not of other numbers."""

    def function(t: Tracer, *args: Any) -> Value:
        for x in map(t.value, args):
            if t.graph.value(x.re) is None and not t.is_truth(x.re):
                raise t.refuse(f"bitwise_{name}() of numbers", f"Write torch.logical_{name}(...).")
        return logical(t, *args)

    return function


FUNCTIONS |= {
    f"bitwise_{op}": _bitwise(op, FUNCTIONS[f"logical_{op}"]) for op in ("not", "and", "or", "xor")
}


@named("clamp")
def _clamp(t: Tracer, x: Value, min: Any = None, max: Any = None) -> Value:
    """A limit that is met passes the gradient on, as a maximum does not."""
    if isinstance(min, Symbol) or isinstance(max, Symbol):
        raise t.refuse("clamp() with limits that are values", "Use torch.maximum and minimum.")
    if min is not None and max is not None and min > max:
        return t.real("where", t.real("ne", x, x), math.nan, max)
    within, beyond = t.value(1.0), t.value(math.nan)
    if min is not None:
        within, beyond = within * t.real("le", min, x), t.real("where", x < min, min, beyond)
    if max is not None:
        within, beyond = within * t.real("le", x, max), t.real("where", x > max, max, beyond)
    return t.real("where", within, x, beyond)


@named("logaddexp")
def _logaddexp(t: Tracer, input: Any, other: Any) -> Value:
    high, low = t.real("maximum", input, other), t.real("minimum", input, other)
    same = t.real("eq", input, other)  # of infinities there is no difference
    gap = t.real("where", same, 0.0, low) - t.real("where", same, 0.0, high)
    return high + t.real("log1p", t.real("exp", gap))


@named("full_like")
def _full_like(t: Tracer, x: Value, fill_value: float) -> Value:
    parts = t.value(fill_value)
    return Value(t, parts.re, parts.im, like=x.re)


@named("linear")
def _linear(t: Tracer, input: Any, weight: Any, bias: Any = None) -> Value:
    result = product(t, "linear", weight, input, False)
    return result if bias is None else result + bias


def _spreading(op: str) -> Function:
    def function(t: Tracer, x: Any, n: Any, each: bool = False) -> Value:
        value, name = t.value(x), f"{op}_each" if each else op
        if type(n) is not int or n < 1:
            raise t.refuse(f"{op}() of {n!r} parts", "Give it an integer of at least 1.")
        parts = (
            None if y is None else t.graph.spread(name, y, n)
            for y in (value.re, value.im, value.like)
        )
        return Value(t, *parts)

    return function


FUNCTIONS |= {op: _spreading(op) for op in ("spread", "fold")}


@named("roll")
def _roll(t: Tracer, input: Any, shifts: Any, dims: Any = None) -> Value:
    by = [shifts] if isinstance(shifts, int) else list(shifts)
    if dims not in (-1, (-1,), [-1]) or len(by) != 1:
        raise t.refuse(f"roll() along {dims!r}", "The channels are the last axis: dims=-1.")
    value = t.value(input)
    parts = (None if y is None else t.graph.spread("roll", y, by[0]) for y in (value.re, value.im))
    return Value(t, *parts)


@named("hardtanh")
def _hardtanh(
    t: Tracer, x: Value, min_val: float = -1.0, max_val: float = 1.0, *, inplace: bool = False
) -> Value:
    """Unlike `clamp`, a limit that is met passes no gradient on."""
    high = t.real("where", t.real("le", max_val, x), max_val, x)
    return t.real("where", t.real("le", x, min_val), min_val, high)


@named("softplus")
def _softplus(t: Tracer, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    if (beta, threshold) == (1, 20):
        return t.real("softplus", x)
    large = t.real("lt", threshold, x * beta)
    small = t.real("where", large, 0.0, x * beta)
    return t.real("where", large, x, t.real("log1p", t.real("exp", small)) / beta)


@named("gelu")
def _gelu(t: Tracer, x: Value, approximate: str = "none") -> Value:
    if approximate == "none":
        return t.real("gelu", x)
    twice = math.sqrt(8 / math.pi) * (x + 0.044715 * (x * x * x))
    return x * t.real("sigmoid", twice)  # (1 + tanh(z)) / 2, which loses nothing below 0


@named("elu")
def _elu(
    t: Tracer, x: Value, alpha: float = 1.0, *, inplace: bool = False, scale: float = 1.0
) -> Value:
    below = t.real("le", x, 0.0)
    # what is not chosen must not overflow: infinity times a gradient of 0 is NaN
    bent = alpha * t.real("expm1", t.real("where", below, x, 0.0) / scale)
    return t.real("where", below, bent, x)


FUNCTIONS |= {
    "relu": lambda t, x, *, inplace=False: t.real("relu", x),
    "celu": lambda t, x, alpha=1.0, *, inplace=False: _elu(t, x, alpha, scale=alpha),
    "silu": lambda t, x, *, inplace=False: x * t.real("sigmoid", x),
    "leaky_relu": lambda t, x, negative_slope=0.01, *, inplace=False: (
        x * t.real("where", t.real("lt", 0.0, x), 1.0, negative_slope)
    ),
    "softsign": lambda t, x: x / (1 + t.real("abs", x)),
    "relu6": lambda t, x, *, inplace=False: _hardtanh(t, x, 0.0, 6.0),
    "selu": lambda t, x, *, inplace=False: (
        1.0507009873554804934193349852946 * _elu(t, x, 1.6732632423543772848170429916717)
    ),
    "mish": lambda t, x, *, inplace=False: x * t.real("tanh", t.real("softplus", x)),
    "tanhshrink": lambda t, x: x - t.real("tanh", x),
    "threshold": lambda t, x, threshold, value, *, inplace=False: t.real(
        "where", t.real("le", x, threshold), value, x
    ),
}


#: Other names that PyTorch has for them.
_ALIASES = {
    "logsigmoid": ("log_sigmoid",), "mul": ("multiply",), "div": ("divide", "true_divide"),
    "neg": ("negative",), "positive": ("contiguous", "clone", "type_as"), "abs": ("absolute",),
    "sigmoid": ("expit",), "conj": ("conj_physical", "resolve_conj"), "sign": ("sgn",),
    "atan2": ("arctan2",), "atan": ("arctan",), "clamp": ("clip",), "lt": ("less",),
    "le": ("less_equal",), "gt": ("greater",), "ge": ("greater_equal",), "ne": ("not_equal",),
}  # fmt: skip
for _name, _aliases in _ALIASES.items():
    FUNCTIONS |= dict.fromkeys(_aliases, FUNCTIONS[_name])


def written(name: str) -> str | None:
    """How one writes a function of the table; None of a name that PyTorch keeps to itself."""
    if name in ("block_linear", "fold", "spread"):
        return f"linrnn.cells.{name}"
    places = {"torch": torch, "torch.nn.functional": F, "torch.special": torch.special}
    paths = (f"{path}.{name}" for path, module in places.items() if hasattr(module, name))
    method = hasattr(Tensor, name) and not name.startswith("_")
    return next(paths, f"torch.Tensor.{name}" if method else None)


def functions() -> tuple[str, ...]:
    """All that a step may call, as one writes it: PyTorch's functions and those of `linrnn.cells`.

    Many are methods of a tensor as well, ``h.tanh()``; the operators of Python are those of
    tensors but for ``//``. Generated from the table by which a step is read.

    Returns:
        Names with their modules, sorted.

    Example:
        >>> from linrnn.cells import functions
        >>> "torch.tanh" in functions(), "torch.asin" in functions()
        (True, False)
    """
    return tuple(sorted({x for x in map(written, FUNCTIONS) if x is not None}))
