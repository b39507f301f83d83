"""Series with values that are missing: which steps were observed, and first differences."""

import torch
from torch import Tensor


def filled(x: Tensor, before: Tensor) -> Tensor:
    """Each value or, where it is NaN, the last one before it that is not.

    Args:
        x: (batch, time, channels); NaN is a value that is missing.
        before: (batch, channels), the last value before the first step; NaN if there was none.

    Example:
        >>> nan = float("nan")
        >>> x = torch.tensor([nan, 1.0, nan, 3.0]).reshape(1, 4, 1)
        >>> filled(x, torch.full((1, 1), 0.5)).flatten()
        tensor([0.5000, 1.0000, 1.0000, 3.0000])
    """
    every = torch.cat([before[:, None], x], 1)
    steps = torch.arange(every.shape[1], device=x.device)[:, None]
    last = torch.where(every.isnan(), 0, steps).cummax(1).values
    return every.gather(1, last)[:, 1:]


def increments(x: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """What each value adds to the last one before it; 0 where there is none, or no value.

    Args:
        x, before: see `filled`.

    Returns:
        The increments, of the shape of ``x``, and the last values, of that of ``before``.

    Example:
        >>> nan = float("nan")
        >>> x = torch.tensor([1.0, nan, 3.0]).reshape(1, 3, 1)
        >>> increments(x, torch.full((1, 1), nan))[0].flatten()
        tensor([0., 0., 2.])
    """
    every = torch.cat([before[:, None], filled(x, before)], 1)
    return (x - every[:, :-1]).nan_to_num(nan=0.0), every[:, -1]
