"""What PyTorch's functions are on the values of a step; by the names they have in PyTorch.

What the graph has no operation for is written with those it has, with the same gradients at ties
and kinks.
"""

import math
from collections.abc import Callable
from typing import Any

from linrnn.cells._graph import ELEMENTWISE
from linrnn.cells._trace import Tracer, Value, product

Function = Callable[..., Value]

#: By the name of the function in `torch`, `torch.Tensor` or `torch.nn.functional`.
FUNCTIONS: dict[str, Function] = {}
#: Attributes of a tensor that a value has.
PROPERTIES: dict[str, Callable[[Value], Any]] = {
    "real": lambda x: Value(x.tracer, x.re),
    "imag": lambda x: Value(x.tracer, x.pair()[1]),
    "H": lambda x: x.mT,
}

_REDUCTIONS = "sum mean prod max min amax amin argmax norm var std softmax log_softmax layer_norm "
_REDUCTIONS += "logsumexp cumsum any all item tolist numpy rms_norm group_norm"
_VIEWS = "view reshape unflatten flatten chunk split unbind unsqueeze squeeze transpose permute "
_VIEWS += "expand cat stack narrow roll flip index_select gather T mT shape size ndim dim"
_CASTS = "float double half bfloat16 to type cpu cuda dtype device"


def refusal(name: str) -> str:
    """What to write instead of a function that a step must not use."""
    if name in _REDUCTIONS.split():
        return "A sum of channels is linrnn.cells.fold; anything else belongs before or after."
    if name in ("repeat", "repeat_interleave", "tile"):
        return "Channels are repeated by linrnn.cells.spread."
    if name in _VIEWS.split():
        return "Every value is one number a channel: give parts as arguments of their own."
    if name in _CASTS.split():
        return "Leave it away: a scan computes in at least float32 and stores in its inputs' dtype."
    if name in ("detach", "requires_grad_"):
        return "Detach the argument before the scan; inside, gradients are those of the equation."
    if name.endswith("_") and not name.endswith("__"):
        return f"Nothing is changed in place: write x = x.{name.rstrip('_')}(...)."
    if "dropout" in name or name.startswith(("rand", "bernoulli", "normal")):
        return "Draw the random numbers before the scan and make them an input."
    return "Write it with the functions that linrnn.cells lists, or compute it before or after."


def _named(*names: str) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        FUNCTIONS.update(dict.fromkeys(names, function))
        return function

    return register


def _simple(op: str) -> Function:
    return lambda t, x: t.real(op, x)


for _op in ("sqrt", "expm1", "log", "log1p", "sigmoid", "tanh", "sin", "cos", "erf"):
    FUNCTIONS[_op] = _simple(_op)
FUNCTIONS |= {"expit": FUNCTIONS["sigmoid"], "logsigmoid": _simple("logsigmoid")}
FUNCTIONS["log_sigmoid"] = FUNCTIONS["logsigmoid"]
assert set(FUNCTIONS) - {"expit", "log_sigmoid"} <= set(ELEMENTWISE)


@_named("relu")
def _relu(t: Tracer, x: Value, inplace: bool = False) -> Value:
    return t.real("relu", x)


@_named("add")
def _add(t: Tracer, input: Any, other: Any, *, alpha: float = 1) -> Value:
    a, b = t.value(input), t.value(other)
    b = b if alpha == 1 else b * alpha
    re = t.graph("add", a.re, b.re)
    if a.im is None and b.im is None:
        return Value(t, re)
    return Value(t, re, t.graph("add", a.pair()[1], b.pair()[1]))


@_named("sub", "subtract")
def _sub(t: Tracer, input: Any, other: Any, *, alpha: float = 1) -> Value:
    a, b = t.value(input), t.value(other)
    b = b if alpha == 1 else b * alpha
    re = t.graph("sub", a.re, b.re)
    if a.im is None and b.im is None:
        return Value(t, re)
    return Value(t, re, t.graph("sub", a.pair()[1], b.pair()[1]))


@_named("rsub")
def _rsub(t: Tracer, input: Any, other: Any, *, alpha: float = 1) -> Value:
    return _sub(t, other, input, alpha=alpha)


@_named("mul", "multiply")
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


@_named("div", "divide", "true_divide")
def _div(t: Tracer, input: Any, other: Any) -> Value:
    a, b, g = t.value(input), t.value(other), t.graph
    if b.im is not None:
        size = g("add", g("square", b.re), g("square", b.im))
        above = a * Value(t, b.re, g("neg", b.im))
        return Value(t, g("div", above.re, size), g("div", above.pair()[1], size))
    im = None if a.im is None else g("div", a.im, b.re)
    return Value(t, g("div", a.re, b.re), im)


@_named("rdiv", "__rdiv__")
def _rdiv(t: Tracer, input: Any, other: Any) -> Value:
    return _div(t, other, input)


@_named("neg", "negative")
def _neg(t: Tracer, x: Value) -> Value:
    return Value(t, t.graph("neg", x.re), None if x.im is None else t.graph("neg", x.im))


