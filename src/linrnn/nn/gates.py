"""Gates around a recurrence."""

from math import log
from typing import Any

import torch
from torch import Tensor


def unit_gain(log_a: Any, log_2: Any) -> Any:
    """``sqrt(1 - a^2)``: with it, white input of variance 1 gives a state of variance 1.

    It is the product of the square roots of ``-2 log a``, given by its logarithm, and of the rest,
    which lies between 0 and 1: so the slope stays finite where ``a`` rounds to 1.

    In a cell too.

    Args:
        log_a: at most 0.
        log_2: ``log(-2 log_a)``.

    Example:
        >>> unit_gain(torch.tensor(0.6).log(), (-2 * torch.tensor(0.6).log()).log())
        tensor(0.8000)
    """
    y = 2 * log_a
    small = y > -1e-4
    y = torch.where(small, -1.0, y)
    rest = torch.where(small, 1 + log_a, torch.expm1(y) / y)
    return torch.exp(0.5 * log_2) * rest.sqrt()


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
