"""Metrics of a ranking: how far positive examples stand above negative ones."""

import math

import torch
from torch import Tensor


def auroc_contributions(margins: Tensor, positive: Tensor) -> Tensor:
    """Numbers whose mean is the area under the ROC curve.

    The area is the probability that a positive example has a larger margin than a negative one,
    where equal margins count one half. For n examples, of which n_1 are positive, a positive
    example contributes ``A + (n / n_1) (V - A)``: V is the share of negatives below it, with half
    of those equal to it. A negative one contributes the same with the share of positives above it.
    So the standard error of the mean is that of DeLong et al., up to factors (n - 1) / n.

    Args:
        margins: (examples,), larger for examples that look more positive.
        positive: (examples,), 1 or True for positive examples, else 0 or False.

    Returns:
        (examples,), float64; NaN if all examples are of one class.

    Reference:
        DeLong, DeLong and Clarke-Pearson 1988, "Comparing the areas under two or more correlated
        receiver operating characteristic curves", Biometrics 44(3).
    """
    margins, positive = margins.double(), positive.bool()
    above, below = margins[positive], margins[~positive]
    if not len(above) or not len(below):
        return torch.full_like(margins, math.nan)
    shares = torch.empty_like(margins)
    shares[positive] = _share_below(above, below)
    shares[~positive] = 1 - _share_below(below, above)
    area = shares[positive].mean()
    class_sizes = torch.where(positive, len(above), len(below)).double()
    return area + len(margins) / class_sizes * (shares - area)


def _share_below(values: Tensor, others: Tensor) -> Tensor:
    """Share of ``others`` below each of ``values`` (n,), with half of those equal to it."""
    ordered = others.sort().values
    strictly, at_most = (torch.searchsorted(ordered, values, right=r) for r in (False, True))
    return (strictly + at_most).double() / (2 * len(others))


def average_precision(margins: Tensor, positive: Tensor) -> float:
    """Area under the precision-recall curve: precision, weighted by the gain in recall.

    ``sum_k (R_k - R_{k-1}) P_k`` over the distinct margins as thresholds, from the largest down.

    Args:
        margins: (examples,), larger for examples that look more positive.
        positive: (examples,), 1 or True for positive examples, else 0 or False.

    Returns:
        A number in (0, 1]; NaN without a positive example.
    """
    order = margins.double().argsort(descending=True)
    ordered, hits = margins.double()[order], positive.double()[order].cumsum(0)
    if not len(hits) or not hits[-1]:
        return math.nan
    last = torch.ones(len(ordered), dtype=torch.bool)
    last[:-1] = ordered[1:] != ordered[:-1]  # the last example of each threshold
    counts = torch.arange(1, len(ordered) + 1, dtype=torch.float64)[last]
    hits = hits[last]
    gain = torch.diff(hits, prepend=hits.new_zeros(1)) / hits[-1]
    return float((gain * hits / counts).sum())
