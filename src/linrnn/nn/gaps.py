"""Series with values that are missing: which steps were observed, differences, centre, spread."""

import torch
from torch import Tensor


def filled(x: Tensor, previous: Tensor) -> Tensor:
    """Each value or, where it is NaN, the last one before it that is not.

    Args:
        x: (batch, time, channels); NaN is a value that is missing.
        previous: (batch, channels), the last value before the first step; NaN if there was none.

    Example:
        >>> nan = float("nan")
        >>> x = torch.tensor([nan, 1.0, nan, 3.0]).reshape(1, 4, 1)
        >>> filled(x, torch.full((1, 1), 0.5)).flatten()
        tensor([0.5000, 1.0000, 1.0000, 3.0000])
    """
    every = torch.cat([previous[:, None], x], 1)
    steps = torch.arange(every.shape[1], device=x.device)[:, None]
    last = torch.where(every.isnan(), 0, steps).cummax(1).values
    return every.gather(1, last)[:, 1:]


def increments(x: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
    """Subtract from each value the last one before it; 0 where either is missing.

    Args:
        x, previous: see `filled`.

    Returns:
        The increments, of the shape of ``x``, and the last values, of that of ``previous``.

    Example:
        >>> nan = float("nan")
        >>> x = torch.tensor([1.0, nan, 3.0]).reshape(1, 3, 1)
        >>> increments(x, torch.full((1, 1), nan))[0].flatten()
        tensor([0., 0., 2.])
    """
    every = torch.cat([previous[:, None], filled(x, previous)], 1)
    return (x - every[:, :-1]).nan_to_num(nan=0.0), every[:, -1]


def unit(x: Tensor) -> Tensor:
    """The power of two at or below the largest number of each channel; 1 where all are 0.

    Numbers divided by it lie within -2 and 2, and nothing was rounded: their squares can be summed
    where those of the numbers themselves would be infinite or 0.

    Args:
        x: (..., channels) of float64; NaN is a value that is missing.

    Example:
        >>> unit(torch.tensor([[5e200, 0.3], [-1.0, float("nan")]], dtype=torch.float64)).log2()
        tensor([666.,  -2.], dtype=torch.float64)
    """
    largest = x.abs().nan_to_num(nan=0.0, posinf=torch.inf).flatten(0, -2).amax(0)
    return torch.where(
        largest > 0, torch.ldexp(torch.ones_like(largest), largest.frexp().exponent - 1), 1.0
    )


def centre_and_spread(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, in float64, of values of any size.

    Args:
        x: (batch, time, channels); NaN is a value that is missing.

    Returns:
        Two of (channels,). Where nothing was observed the mean is 0; the spread of a constant is 1.

    Example:
        >>> centre_and_spread(torch.tensor([1.0, 3.0, float("nan")]).reshape(1, 3, 1) * 2.0**80)[1]
        tensor([1.2089e+24], dtype=torch.float64)
    """
    x = x.double()
    size = unit(x)
    x = x / size
    observed = x.isnan().logical_not()
    count = observed.sum((0, 1)).clamp(min=1)
    mean = torch.where(observed, x, 0.0).sum((0, 1)) / count
    away = torch.where(observed, x - mean, 0.0)
    spread = (away.square().sum((0, 1)) / count).sqrt() * size
    # the mean of a constant is rounded, and the difference to it is no spread
    lowest = torch.where(observed, x, torch.inf).amin((0, 1))
    moves = torch.where(observed, x, -torch.inf).amax((0, 1)) > lowest
    return mean * size, torch.where(moves & (spread > 0), spread, 1.0)
