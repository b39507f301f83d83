"""Times between steps that carry a layer's numbers too far to be numbers, and their gradients."""

from collections.abc import Sequence

import torch
from torch import Tensor

from linrnn.compute.layout import accumulator_dtype
from linrnn.compute.modes import may_look
from linrnn.errors import ArgumentError
from linrnn.state import leaves
from linrnn.typing import State

LONGEST_TIME = 1e18
"""Between two steps, in any unit: a day is 8.6e13 nanoseconds. Float32 holds its square."""


def check_reach(where: str, dt: Tensor, x: Tensor, start: State, y: Tensor, state: State) -> None:
    """Raise where the times of a call made finite numbers too large to go on with.

    A rule with explicit steps multiplies a state at every step that is too long for it. Where a
    gradient is wanted, numbers beyond the fourth root of the largest one, 4e9 in float32 and 1e77
    in float64, have none that float32 holds. The numbers are looked at where they can be seen
    without waiting for a device.

    Args:
        where: the layer and call, for the message.
        dt: the times.
        x, start: what was read, and the state before.
        y, state: what came of it.

    Raises:
        ArgumentError: outputs or states are too large, or not finite, and inputs are neither.
    """
    results = [y, *_numbers(state)]
    if not all(may_look(h) for h in (x, *results)):
        return
    root = 4 if any(h.requires_grad for h in results) else 1
    beyond = _beyond(results, root)
    if not bool(beyond.any()):
        return
    beyond &= ~_beyond([x, *_numbers(start)], root)
    if bool(beyond.any()):
        row = int(beyond.nonzero()[0])
        raise ArgumentError(
            f"{where}: dt must leave outputs and states finite, got times up to "
            f"{dt.detach()[row].max().item():.6g} in row {row}, which make them too large. Divide "
            "the times by their median, or set step_size where the layer has one."
        )


def _numbers(state: State) -> list[Tensor]:
    return [h for h in leaves(state) if h.is_floating_point() or h.is_complex()]


def _beyond(numbers: Sequence[Tensor], root: int) -> Tensor:
    """Rows with a number that is none, or beyond that root of the largest: (batch,)."""
    small = [(h.detach().abs() < _limit(h.dtype) ** (1 / root))[..., None] for h in numbers]
    return ~torch.stack([x.flatten(1).all(1) for x in small]).all(0)


def _limit(dtype: torch.dtype) -> float:
    accumulator = accumulator_dtype(dtype.to_real())
    return float(torch.finfo(accumulator).max)
