"""Activations on the values of a step."""

import math

from linrnn.engine.table import FUNCTIONS, named, simple
from linrnn.engine.values import Value, Writer

FUNCTIONS |= dict.fromkeys(("logsigmoid", "log_sigmoid"), simple("logsigmoid"))


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


@named("celu")
def _celu(t: Writer, x: Value, alpha: float = 1.0, *, inplace: bool = False) -> Value:
    below = t.real("le", x, 0.0)
    bent = alpha * t.real("expm1", t.real("where", below, x, 0.0) / alpha)
    return t.real("where", below, bent, x)


#: Activations that are one line of others.
FUNCTIONS |= {
    "relu": lambda t, x, *, inplace=False: t.real("relu", x),
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
