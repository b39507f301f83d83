"""The matrix products and softmaxes of a call alone, less all that is around them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot")
WHOLE = ("softmax", "scaled_dot_product")  # in names of operators, those of gradients included


class Products(TorchDispatchMode):
    """Remembers each product and softmax of the calls inside, gradients too, with its arguments.

    Example:
        >>> with Products() as found:
        ...     torch.ones(2, 3) @ torch.ones(3, 4) + 1
        >>> len(found.calls)
        1
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Keep it if it is one."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name in PRODUCTS or any(part in name for part in WHOLE):
            self.calls.append((func, *tree_map(_kept, (args, kwargs))))
        return result

    def run(self) -> None:
        """All of them, one after the other."""
        for func, args, kwargs in self.calls:
            func(*args, **kwargs)


def _kept(x: Any) -> Any:
    """A copy, so that no memory of the call stays alive."""
    if not isinstance(x, Tensor):
        return x
    with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
        return x.detach().clone()


def products_of(call: Callable[[], object]) -> Products:
    """Those of one call."""
    with Products() as found:
        call()
    return found
