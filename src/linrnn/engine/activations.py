"""Activations on the values of a step."""

import math

from linrnn.engine.table import FUNCTIONS, named, simple
from linrnn.engine.values import Value, Writer

FUNCTIONS |= dict.fromkeys(("logsigmoid", "log_sigmoid"), simple("logsigmoid"))


@named("relu")
def _relu(t: Writer, x: Value, *, inplace: bool = False) -> Value:
    return t.real("relu", x)


@named("hardtanh")
def _hardtanh(
    t: Writer, x: Value, min_val: float = -1.0, max_val: float = 1.0, *, inplace: bool = False
) -> Value:
    """Unlike `clamp`, a limit that is met passes no gradient on."""
    high = t.real("where", t.real("le", max_val, x), max_val, x)
    return t.real("where", t.real("le", x, min_val), min_val, high)


@named("softplus")
def _softplus(t: Writer, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    if (beta, threshold) == (1, 20):
        return t.real("softplus", x)
    large = t.real("lt", threshold, x * beta)
    small = t.real("where", large, 0.0, x * beta)
    return t.real("where", large, x, t.real("log1p", t.real("exp", small)) / beta)


@named("silu")
def _silu(t: Writer, x: Value, *, inplace: bool = False) -> Value:
    return x * t.real("sigmoid", x)


@named("gelu")
def _gelu(t: Writer, x: Value, approximate: str = "none") -> Value:
    if approximate == "none":
        return t.real("gelu", x)
    twice = math.sqrt(8 / math.pi) * (x + 0.044715 * (x * x * x))
    return x * t.real("sigmoid", twice)  # (1 + tanh(z)) / 2, which loses nothing below 0


@named("elu")
def _elu(t: Writer, x: Value, alpha: float = 1.0, *, inplace: bool = False) -> Value:
    below = t.real("le", x, 0.0)
    # what is not chosen must not overflow: infinity times a gradient of 0 is NaN
    bent = alpha * t.real("expm1", t.real("where", below, x, 0.0))
    return t.real("where", below, bent, x)


@named("leaky_relu")
def _leaky_relu(
    t: Writer, x: Value, negative_slope: float = 0.01, *, inplace: bool = False
) -> Value:
    return x * t.real("where", t.real("lt", 0.0, x), 1.0, negative_slope)


@named("softsign")
def _softsign(t: Writer, x: Value) -> Value:
    return x / (1 + t.real("abs", x))


@named("relu6")
def _relu6(t: Writer, x: Value, *, inplace: bool = False) -> Value:
    return _hardtanh(t, x, 0.0, 6.0)


@named("selu")
def _selu(t: Writer, x: Value, *, inplace: bool = False) -> Value:
    return 1.0507009873554804934193349852946 * _elu(t, x, 1.6732632423543772848170429916717)


@named("celu")
def _celu(t: Writer, x: Value, alpha: float = 1.0, *, inplace: bool = False) -> Value:
    below = t.real("le", x, 0.0)
    bent = alpha * t.real("expm1", t.real("where", below, x, 0.0) / alpha)
    return t.real("where", below, bent, x)


@named("mish")
def _mish(t: Writer, x: Value, *, inplace: bool = False) -> Value:
    return x * t.real("tanh", t.real("softplus", x))


@named("tanhshrink")
def _tanhshrink(t: Writer, x: Value) -> Value:
    return x - t.real("tanh", x)


@named("threshold")
def _threshold(
    t: Writer, x: Value, threshold: float, value: float, *, inplace: bool = False
) -> Value:
    return t.real("where", t.real("le", x, threshold), value, x)
