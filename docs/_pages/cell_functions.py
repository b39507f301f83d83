"""The table of what a step of a cell may call: values and gradients at the edges, as computed."""

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.cells import Cell
from linrnn.engine.functions import FUNCTIONS, written
from linrnn.ops import cell_scan

EDGES = (-math.inf, -1.0, 0.0, 1.0, math.inf, math.nan)
SPACE = {"torch": torch, "F": F, "math": math}
#: How a function is called that takes more than one number, by one of its names.
CALLS = {
    "add": ("x + 1",),
    "sub": ("x - 1",),
    "rsub": ("1 - x",),
    "mul": ("2 * x",),
    "div": ("1 / x", "x / 0", "torch.div(x, 0.4, rounding_mode='floor')"),
    "neg": ("-x",),
    "pow": ("x ** 0", "x ** 0.5", "x ** -1", "x ** 1.5", "0.0 ** x", "torch.pow(x * 0, x)"),
    "fmod": ("torch.fmod(x, 0.4)", "torch.fmod(x, 0.0)"),
    "remainder": ("x % 0.4", "x % 0.0", "x % math.inf"),
    "atan2": ("torch.atan2(x, 0 * x)", "torch.atan2(x, x)", "torch.atan2(x * 0, x)"),
    "logaddexp": ("torch.logaddexp(x, x)", "torch.logaddexp(x, -x)"),
    "maximum": ("torch.maximum(x, x * 0)",),
    "minimum": ("torch.minimum(x, x * 0)",),
    "lerp": ("torch.lerp(x, 2 * x, 0.5)",),
    "addcmul": ("torch.addcmul(x, x, x)",),
    "addcdiv": ("torch.addcdiv(x, x, x)",),
    "where": ("torch.where(x > 0, x, 2 * x)",),
    "masked_fill": ("x.masked_fill(x > 0, 2.0)",),
    "clamp": ("x.clamp(-1, 1)",),
    "clamp_min": ("x.clamp_min(0)",),
    "clamp_max": ("x.clamp_max(0)",),
    "threshold": ("F.threshold(x, 0.5, 2.0)",),
    "full_like": ("torch.full_like(x, 0.5)",),
    "complex": ("torch.complex(x, x).real",),
    "polar": ("torch.polar(x, x).real",),
    "conj": ("torch.conj(torch.complex(x, x)).imag",),
    "type_as": ("x.type_as(x)",),
    "round": ("torch.round(x)", "torch.round(x / 2)", "torch.round(1.5 * x)"),
    **{n: (f"x {s} 0",) for n, s in zip(
        ("lt", "le", "eq", "ne", "gt", "ge"), ("<", "<=", "==", "!=", ">", ">="), strict=True
    )},
    "logical_and": ("torch.logical_and(x, x > 0)",),
    "logical_or": ("torch.logical_or(x, x > 0)",),
    "logical_xor": ("torch.logical_xor(x, x > 0)",),
    "bitwise_and": ("(x > 0) & (x < 1)",),
    "bitwise_or": ("(x > 0) | (x < 0)",),
    "bitwise_xor": ("(x > 0) ^ (x < 1)",),
    "bitwise_not": ("~(x > 0)",),
}  # fmt: skip
#: Those that let channels see one another.
MIXING = {
    "linear": "`F.linear(h, W)`, `W h`",
    "matmul": "`h @ W`, `W^T h`",
    "block_linear": "`block_linear(h, W)`, the same for each head",
    "spread": "`spread(h, n)`, all channels n times; `each=True`, each of them n times",
    "fold": "`fold(h, n)`, the sum of n parts, the transpose of `spread`",
    "roll": "`torch.roll(h, n, -1)`, channels n places further on",
}


def names() -> Iterator[tuple[list[str], list[str]]]:
    """For each function its names, as one writes them, and calls of it with x."""
    called: dict[int, list[str]] = {}
    for name, function in FUNCTIONS.items():
        if written(name):
            called.setdefault(id(function), []).append(name)
    for of_one in sorted(called.values(), key=min):
        paths = [_short(written(n) or "") for n in of_one]
        calls = next((CALLS[n] for n in of_one if n in CALLS), None)
        yield paths, list(calls or (f"{paths[0]}(x)",))


def mixing() -> set[str]:
    """Functions that have no numbers in the table."""
    return {_short(written(n) or "") for n in MIXING}


def edges(call: str, *, by_cell: bool = True) -> tuple[Tensor, Tensor]:
    """Values and slopes of a call at `EDGES`, in double precision.

    Args:
        call: of x.
        by_cell: as a step of a cell computes it; else as PyTorch does.
    """
    function: Callable[[Tensor], Tensor] = eval(f"lambda x: {call}", dict(SPACE))  # noqa: S307  ours
    x = torch.tensor(EDGES, dtype=torch.float64).view(1, 1, -1).requires_grad_()
    if by_cell:
        y, _ = cell_scan(Cell(lambda h, x: (function(x) + 0.0, h), state="h"), x=x)
    else:
        y = function(x) + torch.zeros_like(x)
    slope = torch.zeros_like(x)
    if y.requires_grad:
        (slope,) = torch.autograd.grad(y.sum(), x, materialize_grads=True)
    return y.detach().flatten(), slope.flatten()


def table() -> str:
    """A row for each function and call: its value at an edge, and behind a comma its slope."""
    head = ["function", "at x", *map(_number, EDGES)]
    rows = [head, ["---", "---", *["---:"] * len(EDGES)]]
    for paths, calls in names():
        functions = ", ".join(f"`{path}`" for path in paths)
        if paths[0] in mixing():
            words = next(text for n, text in MIXING.items() if _short(written(n) or "") in paths)
            rows.append([functions, words, *["" for _ in EDGES]])
            continue
        for call in calls:
            pairs = zip(*(z.tolist() for z in edges(call)), strict=True)
            cells = [f"{_number(y)}, {_number(slope)}" for y, slope in pairs]
            rows.append([functions, f"`{call}`".replace("|", r"\|"), *cells])
            functions = ""
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _short(path: str) -> str:
    return path.replace("torch.nn.functional.", "F.").replace("linrnn.cells.", "")


def _number(x: float) -> str:
    if math.isnan(x):
        return "NaN"
    if math.isinf(x):
        return "∞" if x > 0 else "−∞"
    return f"{x + 0.0:.3g}".replace("-", "−")
