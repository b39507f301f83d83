"""Gates around a recurrence."""

from math import log
from typing import Any

import torch
from torch import Tensor

_NOTHING = 1e-36  # below it 1 - a^2 counts as this: the slope of its root at 0 would be infinite


def unit_gain(less: Any) -> Any:
    """``sqrt(1 - a^2)``: with it, white input of variance 1 gives a state of variance 1.

    In a cell too.

    Args:
        less: ``a - 1`` for a in [0, 1], as ``expm1(log a)`` gives it: nothing is lost where ``a``
            rounds to 1.

    Example:
        >>> unit_gain(torch.tensor(0.6).log().expm1())
        tensor(0.8000)
    """
    squared_gain = -less * (less + 2)
    return torch.where(squared_gain > _NOTHING, squared_gain, _NOTHING).sqrt()


def held_gain(z: Tensor) -> Tensor:
    """``(1 - exp(-z)) / z``, which is 1 at 0: the effect of a constant push on a value that decays.

    Args:
        z: at least 0.

    Example:
        >>> held_gain(torch.tensor([0.0, 1.0]))
        tensor([1.0000, 0.6321])
    """
    small = z < 0.1
    y = torch.where(small, 1.0, z)
    # a quotient of two small numbers has a slope without digits
    near = torch.where(small, z, 0.0)
    series = torch.ones_like(z)
    for n in range(10, 1, -1):
        series = 1 - near / n * series
    return torch.where(small, series, -torch.expm1(-y) / y)


def softplus_steps(size: int, low: float, high: float, floor: float = 1e-4) -> Tensor:
    """Random biases whose softplus is log-uniform on [low, high], and at least ``floor``.

    Example:
        >>> bool(torch.nn.functional.softplus(softplus_steps(9, 0.1, 0.1)).allclose(
        ...     torch.tensor(0.1, dtype=torch.float64)))
        True
    """
    dt = torch.empty(size, dtype=torch.float64).uniform_(log(low), log(high)).exp()
    dt = dt.clamp(min=floor)
    return dt + torch.log(-torch.expm1(-dt))  # inverse of softplus