@_named("positive", "contiguous", "clone", "type_as")
def _same(t: Tracer, x: Value, *others: Any) -> Value:
    return x


@_named("reciprocal")
def _reciprocal(t: Tracer, x: Value) -> Value:
    return _div(t, 1.0, x)


@_named("square")
def _square(t: Tracer, x: Value) -> Value:
    return x * x


@_named("abs", "absolute")
def _abs(t: Tracer, x: Value) -> Value:
    """Of 0 the gradient is 0, for complex numbers too."""
    if x.im is None:
        return t.real("abs", x)
    size = _square(t, x.real) + _square(t, x.imag)
    zero = t.real("eq", size, 0.0)
    root = t.real("sqrt", t.real("where", zero, 1.0, size))
    return t.real("where", zero, 0.0, root)


@_named("exp")
def _exp(t: Tracer, x: Value) -> Value:
    if x.im is None:
        return t.real("exp", x)
    size, angle = t.real("exp", x.real), x.imag
    return Value(t, (size * t.real("cos", angle)).re, (size * t.real("sin", angle)).re)


@_named("conj", "conj_physical", "resolve_conj")
def _conj(t: Tracer, x: Value) -> Value:
    return x if x.im is None else Value(t, x.re, t.graph("neg", x.im))


@_named("complex")
def _complex(t: Tracer, real: Any, imag: Any) -> Value:
    return Value(t, t.real("add", real, 0.0).re, t.real("add", imag, 0.0).re)


@_named("polar")
def _polar(t: Tracer, abs: Any, angle: Any) -> Value:
    size = t.value(abs)
    return Value(t, (size * t.real("cos", angle)).re, (size * t.real("sin", angle)).re)


@_named("pow")
def _pow(t: Tracer, x: Any, exponent: Any) -> Value:
    """Integers from -4 to 4, and roots, as products."""
    roots: dict[float, Function] = {0.5: _simple("sqrt")}
    if isinstance(exponent, (int, float)) and exponent in roots:
        return roots[exponent](t, x)
    if not isinstance(exponent, (int, float)) or exponent not in (-4, -3, -2, -1, 1, 2, 3, 4):
        raise t.refuse(
            f"a power of {exponent if isinstance(exponent, (int, float)) else 'a value'}",
            "Write torch.exp(exponent * torch.log(x)) for positive x.",
        )
    base = x = t.value(x)
    for _ in range(abs(int(exponent)) - 1):
        base = base * x
    return base if exponent > 0 else _reciprocal(t, base)


@_named("where")
def _where(t: Tracer, condition: Any, input: Any, other: Any) -> Value:
    c, a, b = t.value(condition), t.value(input), t.value(other)
    if a.im is None and b.im is None:
        return t.real("where", c, a, b)
    pairs = zip(a.pair(), b.pair(), strict=True)
    return Value(t, *(t.graph("where", c.re, x, y) for x, y in pairs))


@_named("masked_fill")
def _masked_fill(t: Tracer, x: Value, mask: Any, value: Any) -> Value:
    return _where(t, mask, value, x)


for _op in ("lt", "le", "eq", "ne", "maximum", "minimum"):
    FUNCTIONS[_op] = lambda t, input, other, op=_op: t.real(op, input, other)
FUNCTIONS |= {"less": FUNCTIONS["lt"], "less_equal": FUNCTIONS["le"]}
FUNCTIONS |= {"not_equal": FUNCTIONS["ne"]}


@_named("gt", "greater")
def _gt(t: Tracer, input: Any, other: Any) -> Value:
    return t.real("lt", other, input)


@_named("ge", "greater_equal")
def _ge(t: Tracer, input: Any, other: Any) -> Value:
    return t.real("le", other, input)


@_named("logical_not", "bitwise_not")
def _not(t: Tracer, x: Value) -> Value:
    return t.real("eq", x, 0.0)


@_named("logical_and", "bitwise_and")
def _and(t: Tracer, input: Any, other: Any) -> Value:
    return t.real("mul", _truth(t, input), _truth(t, other))


@_named("logical_or", "bitwise_or")
def _or(t: Tracer, input: Any, other: Any) -> Value:
    return t.real("maximum", _truth(t, input), _truth(t, other))


def _truth(t: Tracer, x: Any) -> Value:
    return t.real("ne", x, 0.0)


@_named("isnan")
def _isnan(t: Tracer, x: Value) -> Value:
    return t.real("ne", x, x)


@_named("sign", "sgn")
def _sign(t: Tracer, x: Value) -> Value:
    return t.real("lt", 0.0, x) - t.real("lt", x, 0.0)


@_named("clamp", "clip")
def _clamp(t: Tracer, x: Value, min: Any = None, max: Any = None) -> Value:
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


@_named("clamp_min")
def _clamp_min(t: Tracer, x: Value, min: float) -> Value:
    return _clamp(t, x, min)


@_named("clamp_max")
def _clamp_max(t: Tracer, x: Value, max: float) -> Value:
    return _clamp(t, x, None, max)


