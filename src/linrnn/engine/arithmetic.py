"""Arithmetic, comparisons, powers and elementary functions on the values of a step."""

import math
from typing import Any

from linrnn.engine.rounding import rounded_quotient
from linrnn.engine.table import FUNCTIONS, Function, named, simple
from linrnn.engine.values import Value, Writer, product

for _op in (
    "sqrt",
    "expm1",
    "log",
    "log1p",
    "sigmoid",
    "tanh",
    "sin",
    "cos",
    "erf",
    "sinh",
    "cosh",
):
    FUNCTIONS[_op] = simple(_op)
FUNCTIONS["expit"] = FUNCTIONS["sigmoid"]


@named("add")
def _add(t: Writer, input: Any, other: Any, *, alpha: float = 1) -> Value:
    a, b = t.value(input), t.value(other)
    b = b if alpha == 1 else b * alpha
    if t.is_truth(a.re) and t.is_truth(b.re):  # the sum of booleans is one: True + True is True
        return t.real("maximum", a, b)
    re = t.graph("add", a.re, b.re)
    if a.im is None and b.im is None:
        return Value(t, re)
    return Value(t, re, t.graph("add", a.pair()[1], b.pair()[1]))


@named("sub", "subtract")
def _sub(t: Writer, input: Any, other: Any, *, alpha: float = 1) -> Value:
    a, b = t.value(input), t.value(other)
    _not_of_truth(t, "a difference", a, b)
    b = b if alpha == 1 else b * alpha
    re = t.graph("sub", a.re, b.re)
    if a.im is None and b.im is None:
        return Value(t, re)
    return Value(t, re, t.graph("sub", a.pair()[1], b.pair()[1]))


def _not_of_truth(t: Writer, what: str, *values: Value) -> None:
    """Refuse what PyTorch has not of booleans."""
    if any(t.is_truth(x.re) for x in values):
        raise t.refuse(f"{what} of truth values", "Write torch.where(condition, 1.0, 0.0).")


@named("rsub")
def _rsub(t: Writer, input: Any, other: Any, *, alpha: float = 1) -> Value:
    return _sub(t, other, input, alpha=alpha)


@named("mul", "multiply")
def _mul(t: Writer, input: Any, other: Any) -> Value:
    a, b, g = t.value(input), t.value(other), t.graph
    if b.im is None:
        a, b = b, a
    if a.im is None:
        im = None if b.im is None else g("mul", a.re, b.im)
        return Value(t, g("mul", a.re, b.re), im)
    assert b.im is not None
    re = g("sub", g("mul", a.re, b.re), g("mul", a.im, b.im))
    return Value(t, re, g("add", g("mul", a.re, b.im), g("mul", a.im, b.re)))


