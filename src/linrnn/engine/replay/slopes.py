"""Operators that derivatives are made of as instructions of a program: see `_recorded_ops`."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from linrnn.engine.replay.instructions import Rule, real, rule, target
from linrnn.engine.replay.operands import Number, RefusedError, View
from linrnn.engine.replay.sums import RULES
from linrnn.engine.replay.tape import Tape
from linrnn.engine.replay.values import write_slope

__all__ = ["RULES"]


@rule("fill")
def _fill(tape: Tape, to: Number, x: Tensor, value: Any) -> None:
    tape.move(to, tape.number(value))


def _of_argument(name: str) -> Rule:
    """Rule of a function whose argument PyTorch saves: ``(gradient, argument, *options)``."""

    def write(tape: Tape, to: Number, g: Tensor, x: Tensor, *options: Any) -> None:
        numbers = [z for z in options if not isinstance(z, Tensor)]  # a tensor is a buffer
        write_slope(tape, name, to, x, g, *numbers)

    return write


RULES |= {f"{name}_backward": _of_argument(name) for name in ("softplus", "silu", "mish")}
RULES |= {f"{name}_backward": _of_argument(name) for name in ("hardtanh", "log_sigmoid")}


@rule("threshold_backward")
def _threshold(tape: Tape, to: Number, g: Tensor, x: Tensor, threshold: float) -> None:
    write_slope(tape, "threshold", to, x, g, threshold, 0.0)


@rule("gelu_backward")
def _gelu(tape: Tape, to: Number, g: Tensor, x: Tensor, *, approximate: str = "none") -> None:
    write_slope(tape, "gelu", to, x, g, approximate)


@rule("elu_backward")
def _elu(
    tape: Tape, to: Number, g: Tensor, alpha: float, scale: float, of_input: float,
    is_result: bool, x: Tensor,
) -> None:  # fmt: skip
    if (scale, of_input) != (1, 1) or is_result:
        raise RefusedError("with scales, or of a result")
    write_slope(tape, "elu", to, x, g, float(alpha))


@rule("sigmoid_backward")
def _sigmoid(tape: Tape, to: Number, g: Tensor, y: Tensor) -> None:
    s = real(tape.number(y))
    slope = tape.new("mul", s, tape.new("sub", 1.0, s))
    tape.put("mul", target(to), real(tape.number(g)), slope)


@rule("tanh_backward")
def _tanh(tape: Tape, to: Number, g: Tensor, y: Tensor) -> None:
    slope = tape.new("sub", 1.0, tape.new("square", real(tape.number(y))))
    tape.put("mul", target(to), real(tape.number(g)), slope)


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
    tape.move(to, Number(0.0))
    for place, part in zip(to, tape.number(g), strict=True):
        if isinstance(place, View):
            inner = place.narrowed(axis, first, g.shape[axis], by)
            tape.put("move", inner, 0.0 if part is None else part)
