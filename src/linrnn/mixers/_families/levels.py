"""Parts that log-linear layers share: weights of levels, and their state."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.modes import eager
from linrnn.compute.precision import wide
from linrnn.errors import ArgumentError
from linrnn.nn import empty_parameters
from linrnn.nn.parameters import KeepsPrecision
from linrnn.state_spec import Part, integer, real


class LevelScales(KeepsPrecision):
    """``softplus(L * x)``: a positive weight of every level, in every head.

    Args:
        where: the layer, in messages.
        n_heads, levels: sizes of L.
        factory: device and dtype of L.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()
    single_precision: ClassVar[tuple[str, ...]] = ("L",)

    def __init__(self, where: str, n_heads: int, levels: int, **factory: Any) -> None:
        super().__init__()
        if levels > 62:  # positions are integers of 64 bits
            raise ArgumentError(f"{where}: levels must be at most 62, got {levels}.")
        empty = empty_parameters(factory.get("device"), factory.get("dtype"))
        self.L = empty(n_heads, levels)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Fill with ones."""
        self.L.fill_(1)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, heads, levels) to the same, in at least float32."""
        return F.softplus(wide(self.L) * wide(x))


def levels_spec(n_heads: int, levels: int, **sizes: int) -> dict[str, Part]:
    """Memories of all levels, and how many steps have been read."""
    return {"memory": real(heads=n_heads, levels=levels, **sizes), "position": integer()}


class Unread(dict[str, Any]):
    """A state before the first step: all rows are at position 0, and no device is looked at."""


def unread(start: dict[str, Any], x: Tensor) -> dict[str, Any]:
    """Mark the state that a sequence begins from, where no recording would keep the mark."""
    sequence = x.ndim == 3 and x.shape[1] > 0
    return Unread(start) if sequence and eager(x) and not torch._C._get_tracing_state() else start


def levels_before(state: dict[str, Any]) -> tuple[Tensor | None, Tensor | None]:
    """Memories and positions before a call, as `fenwick_scan` takes them."""
    return (None, None) if isinstance(state, Unread) else (state["memory"], state["position"])
