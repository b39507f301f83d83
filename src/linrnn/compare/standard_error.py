"""How far a mean over seeds, or over rounds, may be off."""

import math
import statistics
from collections.abc import Sequence


def standard_error(values: Sequence[float]) -> float:
    """The standard error of their mean; NaN for fewer than two, or where one is not finite.

    Example:
        >>> standard_error([1.0, 3.0]), standard_error([1.0])
        (1.0, nan)
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return math.nan
    return statistics.stdev(values) / math.sqrt(len(values))
