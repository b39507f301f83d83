"""Operators that derivatives are made of as instructions of a program: see `_recorded_ops`."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from linrnn.ops._recorded_ops import real, rule, target
from linrnn.ops._recorded_sums import RULES
from linrnn.ops._recorded_tape import Number, Real, RefusedError, Tape, View

__all__ = ["RULES"]


@rule("fill")
def _fill(tape: Tape, to: Number, x: Tensor, value: Any) -> None:
    given = tape.number(value)
    for place, part in zip(to, (given.re, 0.0 if given.im is None else given.im), strict=True):
        if isinstance(place, View):
            tape.put("move", place, part)


@rule("sigmoid_backward")
def _sigmoid(tape: Tape, to: Number, g: Tensor, y: Tensor) -> None:
    s = real(tape.number(y))
    slope = tape.new("mul", s, tape.new("sub", 1.0, s))
    tape.put("mul", target(to), real(tape.number(g)), slope)


@rule("tanh_backward")
def _tanh(tape: Tape, to: Number, g: Tensor, y: Tensor) -> None:
    slope = tape.new("sub", 1.0, tape.new("square", real(tape.number(y))))
    tape.put("mul", target(to), real(tape.number(g)), slope)


@rule("threshold_backward")
def _threshold(tape: Tape, to: Number, g: Tensor, x: Tensor, threshold: float) -> None:
    shut = tape.new("le", real(tape.number(x)), float(threshold))
    tape.put("where", target(to), shut, 0.0, real(tape.number(g)))


@rule("softplus_backward")
def _softplus(tape: Tape, to: Number, g: Tensor, x: Tensor, beta: float, threshold: float) -> None:
    if (beta, threshold) != (1, 20):
        raise RefusedError("with beta or threshold")
    z, credit = real(tape.number(x)), real(tape.number(g))
    far = tape.new("lt", float(threshold), z)
    tape.put("where", target(to), far, credit, tape.new("mul", credit, tape.new("sigmoid", z)))


@rule("log_sigmoid_backward")
def _logsigmoid(tape: Tape, to: Number, g: Tensor, x: Tensor, buffer: Tensor) -> None:
    slope = tape.new("sigmoid", tape.new("neg", real(tape.number(x))))
    tape.put("mul", target(to), real(tape.number(g)), slope)


@rule("silu_backward")
def _silu(tape: Tape, to: Number, g: Tensor, x: Tensor) -> None:
    z = real(tape.number(x))
    s = tape.new("sigmoid", z)
    rest = tape.new("mul_add", z, tape.new("sub", 1.0, s), 1.0)
    tape.put("mul_mul", target(to), real(tape.number(g)), s, rest)


@rule("elu_backward")
def _elu(
    tape: Tape, to: Number, g: Tensor, alpha: float, scale: float, of_input: float,
    is_result: bool, x: Tensor,
) -> None:  # fmt: skip
    if (scale, of_input) != (1, 1):
        raise RefusedError("with scales")
    z, credit = real(tape.number(x)), real(tape.number(g))
    slope = tape.new("exp", z) if not is_result else tape.new("add_v", z, value=float(alpha))
    slope = slope if is_result else tape.new("mul_v", slope, value=float(alpha))
    below = tape.new("mul", credit, slope)
    tape.put("where", target(to), tape.new("lt", 0.0, z), credit, below)


@rule("sgn")
def _sgn(tape: Tape, to: Number, x: Tensor) -> None:
    a = tape.number(x)
    if a.im is None:
        RULES["sign"](tape, to, x)
        return
    size = tape.fresh(x.shape, a.re, a.im)
    RULES["abs"](tape, Number(size), x)
    for place, part in zip(to, a, strict=True):
        assert isinstance(place, View)
        assert part is not None
        tape.put("where", place, tape.new("eq", size, 0.0), 0.0, tape.new("div", part, size))


@rule("select_backward")
def _select(tape: Tape, to: Number, g: Tensor, sizes: Sequence[int], dim: int, index: int) -> None:
    axis = dim % len(sizes)
    _within(tape, to, g.unsqueeze(axis), axis, index % sizes[axis], 1)


@rule("slice_backward")
def _slice(
    tape: Tape, to: Number, g: Tensor, sizes: Sequence[int], dim: int, start: int, end: int, by: int
) -> None:
    axis = dim % len(sizes)
    first, _, _ = slice(start, end).indices(sizes[axis])
    _within(tape, to, g, axis, first, by)


def _within(tape: Tape, to: Number, g: Tensor, axis: int, first: int, by: int) -> None:
    """Some places along an axis, among zeros."""
    for place, part in zip(to, tape.number(g), strict=True):
        if not isinstance(place, View):
            continue
        tape.put("move", place, 0.0)
        strides = (*place.strides[:axis], by * place.strides[axis], *place.strides[axis + 1 :])
        offset = place.offset + first * place.strides[axis]
        inner = place._replace(offset=offset, shape=tuple(g.shape), strides=strides)
        given: Real = 0.0 if part is None else part
        tape.put("move", inner, given)
