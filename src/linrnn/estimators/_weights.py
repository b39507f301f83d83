"""How much each series counts in a fit."""

from typing import Any

import numpy as np

from linrnn.errors import ArgumentError, ShapeError, show
from linrnn.estimators._inputs import as_numbers, worded


def weights_of(
    where: str,
    sample_weight: Any,
    y: np.ndarray,
    of_class: np.ndarray | None,
    *,
    raw: bool = False,
) -> np.ndarray | None:
    """The weight of each series, at least 0; None where all are the same.

    Args:
        where: who reads, for messages.
        sample_weight: of a user: a number for each series, one for all, or None.
        y: the targets.
        of_class: what the class of each series counts, or None.
        raw: whether weights that are all the same are more than None.

    Raises:
        ShapeError: other than a number for each series.
        ArgumentError: numbers that are negative, not finite, or all 0.
    """
    if sample_weight is None:
        weight = of_class
    else:
        weight = _checked(where, sample_weight, len(y)) * (1.0 if of_class is None else of_class)
    if weight is None or (not raw and (weight > 0).all() and np.ptp(weight) == 0):
        return None
    fewest = 1 if raw else 2
    if (weight > 0).sum() < fewest:
        raise ArgumentError(
            f"{where}: sample_weight must be above 0 for at least {fewest} series, got zero for "
            f"all but {int((weight > 0).sum())}."
        )
    return weight


def _checked(where: str, sample_weight: Any, rows: int) -> np.ndarray:
    with worded(f"{where}: sample_weight must hold numbers"):
        weight = np.asarray(as_numbers(where, "sample_weight", sample_weight), dtype=np.float64)
    if weight.ndim == 0:
        weight = np.full(rows, float(weight))
    if weight.shape != (rows,):
        raise ShapeError(
            f"{where}: sample_weight must have one number for each of the {rows} series, got shape "
            f"{weight.shape}."
        )
    if not np.isfinite(weight).all() or (weight < 0).any():
        wrong = weight[~(np.isfinite(weight) & (weight >= 0))][0]
        raise ArgumentError(
            f"{where}: sample_weight must be finite and at least 0, got {show(float(wrong))}."
        )
    return weight