@_named("hardtanh")
def _hardtanh(
    t: Tracer, x: Value, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Value:
    """Unlike `clamp`, a limit that is met passes no gradient on."""
    high = t.real("where", t.real("le", max_val, x), max_val, x)
    return t.real("where", t.real("le", x, min_val), min_val, high)


@_named("softplus")
def _softplus(t: Tracer, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    if (beta, threshold) == (1, 20):
        return t.real("softplus", x)
    large = t.real("lt", threshold, x * beta)
    small = t.real("where", large, 0.0, x * beta)
    return t.real("where", large, x, t.real("log1p", t.real("exp", small)) / beta)


@_named("silu")
def _silu(t: Tracer, x: Value, inplace: bool = False) -> Value:
    return x * t.real("sigmoid", x)


@_named("gelu")
def _gelu(t: Tracer, x: Value, approximate: str = "none") -> Value:
    if approximate == "none":
        return t.real("gelu", x)
    twice = math.sqrt(8 / math.pi) * (x + 0.044715 * _pow(t, x, 3))
    return x * t.real("sigmoid", twice)  # (1 + tanh(z)) / 2, which loses nothing below 0


@_named("elu")
def _elu(t: Tracer, x: Value, alpha: float = 1.0, inplace: bool = False) -> Value:
    below = t.real("le", x, 0.0)
    # what is not chosen must not overflow: infinity times a gradient of 0 is NaN
    bent = alpha * t.real("expm1", t.real("where", below, x, 0.0))
    return t.real("where", below, bent, x)


@_named("leaky_relu")
def _leaky_relu(t: Tracer, x: Value, negative_slope: float = 0.01, inplace: bool = False) -> Value:
    return t.real("where", t.real("lt", 0.0, x), x, x * negative_slope)


@_named("softsign")
def _softsign(t: Tracer, x: Value) -> Value:
    return x / (1 + t.real("abs", x))


@_named("tan")
def _tan(t: Tracer, x: Value) -> Value:
    return t.real("sin", x) / t.real("cos", x)


@_named("rsqrt")
def _rsqrt(t: Tracer, x: Value) -> Value:
    return _reciprocal(t, t.real("sqrt", x))


@_named("lerp")
def _lerp(t: Tracer, input: Any, end: Any, weight: Any) -> Value:
    a, b = t.value(input), t.value(end)
    return _add(t, a, _mul(t, weight, b - a))


@_named("addcmul")
def _addcmul(t: Tracer, input: Any, a: Any, b: Any, *, value: float = 1) -> Value:
    return _add(t, input, _mul(t, t.value(a) * value, b))


@_named("logaddexp")
def _logaddexp(t: Tracer, input: Any, other: Any) -> Value:
    high, low = t.real("maximum", input, other), t.real("minimum", input, other)
    same = t.real("eq", input, other)  # of infinities there is no difference
    gap = t.real("where", same, 0.0, low) - t.real("where", same, 0.0, high)
    return high + t.real("log1p", t.real("exp", gap))


@_named("zeros_like")
def _zeros_like(t: Tracer, x: Value) -> Value:
    return t.value(0.0)


@_named("ones_like")
def _ones_like(t: Tracer, x: Value) -> Value:
    return t.value(1.0)


@_named("full_like")
def _full_like(t: Tracer, x: Value, fill_value: float) -> Value:
    return t.value(fill_value)


@_named("linear")
def _linear(t: Tracer, input: Any, weight: Any, bias: Any = None) -> Value:
    found = product(t, "linear", weight, input, False)
    return found if bias is None else found + bias


@_named("matmul")
def _matmul(t: Tracer, input: Any, other: Any) -> Value:
    return product(t, "linear", other, input, True)


@_named("block_linear")
def _block_linear(t: Tracer, x: Any, weight: Any) -> Value:
    return product(t, "block_linear", weight, x, False)


def _spreading(op: str) -> Function:
    def function(t: Tracer, x: Any, n: Any, each: bool = False) -> Value:
        value, name = t.value(x), f"{op}_each" if each else op
        if type(n) is not int or n < 1:
            raise t.refuse(f"{op}() of {n!r} parts", "Give it an integer of at least 1.")
        parts = (None if y is None else t.graph.spread(name, y, n) for y in (value.re, value.im))
        return Value(t, *parts)  # type: ignore[arg-type]

    return function


FUNCTIONS |= {op: _spreading(op) for op in ("spread", "fold")}


@_named("roll")
def _roll(t: Tracer, input: Any, shifts: Any, dims: Any = None) -> Value:
    by = [shifts] if isinstance(shifts, int) else list(shifts)
    if dims not in (-1, (-1,), [-1]) or len(by) != 1:
        raise t.refuse(f"roll() along {dims!r}", "The channels are the last axis: dims=-1.")
    value = t.value(input)
    parts = (None if y is None else t.graph.spread("roll", y, by[0]) for y in (value.re, value.im))
    return Value(t, *parts)  # type: ignore[arg-type]
