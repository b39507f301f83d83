"""Rounding and what divisions leave, on the values of a step."""

from typing import Any

from linrnn.engine.table import FUNCTIONS, named, simple
from linrnn.engine.values import Value, Writer

FUNCTIONS["floor"] = simple("floor")


@named("ceil")
def _ceil(t: Writer, x: Any) -> Value:
    return -t.real("floor", -t.value(x))


@named("trunc", "fix")
def _trunc(t: Writer, x: Any) -> Value:
    below = t.real("lt", x, 0.0)
    return t.real("where", below, _ceil(t, x), t.real("floor", x))


@named("frac")
def _frac(t: Writer, x: Any) -> Value:
    return t.value(x) - _trunc(t, x)


@named("round")
def _round(t: Writer, x: Any, *, decimals: int = 0) -> Value:
    if decimals:
        raise t.refuse(f"round() to {decimals} decimals", "Write torch.round(x * 10) / 10.")
    return t.real("round", x)


@named("fmod")
def _fmod(t: Writer, input: Any, other: Any) -> Value:
    return t.real("fmod", input, other)


@named("remainder")
def _remainder(t: Writer, input: Any, other: Any) -> Value:
    """With the sign of the divisor, exactly, as in Python."""
    if not isinstance(input, Value):  # PyTorch has no derivative of it
        raise t.refuse("the remainder of a number", "Write torch.remainder(x * 0 + number, x).")
    a, b = t.value(input), t.value(other)
    remainder = t.real("fmod", a, b)
    return t.real("where", _wrong_side(t, remainder, b), remainder + b, remainder)


def _wrong_side(t: Writer, remainder: Value, divisor: Value) -> Value:
    """Whether what a division left has another sign than the divisor."""
    differs = t.real("ne", t.real("lt", divisor, 0.0), t.real("lt", remainder, 0.0))
    return t.real("mul", differs, t.real("ne", remainder, 0.0))


def rounded_quotient(t: Writer, input: Any, other: Any, rounding_mode: str) -> Value:
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
