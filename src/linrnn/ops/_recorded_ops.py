"""What each operator of PyTorch is as instructions of a recorded step."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from linrnn.ops._recorded_tape import Number, Real, RefusedError, Tape, View

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
    """Where real numbers are written to."""
    found = real(x)
    assert isinstance(found, View)
    return found


def _simple(op: str, swapped: bool = False) -> Rule:
    def write(tape: Tape, to: Number, *args: Any, **options: Any) -> None:
        if any(value not in (None, False) for value in options.values()):
            raise RefusedError("with options")
        read = [real(tape.number(x)) for x in args]
        tape.put(op, target(to), *(read[::-1] if swapped else read))

    return write


for _op in ("reciprocal", "sqrt", "expm1", "log", "log1p", "sigmoid", "tanh"):
    RULES[_op] = _simple(_op)
for _op in ("relu", "erf", "sin", "cos", "maximum", "minimum", "lt", "le", "remainder"):
    RULES[_op] = _simple(_op)
RULES |= {"gt": _simple("lt", True), "ge": _simple("le", True), "square": _simple("square")}


@rule("floor_divide")
def _floor_divide(tape: Tape, to: Number, x: Tensor, y: Any) -> None:
    if x.is_floating_point():
        raise RefusedError("of numbers that are not whole")
    a, b = (real(tape.number(z)) for z in (x, y))
    tape.put("div", target(to), tape.new("sub", a, tape.new("remainder", a, b)), b)


def _of_truth(op: str) -> Rule:
    """Truth values are the numbers 0 and 1; of other numbers these operators are something else."""

    def write(tape: Tape, to: Number, *args: Any) -> None:
        if any(not isinstance(x, Tensor) or x.dtype is not torch.bool for x in args):
            raise RefusedError("of numbers that are no truth values")
        tape.put(op, target(to), *(real(tape.number(x)) for x in args))

    return write


RULES |= {f"{kind}_and": _of_truth("mul") for kind in ("bitwise", "logical")}
RULES |= {f"{kind}_or": _of_truth("maximum") for kind in ("bitwise", "logical")}


@rule("move", "clone", "_to_copy", "copy", "contiguous")
def _move(tape: Tape, to: Number, x: Any, *rest: Any, **options: Any) -> None:
    source = tape.number(rest[0] if rest and isinstance(rest[0], Tensor) else x)
    zero: Real = 0.0
    for place, part in zip(to, (source.re, zero if source.im is None else source.im), strict=True):
        if place is not None:
            assert isinstance(place, View)
            tape.put("move", place, part)


@rule("neg")
def _neg(tape: Tape, to: Number, x: Any) -> None:
    _each("neg", tape, to, tape.number(x))


def _each(op: str, tape: Tape, to: Number, *given: Number) -> None:
    """An operation that is done to each part."""
    for i, place in enumerate(to):
        if place is not None:
            assert isinstance(place, View)
            tape.put(op, place, *(0.0 if x[i] is None else x[i] for x in given))  # type: ignore[arg-type]


@rule("add")
def _add(tape: Tape, to: Number, x: Any, y: Any, alpha: float = 1, op: str = "add") -> None:
    other = tape.number(y)
    if alpha != 1:
        other = _times(tape, other, Number(float(alpha)))
    _each(op, tape, to, tape.number(x), other)


@rule("sub")
def _sub(tape: Tape, to: Number, x: Any, y: Any, alpha: float = 1) -> None:
    _add(tape, to, x, y, alpha, "sub")


@rule("rsub")
def _rsub(tape: Tape, to: Number, x: Any, y: Any, alpha: float = 1) -> None:
    _add(tape, to, y, x, alpha, "sub")


def _times(tape: Tape, x: Number, y: Number) -> Number:
    """A product, in new memory."""
    if x.im is None and y.im is None:
        return Number(_real_product(tape, x.re, y.re))
    if y.im is None:
        x, y = y, x
    assert y.im is not None
    if x.im is None:
        return Number(_real_product(tape, x.re, y.re), _real_product(tape, x.re, y.im))
    cross = tape.new("mul", x.im, y.im)
    re = tape.new("mul_sub", x.re, y.re, cross)
    return Number(re, tape.new("mul_add", x.re, y.im, tape.new("mul", x.im, y.re)))


def _real_product(tape: Tape, x: Real, y: Real) -> Real:
    if not isinstance(x, View) and not isinstance(y, View):
        return x * y
    return tape.new("mul", x, y)


@rule("mul")
def _mul(tape: Tape, to: Number, x: Any, y: Any) -> None:
    a, b = tape.number(x), tape.number(y)
    if to.im is None:
        tape.put("mul", target(to), real(a), real(b))
    else:
        _each("move", tape, to, _times(tape, a, b))


@rule("div")
def _div(tape: Tape, to: Number, x: Any, y: Any, rounding_mode: str | None = None) -> None:
    if rounding_mode is not None:
        raise RefusedError("with rounding")
    a, b = tape.number(x), tape.number(y)
    if b.im is None:
        _each("div", tape, to, a, Number(b.re, None if to.im is None else b.re))
        return
    size = tape.new("mul_add", b.re, b.re, tape.new("square", b.im))
    minus: Real = tape.new("neg", b.im) if isinstance(b.im, View) else -b.im
    top = _times(tape, a, Number(b.re, minus))
    _each("div", tape, to, top, Number(size, size))


@rule("exp")
def _exp(tape: Tape, to: Number, x: Any) -> None:
    a = tape.number(x)
    if a.im is None:
        tape.put("exp", target(to), a.re)
    else:
        _turned(tape, to, tape.new("exp", a.re), a.im)


def _turned(tape: Tape, to: Number, size: Real, angle: Real) -> None:
    parts = [tape.new(op, angle) for op in ("cos", "sin")]
    for place, part in zip(to, parts, strict=True):
        assert isinstance(place, View)
        tape.put("mul", place, size, part)


@rule("polar")
def _polar(tape: Tape, to: Number, size: Any, angle: Any) -> None:
    _turned(tape, to, real(tape.number(size)), real(tape.number(angle)))


@rule("complex")
def _complex(tape: Tape, to: Number, re: Any, im: Any) -> None:
    _each("move", tape, to, Number(real(tape.number(re)), real(tape.number(im))))


@rule("abs")
def _abs(tape: Tape, to: Number, x: Any) -> None:
    a = tape.number(x)
    if a.im is None:
        tape.put("abs", target(to), a.re)
        return
    sizes = [tape.new("abs", part) for part in (a.re, a.im)]
    # of squares of numbers up to 1, which do not overflow
    most = tape.new("maximum", *sizes)
    some = tape.new("div", tape.new("minimum", *sizes), most)
    some = tape.new("where", tape.new("eq", most, 0.0), 0.0, some)
    root = tape.new("sqrt", tape.new("add_v", tape.new("square", some), value=1.0))
    tape.put("mul", target(to), most, root)


@rule("sign")
def _sign(tape: Tape, to: Number, x: Any) -> None:
    a = real(tape.number(x))
    tape.put("sub", target(to), tape.new("lt", 0.0, a), tape.new("lt", a, 0.0))


@rule("where")
def _where(tape: Tape, to: Number, condition: Any, x: Any, y: Any) -> None:
    choice = real(tape.number(condition))
    _each("where", tape, to, Number(choice, choice), tape.number(x), tape.number(y))


@rule("eq", "ne")
def _equal(tape: Tape, to: Number, x: Any, y: Any, op: str = "eq") -> None:
    a, b = tape.number(x), tape.number(y)
    if a.im is None and b.im is None:
        tape.put(op, target(to), a.re, b.re)
        return
    parts = [tape.new(op, a.re, b.re), tape.new(op, a.im or 0.0, b.im or 0.0)]
    tape.put("mul" if op == "eq" else "maximum", target(to), *parts)


RULES["ne"] = lambda tape, to, x, y: _equal(tape, to, x, y, "ne")


@rule("masked_fill")
def _masked_fill(tape: Tape, to: Number, x: Any, mask: Any, value: Any) -> None:
    _where(tape, to, mask, value, x)


@rule("logical_not", "bitwise_not")
def _not(tape: Tape, to: Number, x: Any) -> None:
    if x.dtype is not torch.bool:
        raise RefusedError("of numbers that are no truth values")
    tape.put("eq", target(to), real(tape.number(x)), 0.0)


@rule("softplus")
def _softplus(tape: Tape, to: Number, x: Any, beta: float = 1, threshold: float = 20) -> None:
    if (beta, threshold) != (1, 20):
        raise RefusedError("with beta or threshold")
    tape.put("softplus", target(to), real(tape.number(x)))


@rule("log_sigmoid_forward")
def _logsigmoid(tape: Tape, to: Number, x: Any) -> None:
    tape.put("logsigmoid", target(to), real(tape.number(x)))


@rule("silu")
def _silu(tape: Tape, to: Number, x: Any) -> None:
    given = real(tape.number(x))
    tape.put("mul", target(to), given, tape.new("sigmoid", given))


@rule("elu")
def _elu(tape: Tape, to: Number, x: Any, alpha: float = 1, *scales: float) -> None:
    if any(scale != 1 for scale in scales):
        raise RefusedError("with scales")
    z = real(tape.number(x))
    below = tape.new("mul_v", tape.new("expm1", z), value=float(alpha))
    tape.put("where", target(to), tape.new("lt", 0.0, z), z, below)


@rule("gelu")
def _gelu(tape: Tape, to: Number, x: Any, approximate: str = "none") -> None:
    given = real(tape.number(x))
    if approximate == "none":
        tape.put("gelu", target(to), given)
        return
    cube = tape.new("mul_mul", given, given, given)
    inner = tape.new("add", given, tape.new("mul_v", cube, value=0.044715))
    # half of 1 + tanh(z) is the logistic function of 2 z
    share = tape.new("sigmoid", tape.new("mul_v", inner, value=2 * math.sqrt(2 / math.pi)))
    tape.put("mul", target(to), given, share)


@rule("glu")
def _glu(tape: Tape, to: Number, x: Tensor, dim: int = -1) -> None:
    a, b = (real(tape.number(half)) for half in x.chunk(2, dim))
    tape.put("mul", target(to), a, tape.new("sigmoid", b))


@rule("rsqrt")
def _rsqrt(tape: Tape, to: Number, x: Any) -> None:
    tape.put("reciprocal", target(to), tape.new("sqrt", real(tape.number(x))))


@rule("pow")
def _pow(tape: Tape, to: Number, x: Any, exponent: Any) -> None:
    known = {2: ["square"], 0.5: ["sqrt"], -1: ["reciprocal"], -0.5: ["sqrt", "reciprocal"]}
    known |= {1: ["move"], 3: ["cube"]}
    if isinstance(exponent, Tensor) or exponent not in known:
        raise RefusedError(f"of {exponent if not isinstance(exponent, Tensor) else 'tensors'}")
    given = real(tape.number(x))
    *first, last = known[exponent]
    for op in first:
        given = tape.new(op, given)
    if last == "cube":
        tape.put("mul_mul", target(to), given, given, given)
    else:
        tape.put(last, target(to), given)


@rule("addcmul")
def _addcmul(tape: Tape, to: Number, x: Any, a: Any, b: Any, value: float = 1) -> None:
    if value != 1:
        raise RefusedError("with a factor")
    given = [tape.number(z) for z in (x, a, b)]
    if to.im is None:
        tape.put("mul_add", target(to), real(given[1]), real(given[2]), real(given[0]))
    else:
        _each("add", tape, to, _times(tape, given[1], given[2]), given[0])


@rule("lerp")
def _lerp(tape: Tape, to: Number, x: Any, y: Any, weight: Any) -> None:
    a, b, w = (real(tape.number(z)) for z in (x, y, weight))
    tape.put("lerp", target(to), a, b, w)


@rule("clamp", "clamp_min", "clamp_max")
def _clamp(
    tape: Tape, to: Number, x: Any, min: float | None = None, max: float | None = None
) -> None:
    found = real(tape.number(x))
    for op, bound in (("maximum", min), ("minimum", max)):
        if bound is not None:
            found = tape.new(op, found, real(tape.number(bound)))
    tape.put("move", target(to), found)


@rule("logaddexp")
def _logaddexp(tape: Tape, to: Number, x: Any, y: Any) -> None:
    a, b = (real(tape.number(z)) for z in (x, y))
    apart = tape.new("abs", tape.new("sub", a, b))
    more = tape.new("log1p", tape.new("exp", tape.new("neg", apart)))
    sum_ = tape.new("add", tape.new("maximum", a, b), more)
    both = tape.new("add", a, math.log(2))  # of two infinities the difference is no number
    tape.put("where", target(to), tape.new("eq", a, b), both, sum_)


@rule("cat", "stack")
def _cat(tape: Tape, to: Number, tensors: Sequence[Tensor], dim: int = 0) -> None:
    at = 0
    some = [x for x in tensors if x.shape != (0,)]
    axes = len(target(Number(to.re)).shape)
    for x in some:
        n = x.shape[dim]
        _each("move", tape, _narrowed(to, dim % axes, at, n), tape.number(x))
        at += n


def _narrowed(to: Number, axis: int, at: int, n: int) -> Number:
    def part(x: View) -> View:
        shape = (*x.shape[:axis], n, *x.shape[axis + 1 :])
        return x._replace(offset=x.offset + at * x.strides[axis], shape=shape)

    re, im = to
    assert isinstance(re, View)
    return Number(part(re), part(im) if isinstance(im, View) else None)


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

    def apart(part: Real | None) -> Real | None:
        """Each axis as two: which copy, and where in it."""
        if not isinstance(part, View):
            return part
        shape = [n for pair in zip(repeats, sizes, strict=True) for n in pair]
        steps = [k for n, step in zip(sizes, part.strides, strict=True) for k in (n * step, step)]
        return part._replace(shape=tuple(shape), strides=tuple(steps))

    for axis in range(len(sizes)):
        x = x.unsqueeze(2 * axis)
    re, im = map(apart, to)
    assert re is not None
    _each("move", tape, Number(re, im), tape.number(x))


@rule("constant_pad_nd")
def _padded(tape: Tape, to: Number, x: Tensor, pad: Sequence[int], value: float = 0) -> None:
    if min(pad) < 0:
        raise RefusedError("by less than nothing")
    here = target(to)
    tape.put("move", here, float(value))
    inner = Number(here)
    for i, before in enumerate(pad[::2]):
        axis = x.ndim - 1 - i
        inner = _narrowed(inner, axis, before, x.shape[axis])
    tape.put("move", target(inner), real(tape.number(x)))


@rule("index")
def _index(tape: Tape, to: Number, x: Tensor, indices: Sequence[Tensor | None]) -> None:
    axes = [axis for axis, at in enumerate(indices) if at is not None]
    at = indices[axes[0]]
    if len(axes) != 1 or at is None or at.dtype is not torch.int64:
        raise RefusedError("by several tensors, or by truth values")
    (axis,), given, place = axes, tape.view(real(tape.number(x))), real(tape.number(at))
    rank = at.ndim

    def spread(sizes: Sequence[int], here: int) -> tuple[int, ...]:
        return (*sizes[:axis], *[here] * rank, *sizes[axis + 1 :])

    shape, strides = spread(given.shape, 1), spread(given.strides, 0)
    for _ in given.shape[axis + 1 :]:
        place = tape.view(place).wider()
    _take(tape, to, given._replace(shape=shape, strides=strides), place, x, axis)


@rule("gather")
def _gather(tape: Tape, to: Number, x: Tensor, dim: int, index: Tensor, **_: Any) -> None:
    axis, given = dim % x.ndim, tape.view(real(tape.number(x)))
    strides = (*given.strides[:axis], 0, *given.strides[axis + 1 :])
    given = given._replace(shape=tuple(index.shape), strides=strides)
    _take(tape, to, given, real(tape.number(index)), x, axis)


def _take(tape: Tape, to: Number, given: View, place: Real, x: Tensor, axis: int) -> None:
    """``given`` is x but for its axis, which ``place`` goes along."""
    apart = tape.view(real(tape.number(x))).strides[axis]
    tape.put("take", target(to), given, place, float(x.shape[axis]), value=apart)


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
    tensors = [x for x in torch.utils._pytree.tree_leaves(args) if isinstance(x, Tensor)]
    slots = [tape.slot(x) for x in tensors]
    return bool(slots) and all(slot is not None and slot.kind == "constant" for slot in slots)
