"""Replaces values that are missing."""

from typing import Literal

import torch
from torch import Tensor

from linrnn.nn.gaps import filled

Missing = Literal["error", "ffill", "mask"]


def forward_filled(x: Tensor) -> Tensor:
    """(batch, time, channels): what is NaN becomes the last value before it, if there is one."""
    return filled(x, x.new_full((len(x), x.shape[2]), torch.nan))


def masked(x: Tensor, how: Missing) -> Tensor:
    """Scaled values as a model reads them: NaN becomes 0, the mean of training.

    With "mask" as many channels follow, 1 where a value was missing and else 0.

    Args:
        x: (batch, time, channels).
        how: how a missing value is filled; with "error" all is left as it is.
    """
    if how == "error":
        return x
    missing = x.isnan()
    values = x.masked_fill(missing, 0)
    return values if how == "ffill" else torch.cat([values, missing.to(x.dtype)], -1)
