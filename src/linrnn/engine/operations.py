"""The operations of a graph, a row each: what it is in PyTorch, its derivative, its Triton.

The table in `linrnn.engine.graph` says in words what an operation is and gives at its edges. Its
C++ is a row of ``LINRNN_MACHINE_OPS`` (``src/native/machine_args.h``). A new operation is a line in
each of the three, and `tests/unit/cells/test_cell_rows.py` walks all rows.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes


@runtime_checkable  # as the shape checker of the test run needs it to be
class Writes(Protocol):
    """The interface by which derivatives add nodes; implemented by `linrnn.engine.graph.Graph`."""

    def __call__(self, op: str, *args: int | float) -> int:
        """The node of an operation on nodes, which are integers, and numbers, which are floats."""
        ...

    def value(self, node: int) -> float | None:
        """The number that a node is, if it is one."""
        ...


#: From ``(graph, arguments, result, cotangent)`` of an operation to cotangents of its arguments.
#: Conventions at ties, kinks and NaN are PyTorch's.
Cotangents: TypeAlias = Callable[[Writes, Sequence[int], int, int], Sequence[int | None]]

TRUTHS = frozenset(("lt", "le", "eq", "ne"))
"""Operations that give truth values, the numbers 0 and 1."""
LOGICAL = frozenset(("where", "mul", "square", "maximum", "minimum"))
"""Operations that give truth values of truth values; ``where`` of its second and third argument."""

_FUNCTION = 12
"""Additions that take about as long as a function in a Triton kernel."""


class Elementwise(NamedTuple):
    """An operation on the numbers of one to three vectors of equal width."""

    meaning: Callable[..., Tensor]
    """In PyTorch."""
    cotangents: Cotangents
    triton: str | None
    """A format for its arguments, which may call what is in ``cell_scan/triton_functions.py``;
    None where Triton has nothing for it."""
    weight: int = 1
    """Additions that take about as long in a Triton kernel."""
    symmetric: bool = False
    """Whether the order of two arguments does not matter."""
    jumps: bool = False
    """Whether its slope says nothing of it: it jumps, or gives truth values."""

    def __call__(self, *args: Tensor) -> Tensor:
        """The operation on tensors."""
        return self.meaning(*args)

    def of_numbers(self, *numbers: float) -> float:
        """The operation on numbers, in double precision."""
        with _disable_current_modes():  # nobody who records a call is to see this
            return float(self(*[torch.tensor(x, dtype=torch.float64) for x in numbers]))


def _compare(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda a, b: function(a, b).to(a.dtype)


def block_product(weight: Tensor, x: Tensor) -> Tensor:
    """``weight`` (heads, M, N) times ``x`` (..., heads * N): (..., heads * M).

    Example:
        >>> block_product(torch.ones(2, 1, 2), torch.tensor([1.0, 2, 3, 4]))
        tensor([3., 7.])
    """
    heads, _, n = weight.shape
    return torch.einsum("hmn,...hn->...hm", weight, x.unflatten(-1, (heads, n))).flatten(-2)


def _no_gradients(g: Writes, args: Sequence[int], y: int, dy: int) -> list[int | None]:
    return [None] * len(args)


def _add_rule(g: Writes, args: Sequence[int], y: int, dy: int) -> list[int | None]:
    return [dy, dy]


def _sub_rule(g: Writes, args: Sequence[int], y: int, dy: int) -> list[int | None]:
    return [dy, g("neg", dy)]


def _mul_rule(g: Writes, args: Sequence[int], y: int, dy: int) -> list[int | None]:
    return [g("mul", dy, args[1]), g("mul", dy, args[0])]


def _div_rule(g: Writes, args: Sequence[int], y: int, dy: int) -> list[int | None]:
    part = g("div", dy, args[1])
    return [part, g("neg", g("mul", part, y))]


def _extreme_rule(lower: bool) -> Cotangents:
    def rule(g: Writes, args: Sequence[int], y: int, dy: int) -> list[int | None]:
        """A tie is split evenly; NaN passes to both."""
        a, b = args
        shared = g("where", g("eq", a, b), g("mul", dy, 0.5), dy)
        loses = (g("lt", b, a), g("lt", a, b)) if lower else (g("lt", a, b), g("lt", b, a))
        return [g("where", lost, 0.0, shared) for lost in loses]

    return rule


def _where_rule(g: Writes, args: Sequence[int], y: int, dy: int) -> list[int | None]:
    return [None, g("where", args[0], dy, 0.0), g("where", args[0], 0.0, dy)]


def _unary(slope: Callable[[Writes, int, int], int]) -> Cotangents:
    """Make the rule of a function with ``slope(graph, argument, result)``."""
    return lambda g, args, y, dy: [g("mul", dy, slope(g, args[0], y))]


def _sign(g: Writes, x: int, y: int) -> int:
    return g("sub", g("lt", 0.0, x), g("lt", x, 0.0))


def _relu_rule(g: Writes, args: Sequence[int], y: int, dy: int) -> list[int | None]:
    return [g("where", g("le", args[0], 0.0), 0.0, dy)]


def _softplus(g: Writes, x: int, y: int) -> int:
    return g("where", g("lt", 20.0, x), 1.0, g("sigmoid", x))


def _bell(g: Writes, x: int, factor: float, width: float) -> int:
    """``factor * exp(-width * x * x)``."""
    inner = g("mul", g("square", x), -width)
    return g("mul", g("exp", inner), factor)


def _gelu(g: Writes, x: int, y: int) -> int:
    scaled = g("mul", x, math.sqrt(0.5))
    share = g("mul", g("add", g("erf", scaled), 1.0), 0.5)
    return g("add", share, g("mul", x, _bell(g, x, 1 / math.sqrt(2 * math.pi), 0.5)))


def _whole_part(g: Writes, x: int) -> int:
    """A number without what is behind its point."""
    return g("where", g("lt", x, 0.0), g("neg", g("floor", g("neg", x))), g("floor", x))


def _fmod_rule(g: Writes, args: Sequence[int], y: int, dy: int) -> list[int | None]:
    a, b = args
    return [dy, g("neg", g("mul", dy, _whole_part(g, g("div", a, b))))]


def _atan2_rule(g: Writes, args: Sequence[int], y: int, dy: int) -> list[int | None]:
    """At the origin there is none: 0."""
    a, b = args
    size = g("add", g("square", a), g("square", b))
    none = g("eq", size, 0.0)
    share = g("where", none, 0.0, g("mul", dy, g("reciprocal", size)))
    return [g("mul", share, b), g("neg", g("mul", share, a))]


def _pow_rule(g: Writes, args: Sequence[int], y: int, dy: int) -> list[int | None]:
    """Cotangents of a power; that of the exponent is 0 for base 0 and an exponent of at least 0."""
    a, b = args
    less = g("sub", b, 1.0)
    root = g.value(less) == 0.5  # of -inf there is none, unlike a power
    slope = g("mul", b, g("sqrt", a) if root else g("pow", a, less))
    still = g("mul", g("eq", a, 0.0), g("le", 0.0, b))
    return [
        g("where", g("eq", b, 0.0), 0.0, g("mul", dy, slope)),
        g("mul", dy, g("where", still, 0.0, g("mul", y, g("log", a)))),
    ]


def _row(meaning: Callable[..., Tensor], cotangents: Cotangents, name: str) -> Elementwise:
    """Describe a function of one argument that a Triton kernel calls by name."""
    return Elementwise(meaning, cotangents, f"{name}({{}})", _FUNCTION)


def _truth(function: Callable[..., Tensor], sign: str, symmetric: bool = False) -> Elementwise:
    """Describe a comparison."""
    text = f"({{}} {sign} {{}}).to(DTYPE)"
    return Elementwise(_compare(function), _no_gradients, text, symmetric=symmetric, jumps=True)


def _extreme(name: str) -> Elementwise:
    rule = _extreme_rule(lower=name == "minimum")
    return Elementwise(getattr(torch, name), rule, f"{name}({{}}, {{}})", symmetric=True)


#: All of them, by name.
ELEMENTWISE: dict[str, Elementwise] = {
    "add": Elementwise(torch.add, _add_rule, "{} + {}", symmetric=True),
    "sub": Elementwise(torch.sub, _sub_rule, "{} - {}"),
    "mul": Elementwise(torch.mul, _mul_rule, "{} * {}", symmetric=True),
    "div": Elementwise(torch.div, _div_rule, "{} / {}"),
    # Triton writes a minus as 0 - x, which takes the sign of 0
    "neg": Elementwise(torch.neg, lambda g, args, y, dy: [g("neg", dy)], "{} * -1.0"),
    "abs": Elementwise(torch.abs, _unary(_sign), "tl.abs({})"),
    "reciprocal": Elementwise(
        torch.reciprocal,
        lambda g, args, y, dy: [g("neg", g("mul", dy, g("square", y)))],
        "1.0 / {}",
    ),
    "square": Elementwise(torch.square, _unary(lambda g, x, y: g("mul", x, 2.0)), "{0} * {0}"),
    "sqrt": _row(torch.sqrt, lambda g, args, y, dy: [g("div", dy, g("mul", y, 2.0))], "sqrt"),
    "maximum": _extreme("maximum"),
    "minimum": _extreme("minimum"),
    "lt": _truth(torch.lt, "<"),
    "le": _truth(torch.le, "<="),
    "eq": _truth(torch.eq, "==", symmetric=True),
    "ne": _truth(torch.ne, "!=", symmetric=True),
    "where": Elementwise(
        lambda c, a, b: torch.where(c != 0, a, b), _where_rule, "tl.where({} != 0, {}, {})"
    ),
    "exp": _row(torch.exp, _unary(lambda g, x, y: y), "exp"),
    "expm1": _row(torch.expm1, _unary(lambda g, x, y: g("add", y, 1.0)), "expm1"),
    "log": _row(torch.log, lambda g, args, y, dy: [g("div", dy, args[0])], "tl.log"),
    "log1p": _row(
        torch.log1p,
        lambda g, args, y, dy: [g("div", dy, g("add", args[0], 1.0))],
        "log1p",
    ),
    "sigmoid": _row(
        torch.sigmoid, _unary(lambda g, x, y: g("mul", y, g("sub", 1.0, y))), "sigmoid"
    ),
    "tanh": _row(torch.tanh, _unary(lambda g, x, y: g("sub", 1.0, g("square", y))), "tanh"),
    "softplus": _row(F.softplus, _unary(_softplus), "softplus"),
    "logsigmoid": _row(
        F.logsigmoid, _unary(lambda g, x, y: g("sigmoid", g("neg", x))), "logsigmoid"
    ),
    "relu": Elementwise(torch.relu, _relu_rule, "relu({})"),
    "sin": _row(torch.sin, _unary(lambda g, x, y: g("cos", x)), "tl.sin"),
    "cos": _row(torch.cos, _unary(lambda g, x, y: g("neg", g("sin", x))), "tl.cos"),
    "erf": _row(
        torch.erf, _unary(lambda g, x, y: _bell(g, x, 2 / math.sqrt(math.pi), 1.0)), "tl.erf"
    ),
    "gelu": _row(F.gelu, _unary(_gelu), "gelu"),
    "sinh": _row(torch.sinh, _unary(lambda g, x, y: g("cosh", x)), "sinh"),
    "cosh": _row(torch.cosh, _unary(lambda g, x, y: g("sinh", x)), "cosh"),
    "floor": Elementwise(torch.floor, _no_gradients, "tl.floor({})", jumps=True),
    "round": Elementwise(torch.round, _no_gradients, "rounded({})", _FUNCTION, jumps=True),
    "fmod": Elementwise(torch.fmod, _fmod_rule, None, jumps=True),
    "atan2": Elementwise(torch.atan2, _atan2_rule, None),
    "pow": Elementwise(torch.pow, _pow_rule, None),
}
#: Products of a matrix and a vector, in either direction.
CONTRACTIONS: dict[str, Callable[[Tensor, Tensor, bool], Tensor]] = {
    "linear": lambda w, x, transposed: x @ (w if transposed else w.mT),
    "block_linear": lambda w, x, transposed: block_product(w.mT if transposed else w, x),
}
#: Repeat channels n times, sum n of them up, or move them n places; ``_each``: neighbours.
SPREADS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "spread": lambda x, n: x.unsqueeze(-2).expand(*x.shape[:-1], n, -1).flatten(-2),
    "spread_each": lambda x, n: x.unsqueeze(-1).expand(*x.shape, n).flatten(-2),
    "fold": lambda x, n: x.unflatten(-1, (n, -1)).sum(-2),
    "fold_each": lambda x, n: x.unflatten(-1, (-1, n)).sum(-1),
    "roll": lambda x, n: x.roll(n, -1),
}
#: The operation that is the transpose of each of `SPREADS`.
TRANSPOSED = {"spread": "fold", "fold": "spread", "spread_each": "fold_each"}
TRANSPOSED |= {"fold_each": "spread_each", "roll": "roll"}
#: Operations that let channels see one another.
MIXING = frozenset((*CONTRACTIONS, *SPREADS))
