"""Metrics that are a quotient of counts over all examples."""

import torch
from torch import Tensor


def fraction_contributions(right: Tensor, counted: Tensor) -> Tensor:
    """Numbers whose mean is ``r = sum(right) / sum(counted)``.

    An example contributes ``r + n (right_i - r counted_i) / sum(counted)``, r plus its influence
    on r, so that their spread is the standard error of a quotient (Cochran 1977, "Sampling
    Techniques", chapter 6).

    Args:
        right: (examples,), counts that are part of ``counted``.
        counted: (examples,).

    Returns:
        (examples,), float64; NaN if nothing is counted.
    """
    right, counted = right.double(), counted.double()
    total = counted.sum()
    fraction = right.sum() / total if total > 0 else torch.full_like(total, torch.nan)
    return fraction + len(right) * (right - fraction * counted) / total
