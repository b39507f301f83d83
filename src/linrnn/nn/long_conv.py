"""Long filters whose state is the past: what a state is made of, and filters that are kept.

The convolution itself is `linrnn.ops.conv.online_conv`.
"""

from collections.abc import Callable, Sequence
from math import log
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.compute.modes import eager
from linrnn.ops.conv.online_conv import Kernel, State, levels, read
from linrnn.state_spec import Part, real

GROWS = {
    "constant_memory": "inputs are kept, and what they add later, up to 4 times the filter's length"
}


def long_spec(channels: int, width: int) -> dict[str, Any]:
    """Describe the state of a filter: see `linrnn.ops.conv.online_conv.State`.

    Example:
        >>> len(long_spec(4, 1024)["far"])
        4
    """
    part: Part = real(inputs=None, channels=channels)
    return {"near": part, "far": [part] * levels(width)}


def padded(kernel: Tensor, length: int) -> Tensor:
    """The first ``length`` taps of ``kernel`` (..., taps), zeros behind its last."""
    return F.pad(kernel[..., :length], (0, max(0, length - kernel.shape[-1])))


def window_decays(count: int, like: Tensor) -> Tensor:
    """Return the decay of Hyena's windows over the length of a filter, in nats: (count,).

    They are spread evenly, so that what is left at the end is 1 % of 1 / 1.5 to 1 / 0.3 of it.
    """
    ends = log(100) / 1.5, log(100) / 0.3
    return torch.linspace(*ends, count, dtype=like.dtype, device=like.device)


def reach(state: dict[str, Any], time: int, width: int) -> int:
    """Return how many taps of a filter can matter over the steps read, at most ``width``.

    Twice as many as there are inputs, since what a block adds is computed for its length ahead.
    """
    if torch.compiler.is_compiling():  # a graph must not depend on which of the two is less
        return width
    return min(width, 2 * (State.of(state).n_inputs() + time))


class Kept:
    """Caches a value computed from parameters while they stay the same and need no gradient.

    They are compared number by number: what reads them otherwise may have changed them in any way.

    Example:
        >>> kept, p = Kept(), torch.ones(2)
        >>> with torch.no_grad():
        ...     kept([p], lambda: p + 1) is kept([p], lambda: p + 1)
        True
    """

    def __init__(self) -> None:
        self._entry: tuple[list[Tensor], Any] | None = None

    def __reduce__(self) -> Any:
        return Kept, ()  # a copy of a layer makes its own

    def __call__(self, sources: Sequence[Tensor], make: Callable[[], Any]) -> Any:
        """``make()``, or what an earlier call of it gave."""
        # on the device meta there are no numbers to compare
        if torch.is_grad_enabled() or not eager(*sources) or any(p.is_meta for p in sources):
            return make()
        entry = self._entry
        if entry is None or not _same(entry[0], sources):
            entry = self._entry = [p.detach().clone() for p in sources], make()
        return entry[1]


def _same(stored: Sequence[Tensor], sources: Sequence[Tensor]) -> bool:
    return all(
        k.dtype == p.dtype and k.device == p.device and torch.equal(k, p)
        for k, p in zip(stored, sources, strict=True)
    )


__all__ = ["GROWS", "Kept", "Kernel", "long_spec", "padded", "reach", "read", "window_decays"]
