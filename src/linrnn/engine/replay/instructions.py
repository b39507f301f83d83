"""The instructions of a recorded step for each operator of PyTorch.

An elementwise operator is compiled as in cells (`linrnn.engine.functions`), unless a rule here says
otherwise: because it is shorter without a gradient, or because its arguments have another order.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from linrnn.engine.functions import FUNCTIONS
from linrnn.engine.replay.operands import Number, Real, RefusedError, View, tensors_in
from linrnn.engine.replay.tape import Tape
from linrnn.engine.replay.values import write

#: Writes an operator's instructions: ``(tape, where to, *arguments)``.
Rule: TypeAlias = Callable[..., None]
#: By the operator's name, without the underscore of one in place.
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Decorate the rule of operators."""

    def decorate(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return decorate


def real(x: Number) -> Real:
    """The only part of an operand."""
    if x.im is not None:
        raise RefusedError("of complex numbers")
    return x.re


def target(x: Number) -> View:
    """Return where real numbers are written to."""
    view = real(x)
    assert isinstance(view, View)
    return view


def _function(name: str) -> Rule:
    def write_it(tape: Tape, to: Number, *args: Any, **options: Any) -> None:
        write(tape, name, to, args, options)

    return write_it


RULES |= {name: _function(name) for name in FUNCTIONS if hasattr(torch.ops.aten, name)}
RULES["log_sigmoid_forward"] = _function("logsigmoid")


@rule("move", "clone", "_to_copy", "copy", "contiguous")
def _move(tape: Tape, to: Number, x: Any, *operands: Any, **options: Any) -> None:
    tape.move(to, tape.number(operands[0] if operands and isinstance(operands[0], Tensor) else x))


@rule("abs")
def _abs(tape: Tape, to: Number, x: Any) -> None:
    a = tape.number(x)
    if a.im is None:
        tape.put("abs", target(to), a.re)
        return
    sizes = [tape.new("abs", part) for part in (a.re, a.im)]
    # of squares of numbers up to 1, which do not overflow
    larger = tape.new("maximum", *sizes)
    ratio = tape.new("div", tape.new("minimum", *sizes), larger)
    ratio = tape.new("where", tape.new("eq", larger, 0.0), 0.0, ratio)
    root = tape.new("sqrt", tape.new("add", tape.new("square", ratio), 1.0))
    tape.put("mul", target(to), larger, root)


@rule("floor_divide")
def _floor_divide(tape: Tape, to: Number, x: Any, y: Any) -> None:
    write(tape, "div", to, (x, y), {"rounding_mode": "floor"})


@rule("elu")
def _elu(
    tape: Tape, to: Number, x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> None:
    z = real(tape.number(x))
    below = tape.new("expm1", tape.new("mul", z, float(input_scale)))
    below = tape.new("mul", below, float(alpha))
    tape.put("mul", target(to), tape.new("where", tape.new("lt", 0.0, z), z, below), float(scale))


@rule("glu")
def _glu(tape: Tape, to: Number, x: Tensor, dim: int = -1) -> None:
    a, b = (real(tape.number(half)) for half in x.chunk(2, dim))
    tape.put("mul", target(to), a, tape.new("sigmoid", b))


@rule("clamp", "clamp_min")
def _clamp(tape: Tape, to: Number, x: Any, min: Any = None, max: Any = None) -> None:
    clamped = real(tape.number(x))
    for op, bound in (("maximum", min), ("minimum", max)):
        if bound is not None:
            clamped = tape.new(op, clamped, real(tape.number(bound)))
    tape.put("move", target(to), clamped)


@rule("clamp_max")
def _clamp_max(tape: Tape, to: Number, x: Any, max: Any) -> None:
    _clamp(tape, to, x, None, max)


@rule("cat")
def _cat(tape: Tape, to: Number, tensors: Sequence[Tensor], dim: int = 0) -> None:
    first = 0
    for x in tensors:
        if x.shape == (0,):
            continue
        n, axis = x.shape[dim], dim % x.ndim
        place = to.seen(functools.partial(View.narrowed, axis=axis, first=first, n=n))
        tape.move(place, tape.number(x))
        first += n


RULES["stack"] = lambda tape, to, tensors, dim=0: _cat(
    tape, to, [x.unsqueeze(dim) for x in tensors], dim
)


@rule("roll")
def _roll(
    tape: Tape, to: Number, x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()
) -> None:
    if len(dims) != 1:
        raise RefusedError("along several axes")
    n, axis = x.shape[dims[0]], dims[0] % x.ndim
    at = -shifts[0] % max(n, 1)
    _cat(tape, to, [x.narrow(axis, at, n - at), x.narrow(axis, 0, at)], axis)


@rule("repeat")
def _repeat(tape: Tape, to: Number, x: Tensor, repeats: Sequence[int]) -> None:
    x = x[(None,) * (len(repeats) - x.ndim)]
    sizes = x.shape

    def split_axes(part: View) -> View:
        """Each axis as two: which copy, and where in it."""
        shape = [n for pair in zip(repeats, sizes, strict=True) for n in pair]
        steps = [k for n, step in zip(sizes, part.strides, strict=True) for k in (n * step, step)]
        return part._replace(shape=tuple(shape), strides=tuple(steps))

    for axis in range(len(sizes)):
        x = x.unsqueeze(2 * axis)
    tape.move(to.seen(split_axes), tape.number(x))


@rule("constant_pad_nd")
def _padded(tape: Tape, to: Number, x: Tensor, pad: Sequence[int], value: float = 0) -> None:
    if min(pad) < 0:
        raise RefusedError("by less than nothing")
    output = target(to)
    tape.put("move", output, float(value))
    for i, left in enumerate(pad[::2]):
        axis = x.ndim - 1 - i
        output = output.narrowed(axis, left, x.shape[axis])
    tape.put("move", output, real(tape.number(x)))


@rule("index")
def _index(tape: Tape, to: Number, x: Tensor, indices: Sequence[Tensor | None]) -> None:
    axes = [axis for axis, at in enumerate(indices) if at is not None]
    at = indices[axes[0]]
    if len(axes) != 1 or at is None or at.dtype is not torch.int64:
        raise RefusedError("by several tensors, or by truth values")
    (axis,), source, place = axes, tape.view(real(tape.number(x))), real(tape.number(at))
    rank = at.ndim

    def spread(sizes: Sequence[int], filler: int) -> tuple[int, ...]:
        return (*sizes[:axis], *[filler] * rank, *sizes[axis + 1 :])

    shape, strides = spread(source.shape, 1), spread(source.strides, 0)
    for _ in source.shape[axis + 1 :]:
        place = tape.view(place).wider()
    _take(tape, to, source._replace(shape=shape, strides=strides), place, x, axis)


@rule("gather")
def _gather(tape: Tape, to: Number, x: Tensor, dim: int, index: Tensor, **_: Any) -> None:
    axis, source = dim % x.ndim, tape.view(real(tape.number(x)))
    strides = (*source.strides[:axis], 0, *source.strides[axis + 1 :])
    source = source._replace(shape=tuple(index.shape), strides=strides)
    _take(tape, to, source, real(tape.number(index)), x, axis)


def _take(tape: Tape, to: Number, source: View, place: Real, x: Tensor, axis: int) -> None:
    """Take from ``source``, which is x but for its axis, along which ``place`` goes."""
    stride = tape.view(real(tape.number(x))).strides[axis]
    tape.put("take", target(to), source, place, float(x.shape[axis]), value=stride)


#: Operators whose result has no number of their arguments.
CONSTANT = {
    *("empty", "empty_like", "empty_strided", "new_empty", "zeros", "zeros_like", "new_zeros"),
    *("ones", "ones_like", "new_ones", "full", "full_like", "new_full", "arange", "scalar_tensor"),
    *("linspace", "eye", "lift_fresh"),
}


def is_constant(name: str, args: Sequence[Any], tape: Tape) -> bool:
    """Whether an operator's result is the same at every step."""
    if name in CONSTANT:
        return True
    slots = [tape.slot(x) for x in tensors_in(args)]
    return bool(slots) and all(slot is not None and slot.kind == "constant" for slot in slots)
