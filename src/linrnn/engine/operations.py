"""The operations of a graph, a row each: what it is in PyTorch, its derivative, its Triton.

The table in `linrnn.engine.graph` says in words what an operation is and gives at its edges. Its
C++ is a row of ``LINRNN_MACHINE_OPS`` (``src/native/machine_args.h``). A new operation is a line in
each of the three, and `tests/unit/cells/test_cell_rows.py` walks all rows.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils._python_dispatch import _disable_current_modes

#: From ``(graph, cotangent, result, *arguments)`` of an operation to cotangents of its arguments.
#: The graph is a `linrnn.engine.graph.Graph`. Conventions at ties, kinks and NaN are PyTorch's.
Cotangents: TypeAlias = Callable[..., Sequence[int | None]]

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
            return float(
                self(*[torch.tensor(x, dtype=torch.float64, device="cpu") for x in numbers])
            )


def block_linear(x: Any, weight: Any) -> Any:
    """A product for each head: ``weight`` (heads, M, N) times ``x`` (..., heads * N).

    As `torch.nn.functional.linear` with a matrix of blocks: the heads lie one after the other in
    the last axis of ``x`` and of the result (..., heads * M).

    Example:
        >>> import torch
        >>> block_linear(torch.tensor([1.0, 2, 3, 4]), torch.ones(2, 1, 2))
        tensor([3., 7.])
    """
    if has_torch_function((x, weight)):
        return handle_torch_function(block_linear, (x, weight), x, weight)
    heads, _, n = weight.shape
    return torch.einsum("hmn,...hn->...hm", weight, x.unflatten(-1, (heads, n))).flatten(-2)


def _none(g: Any, dy: int, y: int, *args: int) -> list[None]:
    return [None] * len(args)


def _of_extreme(g: Any, dy: int, a: int, b: int, lower: bool) -> list[int]:
    """A tie is split evenly; NaN passes to both."""
    shared = g("where", g("eq", a, b), g("mul", dy, 0.5), dy)
    loses = (g("lt", b, a), g("lt", a, b)) if lower else (g("lt", a, b), g("lt", b, a))
    return [g("where", lost, 0.0, shared) for lost in loses]


def _of_softplus(g: Any, dy: int, y: int, x: int) -> list[int]:
    return [g("mul", dy, g("where", g("lt", 20.0, x), 1.0, g("sigmoid", x)))]


def _bell(g: Any, x: int, factor: float, width: float) -> Any:
    """``factor * exp(-width * x * x)``."""
    return g("mul", g("exp", g("mul", g("square", x), -width)), factor)


def _of_gelu(g: Any, dy: int, y: int, x: int) -> list[int]:
    share = g("mul", g("add", g("erf", g("mul", x, math.sqrt(0.5))), 1.0), 0.5)
    slope = g("add", share, g("mul", x, _bell(g, x, 1 / math.sqrt(2 * math.pi), 0.5)))
    return [g("mul", dy, slope)]


def _of_div(g: Any, dy: int, y: int, a: int, b: int) -> list[int]:
    part = g("div", dy, b)
    return [part, g("neg", g("mul", part, y))]


def _of_fmod(g: Any, dy: int, y: int, a: int, b: int) -> list[int]:
    ratio = g("div", a, b)  # without what is behind its point:
    quotient = g(
        "where", g("lt", ratio, 0.0), g("neg", g("floor", g("neg", ratio))), g("floor", ratio)
    )
    return [dy, g("neg", g("mul", dy, quotient))]


def _of_atan2(g: Any, dy: int, y: int, a: int, b: int) -> list[int]:
    """At the origin there is none: 0."""
    size = g("add", g("square", a), g("square", b))
    share = g("where", g("eq", size, 0.0), 0.0, g("mul", dy, g("reciprocal", size)))
    return [g("mul", share, b), g("neg", g("mul", share, a))]


def _of_pow(g: Any, dy: int, y: int, a: int, b: int) -> list[int]:
    """Cotangents of a power; that of the exponent is 0 for base 0 and an exponent of at least 0."""
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
    return Elementwise(
        lambda a, b: function(a, b).to(a.dtype), _none, text, symmetric=symmetric, jumps=True
    )


#: All of them, by name.
ELEMENTWISE: dict[str, Elementwise] = {
    "add": Elementwise(torch.add, lambda g, dy, y, a, b: [dy, dy], "{} + {}", symmetric=True),
    "sub": Elementwise(torch.sub, lambda g, dy, y, a, b: [dy, g("neg", dy)], "{} - {}"),
    "mul": Elementwise(
        torch.mul,
        lambda g, dy, y, a, b: [g("mul", dy, b), g("mul", dy, a)],
        "{} * {}",
        symmetric=True,
    ),
    "div": Elementwise(torch.div, _of_div, "{} / {}"),
    # Triton writes a minus as 0 - x, which takes the sign of 0
    "neg": Elementwise(torch.neg, lambda g, dy, y, x: [g("neg", dy)], "{} * -1.0"),
    "abs": Elementwise(
        torch.abs,
        lambda g, dy, y, x: [g("mul", dy, g("sub", g("lt", 0.0, x), g("lt", x, 0.0)))],
        "tl.abs({})",
    ),
    "reciprocal": Elementwise(
        torch.reciprocal,
        lambda g, dy, y, x: [g("neg", g("mul", dy, g("square", y)))],
        "1.0 / {}",
    ),
    "square": Elementwise(
        torch.square, lambda g, dy, y, x: [g("mul", dy, g("mul", x, 2.0))], "{0} * {0}"
    ),
    "sqrt": _row(torch.sqrt, lambda g, dy, y, x: [g("div", dy, g("mul", y, 2.0))], "sqrt"),
    "maximum": Elementwise(
        torch.maximum,
        lambda g, dy, y, a, b: _of_extreme(g, dy, a, b, lower=False),
        "maximum({}, {})",
        symmetric=True,
    ),
    "minimum": Elementwise(
        torch.minimum,
        lambda g, dy, y, a, b: _of_extreme(g, dy, a, b, lower=True),
        "minimum({}, {})",
        symmetric=True,
    ),
    "lt": _truth(torch.lt, "<"),
    "le": _truth(torch.le, "<="),
    "eq": _truth(torch.eq, "==", symmetric=True),
    "ne": _truth(torch.ne, "!=", symmetric=True),
    "where": Elementwise(
        lambda c, a, b: torch.where(c != 0, a, b),
        lambda g, dy, y, c, a, b: [None, g("where", c, dy, 0.0), g("where", c, 0.0, dy)],
        "tl.where({} != 0, {}, {})",
    ),
    "exp": _row(torch.exp, lambda g, dy, y, x: [g("mul", dy, y)], "exp"),
    "expm1": _row(torch.expm1, lambda g, dy, y, x: [g("mul", dy, g("add", y, 1.0))], "expm1"),
    "log": _row(torch.log, lambda g, dy, y, x: [g("div", dy, x)], "tl.log"),
    "log1p": _row(torch.log1p, lambda g, dy, y, x: [g("div", dy, g("add", x, 1.0))], "log1p"),
    "sigmoid": _row(
        torch.sigmoid,
        lambda g, dy, y, x: [g("mul", dy, g("mul", y, g("sub", 1.0, y)))],
        "sigmoid",
    ),
    "tanh": _row(
        torch.tanh, lambda g, dy, y, x: [g("mul", dy, g("sub", 1.0, g("square", y)))], "tanh"
    ),
    "softplus": _row(F.softplus, _of_softplus, "softplus"),
    "logsigmoid": _row(
        F.logsigmoid, lambda g, dy, y, x: [g("mul", dy, g("sigmoid", g("neg", x)))], "logsigmoid"
    ),
    "relu": Elementwise(
        torch.relu, lambda g, dy, y, x: [g("where", g("le", x, 0.0), 0.0, dy)], "relu({})"
    ),
    "sin": _row(torch.sin, lambda g, dy, y, x: [g("mul", dy, g("cos", x))], "tl.sin"),
    "cos": _row(torch.cos, lambda g, dy, y, x: [g("mul", dy, g("neg", g("sin", x)))], "tl.cos"),
    "erf": _row(
        torch.erf,
        lambda g, dy, y, x: [g("mul", dy, _bell(g, x, 2 / math.sqrt(math.pi), 1.0))],
        "tl.erf",
    ),
    "gelu": _row(F.gelu, _of_gelu, "gelu"),
    "sinh": _row(torch.sinh, lambda g, dy, y, x: [g("mul", dy, g("cosh", x))], "sinh"),
    "cosh": _row(torch.cosh, lambda g, dy, y, x: [g("mul", dy, g("sinh", x))], "cosh"),
    "floor": Elementwise(torch.floor, _none, "tl.floor({})", jumps=True),
    "round": Elementwise(torch.round, _none, "rounded({})", _FUNCTION, jumps=True),
    "fmod": Elementwise(torch.fmod, _of_fmod, None, jumps=True),
    "atan2": Elementwise(torch.atan2, _of_atan2, None),
    "pow": Elementwise(torch.pow, _of_pow, None),
}
#: Products of a matrix and a vector, in either direction.
CONTRACTIONS: dict[str, Callable[[Tensor, Tensor, bool], Tensor]] = {
    "linear": lambda w, x, transposed: x @ (w if transposed else w.mT),
    "block_linear": lambda w, x, transposed: block_linear(x, w.mT if transposed else w),
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
