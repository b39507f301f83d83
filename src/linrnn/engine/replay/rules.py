"""The instructions of a recorded step for each operator of PyTorch.

An elementwise operator is read as in cells (`linrnn.engine.functions`), and each operation of its
graph becomes an instruction; unless a rule here says otherwise: because it is shorter without a
gradient, or because its arguments have another order. Operators that are others of PyTorch's say
which (`COMPOSED`).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from linrnn.engine.derivatives import adjoint
from linrnn.engine.functions import FUNCTIONS
from linrnn.engine.graph import Program, evaluate, finish
from linrnn.engine.replay.operands import Number, Real, RefusedError, View, tensors_in
from linrnn.engine.replay.tape import Tape
from linrnn.engine.values import Tracer, Value, call

#: Writes an operator's instructions: ``(tape, where to, *arguments)``.
Rule: TypeAlias = Callable[..., None]
#: By the operator's name, without the underscore of one in place.
RULES: dict[str, Rule] = {}
#: Operators that are written as others: functions of the same arguments and options.
COMPOSED: dict[str, Callable[..., Tensor]] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Decorate the rule of operators."""

    def decorate(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return decorate


def target(x: Number) -> View:
    """Return where real numbers are written to."""
    view = x.only
    assert isinstance(view, View)
    return view


def _function(name: str) -> Rule:
    """Make the rule of a function of `linrnn.cells.functions`."""

    def write(tape: Tape, to: Number, *args: Any, **kwargs: Any) -> None:
        start, reader, numbers = (
            len(tape.instructions),
            Tracer(name, RefusedError),
            dict[int, Real](),
        )

        def part(x: Real | None) -> int | None:
            if not isinstance(x, View):
                return None if x is None else reader.graph.constant(x)
            leaf = reader.graph.leaf("input", len(numbers))
            numbers[leaf] = x
            if tape.is_truth(x):
                reader.truths.add(leaf)
            return leaf

        def value(x: Any) -> Any:
            return Value(reader, *map(part, tape.number(x))) if isinstance(x, Tensor) else x

        with torch.enable_grad():  # of a function with gradients
            options = {k: value(x) for k, x in kwargs.items()}
            result = call(reader, name, [value(x) for x in args], options)
        for i, (op, operands, number) in enumerate(reader.graph.nodes):
            if op == "constant":
                numbers[i] = number
            elif operands:
                view = numbers[i] = tape.new(op, *[numbers[x] for x in operands])
                if reader.is_truth(i):
                    tape.truths.add(view.slot)
        im = None if result.im is None else numbers[result.im]
        tape.deliver(start, to, Number(numbers[result.re], im))

    return write


RULES |= {name: _function(name) for name in FUNCTIONS if hasattr(torch.ops.aten, name)}
RULES["log_sigmoid_forward"] = _function("logsigmoid")


@functools.lru_cache(maxsize=256)
def _slope(name: str, options: tuple[Any, ...]) -> Program:
    """The gradient of a function of one number: of ``x`` and the gradient ``g`` of its result."""
    reader = Tracer(name, RefusedError)
    with torch.enable_grad():
        y = call(reader, name, (Value(reader, reader.graph.leaf("input", 0)), *options), {})
    return adjoint(finish(reader.graph, ((), ("x",), (), ()), (y.re,), ()))


def _slope_of(name: str, options: Callable[..., tuple[Any, ...]]) -> Callable[..., Tensor]:
    """The gradient of a function whose argument PyTorch saves: ``(gradient, argument, ...)``."""

    def compose(g: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return evaluate(_slope(name, options(*args, **kwargs)), [], [x, g], [], []).outputs[0]

    return compose


@rule("move", "clone", "_to_copy", "copy", "contiguous")
def _move(tape: Tape, to: Number, x: Any, *operands: Any, **options: Any) -> None:
    tape.move(to, tape.number(operands[0] if operands and isinstance(operands[0], Tensor) else x))


@rule("abs")
def _abs(tape: Tape, to: Number, x: Any) -> None:
    a = tape.number(x)
    if a.im is None:
        tape.put("abs", target(to), a.re)
        return
    _hypot(tape, to, a.re, a.im)


@rule("hypot")
def _of_two(tape: Tape, to: Number, x: Any, y: Any) -> None:
    _hypot(tape, to, tape.real(x), tape.real(y))


def _hypot(tape: Tape, to: Number, x: Real, y: Real) -> None:
    """``sqrt(x^2 + y^2)`` of squares of numbers up to 1, which do not overflow."""
    sizes = [tape.new("abs", part) for part in (x, y)]
    larger = tape.new("maximum", *sizes)
    ratio = tape.new("div", tape.new("minimum", *sizes), larger)
    ratio = tape.new("where", tape.new("eq", larger, 0.0), 0.0, ratio)
    root = tape.new("sqrt", tape.new("add", tape.new("square", ratio), 1.0))
    tape.put("mul", target(to), larger, root)


def _vector_norm(
    x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, **options: Any
) -> Tensor:
    if ord not in (1, 2) or options.get("dtype") is not None:
        raise RefusedError(f"of order {ord} it has no instructions")
    sizes = x.abs() if ord == 1 or x.is_complex() else x
    if ord == 1:
        return sizes.sum(dim, keepdim)
    return sizes.square().sum(dim, keepdim).sqrt()


def _sgn(x: Tensor) -> Tensor:
    if not x.is_complex():
        return torch.sign(x)
    size = x.abs()
    return torch.where(size == 0, 0.0, x / size)


def _glu(x: Tensor, dim: int = -1) -> Tensor:
    a, b = x.chunk(2, dim)
    return a * torch.sigmoid(b)


def _elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    below = torch.expm1(x * float(input_scale)) * float(alpha)
    return torch.where(x > 0, x, below) * float(scale)


COMPOSED |= {
    "elu": _elu,
    "glu": _glu,
    "linalg_vector_norm": _vector_norm,
    "sgn": _sgn,
    "floor_divide": functools.partial(torch.div, rounding_mode="floor"),
    "sigmoid_backward": lambda g, y: g * (y * (1 - y)),
    "tanh_backward": lambda g, y: g * (1 - y.square()),
}


@rule("clamp", "clamp_min")
def _clamp(tape: Tape, to: Number, x: Any, min: Any = None, max: Any = None) -> None:
    clamped = tape.real(x)
    for op, bound in (("maximum", min), ("minimum", max)):
        if bound is not None:
            clamped = tape.new(op, clamped, tape.real(bound))
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
    tape.put("move", output, tape.real(x))


@rule("index")
def _index(tape: Tape, to: Number, x: Tensor, indices: Sequence[Tensor | None]) -> None:
    axes = [axis for axis, at in enumerate(indices) if at is not None]
    at = indices[axes[0]]
    if len(axes) != 1 or at is None or at.dtype is not torch.int64:
        raise RefusedError("by several tensors, or by truth values")
    (axis,), source, place = axes, tape.view(tape.real(x)), tape.real(at)
    rank = at.ndim

    def spread(sizes: Sequence[int], filler: int) -> tuple[int, ...]:
        return (*sizes[:axis], *[filler] * rank, *sizes[axis + 1 :])

    shape, strides = spread(source.shape, 1), spread(source.strides, 0)
    for _ in source.shape[axis + 1 :]:
        place = tape.view(place).wider()
    _take(tape, to, source._replace(shape=shape, strides=strides), place, x, axis)


@rule("gather")
def _gather(tape: Tape, to: Number, x: Tensor, dim: int, index: Tensor, **_: Any) -> None:
    axis, source = dim % x.ndim, tape.view(tape.real(x))
    strides = (*source.strides[:axis], 0, *source.strides[axis + 1 :])
    source = source._replace(shape=tuple(index.shape), strides=strides)
    _take(tape, to, source, tape.real(index), x, axis)


def _take(tape: Tape, to: Number, source: View, place: Real, x: Tensor, axis: int) -> None:
    """Take from ``source``, which is x but for its axis, along which ``place`` goes."""
    stride = tape.view(tape.real(x)).strides[axis]
    tape.put("take", target(to), source, place, float(x.shape[axis]), value=stride)


@rule("fill")
def _fill(tape: Tape, to: Number, x: Tensor, value: Any) -> None:
    tape.move(to, tape.number(value))


def _numbers(*options: Any) -> tuple[Any, ...]:
    return tuple([z for z in options if not isinstance(z, Tensor)])  # a tensor is a buffer


def _elu_slope(
    g: Tensor, alpha: float, scale: float, of_input: float, is_result: bool, x: Tensor
) -> Tensor:
    if (scale, of_input) != (1, 1) or is_result:
        raise RefusedError("with scales, or of a result")
    return _slope_of("elu", _numbers)(g, x, float(alpha))


COMPOSED |= {
    f"{name}_backward": _slope_of(name, _numbers)
    for name in ("softplus", "silu", "mish", "hardtanh", "log_sigmoid")
}
COMPOSED |= {
    "threshold_backward": _slope_of("threshold", lambda threshold: (threshold, 0.0)),
    "gelu_backward": _slope_of("gelu", lambda *, approximate="none": (approximate,)),
    "elu_backward": _elu_slope,
}


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