@named("div", "divide", "true_divide")
def _div(t: Writer, input: Any, other: Any, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode is not None:
        return rounded_quotient(t, input, other, rounding_mode)
    a, b, g = t.value(input), t.value(other), t.graph
    if b.im is not None:
        size = g("add", g("square", b.re), g("square", b.im))
        above = a * Value(t, b.re, g("neg", b.im))
        return Value(t, g("div", above.re, size), g("div", above.pair()[1], size))
    im = None if a.im is None else g("div", a.im, b.re)
    return Value(t, g("div", a.re, b.re), im)


@named("rdiv")
def _rdiv(t: Writer, input: Any, other: Any) -> Value:
    return _div(t, other, input)


@named("neg", "negative")
def _neg(t: Writer, x: Value) -> Value:
    _not_of_truth(t, "the negative", x)
    return Value(t, t.graph("neg", x.re), None if x.im is None else t.graph("neg", x.im))


@named("positive", "contiguous", "clone", "type_as")
def _same(t: Writer, x: Value, *ignored: Any) -> Value:
    return x


@named("reciprocal")
def _reciprocal(t: Writer, x: Value) -> Value:
    return _div(t, 1.0, x)


@named("square")
def _square(t: Writer, x: Value) -> Value:
    return x * x


@named("abs", "absolute")
def _abs(t: Writer, x: Value) -> Value:
    """Absolute value; its gradient at 0 is 0, for complex numbers too."""
    if x.im is None:
        return t.real("abs", x)
    size = _square(t, x.real) + _square(t, x.imag)
    zero = t.real("eq", size, 0.0)
    root = t.real("sqrt", t.real("where", zero, 1.0, size))
    return t.real("where", zero, 0.0, root)


@named("exp")
def _exp(t: Writer, x: Value) -> Value:
    if x.im is None:
        return t.real("exp", x)
    size, angle = t.real("exp", x.real), x.imag
    return Value(t, (size * t.real("cos", angle)).re, (size * t.real("sin", angle)).re)


@named("conj", "conj_physical", "resolve_conj")
def _conj(t: Writer, x: Value) -> Value:
    return x if x.im is None else Value(t, x.re, t.graph("neg", x.im))


@named("complex")
def _complex(t: Writer, real: Any, imag: Any) -> Value:
    return Value(t, t.real("add", real, 0.0).re, t.real("add", imag, 0.0).re)


@named("polar")
def _polar(t: Writer, abs: Any, angle: Any) -> Value:
    size = t.value(abs)
    return Value(t, (size * t.real("cos", angle)).re, (size * t.real("sin", angle)).re)


@named("pow")
def _pow(t: Writer, x: Any, exponent: Any) -> Value:
    """Integers from -4 to 4, and roots, as products."""
    if not isinstance(exponent, (int, float)) or isinstance(exponent, bool):
        return t.real("pow", x, exponent)
    if exponent in (0.5, -0.5):
        root = t.real("sqrt", x)
        return root if exponent > 0 else _reciprocal(t, root)
    if exponent not in (-4, -3, -2, -1, 0, 1, 2, 3, 4):
        return t.real("pow", x, exponent)
    # of the reciprocal: the reciprocal of a power has no gradient where that is 0 or infinite
    base = x = t.value(x) if exponent > 0 else _reciprocal(t, x)
    for _ in range(abs(int(exponent)) - 1):
        base = base * x
    return base if exponent else t.value(1.0)


@named("rpow")
def _rpow(t: Writer, exponent: Any, x: Any) -> Value:
    return _pow(t, x, exponent)


@named("exp2")
def _exp2(t: Writer, x: Any) -> Value:
    return t.real("pow", 2.0, x)


@named("log2")
def _log2(t: Writer, x: Any) -> Value:
    return t.real("log", x) / math.log(2)


@named("log10")
def _log10(t: Writer, x: Any) -> Value:
    return t.real("log", x) / math.log(10)


@named("atan2", "arctan2")
def _atan2(t: Writer, input: Any, other: Any) -> Value:
    return t.real("atan2", input, other)


@named("atan", "arctan")
def _atan(t: Writer, x: Any) -> Value:
    return t.real("atan2", x, 1.0)


@named("deg2rad")
def _deg2rad(t: Writer, x: Any) -> Value:
    return t.value(x) * (math.pi / 180)


@named("rad2deg")
def _rad2deg(t: Writer, x: Any) -> Value:
    return t.value(x) * (180 / math.pi)


@named("where")
def _where(t: Writer, condition: Any, input: Any, other: Any) -> Value:
    c, a, b = t.value(condition), t.value(input), t.value(other)
    if a.im is None and b.im is None:
        return t.real("where", c, a, b)
    pairs = zip(a.pair(), b.pair(), strict=True)
    return Value(t, *(t.graph("where", c.re, x, y) for x, y in pairs))


@named("masked_fill")
def _masked_fill(t: Writer, x: Value, mask: Any, value: Any) -> Value:
    return _where(t, mask, value, x)


def _of_two(op: str) -> Function:
    return lambda t, input, other: t.real(op, input, other)


FUNCTIONS |= {op: _of_two(op) for op in ("lt", "le", "eq", "ne", "maximum", "minimum")}
FUNCTIONS |= {"less": FUNCTIONS["lt"], "less_equal": FUNCTIONS["le"]}
FUNCTIONS |= {"not_equal": FUNCTIONS["ne"]}


@named("gt", "greater")
def _gt(t: Writer, input: Any, other: Any) -> Value:
    return t.real("lt", other, input)


@named("ge", "greater_equal")
def _ge(t: Writer, input: Any, other: Any) -> Value:
    return t.real("le", other, input)


@named("logical_not")
def _not(t: Writer, x: Value) -> Value:
    return t.real("eq", x, 0.0)


@named("logical_and")
def _and(t: Writer, input: Any, other: Any) -> Value:
    return t.real("mul", _truth(t, input), _truth(t, other))


@named("logical_or")
def _or(t: Writer, input: Any, other: Any) -> Value:
    return t.real("maximum", _truth(t, input), _truth(t, other))


def _truth(t: Writer, x: Any) -> Value:
    return t.real("ne", x, 0.0)


@named("logical_xor")
def _xor(t: Writer, input: Any, other: Any) -> Value:
    return t.real("ne", _truth(t, input), _truth(t, other))


def _bitwise(name: str, logical: Function) -> Function:
    """Make an operation on truth values; PyTorch has it not of other numbers."""

    def function(t: Writer, *args: Any) -> Value:
        for x in map(t.value, args):
            if t.graph.value(x.re) is None and not t.is_truth(x.re):
                raise t.refuse(f"bitwise_{name}() of numbers", f"Write torch.logical_{name}(...).")
        return logical(t, *args)

    return function


for _op, _logical in (("not", _not), ("and", _and), ("or", _or), ("xor", _xor)):
    FUNCTIONS[f"bitwise_{_op}"] = _bitwise(_op, _logical)


@named("isnan")
def _isnan(t: Writer, x: Value) -> Value:
    return t.real("ne", x, x)


@named("isinf")
def _isinf(t: Writer, x: Value) -> Value:
    return t.real("eq", t.real("abs", x), math.inf)


@named("isfinite")
def _isfinite(t: Writer, x: Value) -> Value:
    return t.real("lt", t.real("abs", x), math.inf)


@named("sign", "sgn")
def _sign(t: Writer, x: Value) -> Value:
    above, below = t.real("lt", 0.0, x), t.real("lt", x, 0.0)
    return t.real("sub", above, below)


@named("clamp", "clip")
def _clamp(t: Writer, x: Value, min: Any = None, max: Any = None) -> Value:
    """A limit that is met passes the gradient on, as a maximum does not."""
    if isinstance(min, Value) or isinstance(max, Value):
        raise t.refuse("clamp() with limits that are values", "Use torch.maximum and minimum.")
    if min is not None and max is not None and min > max:
        return t.real("where", _isnan(t, x), math.nan, max)
    within, beyond = t.value(1.0), t.value(math.nan)
    if min is not None:
        within, beyond = within * t.real("le", min, x), t.real("where", x < min, min, beyond)
    if max is not None:
        within, beyond = within * t.real("le", x, max), t.real("where", x > max, max, beyond)
    return t.real("where", within, x, beyond)


@named("clamp_min")
def _clamp_min(t: Writer, x: Value, min: float) -> Value:
    return _clamp(t, x, min)


@named("clamp_max")
def _clamp_max(t: Writer, x: Value, max: float) -> Value:
    return _clamp(t, x, None, max)


@named("tan")
def _tan(t: Writer, x: Value) -> Value:
    return t.real("sin", x) / t.real("cos", x)


@named("rsqrt")
def _rsqrt(t: Writer, x: Value) -> Value:
    return _reciprocal(t, t.real("sqrt", x))


@named("lerp")
def _lerp(t: Writer, input: Any, end: Any, weight: Any) -> Value:
    a, b = t.value(input), t.value(end)
    return _add(t, a, _mul(t, weight, b - a))


@named("addcdiv")
def _addcdiv(t: Writer, input: Any, a: Any, b: Any, *, value: float = 1) -> Value:
    return _add(t, input, _div(t, t.value(a) * value, b))


@named("addcmul")
def _addcmul(t: Writer, input: Any, a: Any, b: Any, *, value: float = 1) -> Value:
    return _add(t, input, _mul(t, t.value(a) * value, b))


@named("logaddexp")
def _logaddexp(t: Writer, input: Any, other: Any) -> Value:
    high, low = t.real("maximum", input, other), t.real("minimum", input, other)
    same = t.real("eq", input, other)  # of infinities there is no difference
    gap = t.real("where", same, 0.0, low) - t.real("where", same, 0.0, high)
    return high + t.real("log1p", t.real("exp", gap))


@named("zeros_like")
def _zeros_like(t: Writer, x: Value) -> Value:
    return _full_like(t, x, 0.0)


@named("ones_like")
def _ones_like(t: Writer, x: Value) -> Value:
    return _full_like(t, x, 1.0)


@named("full_like")
def _full_like(t: Writer, x: Value, fill_value: float) -> Value:
    parts = t.value(fill_value)
    return Value(t, parts.re, parts.im, like=x.re)


@named("linear")
def _linear(t: Writer, input: Any, weight: Any, bias: Any = None) -> Value:
    result = product(t, "linear", weight, input, False)
    return result if bias is None else result + bias


@named("matmul")
def _matmul(t: Writer, input: Any, other: Any) -> Value:
    return product(t, "linear", other, input, True)


@named("block_linear")
def _block_linear(t: Writer, x: Any, weight: Any) -> Value:
    return product(t, "block_linear", weight, x, False)


def _spreading(op: str) -> Function:
    def function(t: Writer, x: Any, n: Any, each: bool = False) -> Value:
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
def _roll(t: Writer, input: Any, shifts: Any, dims: Any = None) -> Value:
    by = [shifts] if isinstance(shifts, int) else list(shifts)
    if dims not in (-1, (-1,), [-1]) or len(by) != 1:
        raise t.refuse(f"roll() along {dims!r}", "The channels are the last axis: dims=-1.")
    value = t.value(input)
    parts = (None if y is None else t.graph.spread("roll", y, by[0]) for y in (value.re, value.im))
    return Value(t, *parts)
