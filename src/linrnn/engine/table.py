"""The table of PyTorch's functions that a step may use; by the names they have in PyTorch.

Modules beside this one fill it. What the graph has no operation for is written with those it has,
with the same gradients at ties and kinks.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.engine.values import FUNCTIONS as FUNCTIONS
from linrnn.engine.values import Value, Writer

Function = Callable[..., Value]

#: Those of `linrnn.cells` itself.
OURS = ("block_linear", "fold", "spread")


def named(*names: str) -> Callable[[Function], Function]:
    """Enter a function under all names that it has in PyTorch."""

    def register(function: Function) -> Function:
        FUNCTIONS.update(dict.fromkeys(names, function))
        return function

    return register


def simple(op: str) -> Function:
    """The function of one real number that is an operation of the graph."""
    return lambda t, x: t.real(op, x)


def number(t: Writer, what: str, x: object, fix: str) -> float:
    """An argument that must be a Python number."""
    if isinstance(x, bool) or not isinstance(x, (int, float)):
        raise t.refuse(f"{what} that is no Python number", fix)
    return x


def written(name: str) -> str | None:
    """How one writes a function of the table; None of a name that PyTorch keeps to itself."""
    if name in OURS:
        return f"linrnn.cells.{name}"
    places = {"torch": torch, "torch.nn.functional": F, "torch.special": torch.special}
    paths = (f"{path}.{name}" for path, module in places.items() if hasattr(module, name))
    method = hasattr(Tensor, name) and not name.startswith("_")
    return next(paths, f"torch.Tensor.{name}" if method else None)
