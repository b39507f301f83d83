"""Linear recurrences from their end back to their start, for who computes states again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from linrnn._process.ambient import Ambient


@dataclass
class Watch:
    """The mode and the measured cost of the scans run inside `watched`.

    Args:
        backward: scans take the final state as ``initial_state`` and return the initial one.
    """

    backward: bool
    cost: float = 0.0
    """By how much a scan back to the start multiplies rounding errors at most, as a logarithm."""


_WATCH: Ambient[Watch] = Ambient("watch", lambda watch: True)


@contextmanager
def watched(*, backward: bool = False) -> Iterator[Watch]:
    """Inside, scans of this thread run back from their end, or what that would cost is noted.

    From ``h_t = a_t h_{t-1} + b_t`` follows ``h_{t-1} = (h_t - b_t) / a_t``, in which an error
    grows by ``1 / |a_t|``; across a reset nothing follows.
    """
    with _WATCH.set(Watch(backward)) as watch:
        yield watch


def watching() -> Watch | None:
    """The innermost watch around this call, or None."""
    return _WATCH.get()


def note(watch: Watch, a: Tensor, time: int, axes: int, reset: Tensor | None) -> None:
    """Add what a scan of ``time`` steps would cost backward.

    Args:
        watch: where it is noted.
        a: decay, with or without axes of batch and time.
        time: steps.
        axes: of channels.
        reset: boolean (batch, time), or None.
    """
    if reset is not None and bool(reset.any()):
        watch.cost = float("inf")
        return
    fall = (-a.detach().abs().double().log()).clamp(min=0)  # inf of 0
    if a.ndim == axes:
        cost = time * float(fall.max())
    else:
        steps = fall.amax([d for d in range(a.ndim) if d != 1])
        cost = float(steps.sum() * (time if len(steps) == 1 else 1))
    watch.cost = max(watch.cost, cost)


def backward_in_time(
    scan: Callable[..., Any], a: Tensor, b: Tensor, final: Tensor
) -> tuple[Tensor, Tensor]:
    """All states, and the initial one, of a recurrence whose final one is given."""
    previous, initial = scan(1 / a, -b / a, final, reverse=True)  # h_{t-1} instead of h_t
    # (B, T, C), (B, C)
    return torch.cat([previous[:, 1:], final[:, None].to(previous)], 1), initial
