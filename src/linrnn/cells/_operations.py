"""What each operation of a graph is in PyTorch; the table in `_graph.py` says it in words."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


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


#: What each operation of numbers is in PyTorch.
ELEMENTWISE: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "neg": torch.neg,
    "abs": torch.abs,
    "reciprocal": torch.reciprocal,
    "square": torch.square,
    "sqrt": torch.sqrt,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "lt": _compare(torch.lt),
    "le": _compare(torch.le),
    "eq": _compare(torch.eq),
    "ne": _compare(torch.ne),
    "where": lambda c, a, b: torch.where(c != 0, a, b),
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
    "relu": torch.relu,
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "gelu": F.gelu,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "floor": torch.floor,
    "round": torch.round,
    "fmod": torch.fmod,
    "atan2": torch.atan2,
    "pow": torch.pow,
}
#: Operations that jump, or give truth values: their slope says nothing of them.
STEPS = frozenset(("lt", "le", "eq", "ne", "floor", "round", "fmod"))
#: Products of a matrix and a vector, in either direction.
CONTRACTIONS: dict[str, Callable[[Tensor, Tensor, bool], Tensor]] = {
    "linear": lambda w, x, turned: x @ (w if turned else w.mT),
    "block_linear": lambda w, x, turned: block_product(w.mT if turned else w, x),
}
#: What repeats channels n times, sums n of them up, or moves them n places; ``_each``: neighbours.
SPREADS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "spread": lambda x, n: x.unsqueeze(-2).expand(*x.shape[:-1], n, -1).flatten(-2),
    "spread_each": lambda x, n: x.unsqueeze(-1).expand(*x.shape, n).flatten(-2),
    "fold": lambda x, n: x.unflatten(-1, (n, -1)).sum(-2),
    "fold_each": lambda x, n: x.unflatten(-1, (-1, n)).sum(-1),
    "roll": lambda x, n: x.roll(n, -1),
}
#: Of each of `SPREADS` the operation that is its transpose.
TRANSPOSED = {"spread": "fold", "fold": "spread", "spread_each": "fold_each"}
TRANSPOSED |= {"fold_each": "spread_each", "roll": "roll"}
#: Operations that let channels see one another.
MIXING = frozenset((*CONTRACTIONS, *SPREADS))
