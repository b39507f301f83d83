"""Intervals and tests of a few seeds: Student's distribution, the sign test, Holm's rule."""

import math
import statistics
from collections.abc import Iterable, Sequence

SHARE = 0.95
"""Share of Student's distribution that an interval covers."""


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """Mean of paired differences and Student's 95 % interval, NaN where there is none.

    Example:
        >>> mean, low, high = interval((1.0, 2.0, 3.0))
        >>> round(mean, 2), round(low, 2), round(high, 2)
        (2.0, -0.48, 4.48)
    """
    n = len(differences)
    if n < 2 or not all(map(math.isfinite, differences)):
        return (differences[0] if n == 1 else math.nan), math.nan, math.nan
    from scipy import stats  # half a second, which lists of pages need not wait for

    quantile = float(stats.t.ppf((1 + SHARE) / 2, n - 1))
    half = quantile * statistics.stdev(differences) / math.sqrt(n)
    mean = statistics.fmean(differences)
    return mean, mean - half, mean + half


def with_interval(values: Iterable[float], decimals: int) -> str:
    """A mean with its 95 % interval.

    Example:
        >>> with_interval([1.0, 2.0, 3.0], 1)
        '2.0 [-0.5, 4.5]'
    """
    mean, low, high = interval(tuple(values))
    return f"{mean:.{decimals}f} [{low:.{decimals}f}, {high:.{decimals}f}]"


def t_test(t: float, freedom: int) -> float:
    """The two-sided p value of a number of Student's distribution.

    Example:
        >>> round(t_test(2.776, 4), 3), round(t_test(-1.0, 1), 3)
        (0.05, 0.5)
    """
    from scipy import stats

    return 2 * float(stats.t.sf(abs(t), freedom))


def sign_test(held: Sequence[bool | None]) -> float:
    """The two-sided p value of as many yes and no among seeds that say either; NaN of none.

    Example:
        >>> sign_test([True] * 5), sign_test([True] * 3 + [False]), sign_test([])
        (0.0625, 0.625, nan)
    """
    from scipy import stats

    if not held:
        return math.nan
    decided = len(held) - held.count(None)
    return float(stats.binomtest(held.count(True), decided).pvalue) if decided else 1.0


def holm(values: Sequence[float]) -> list[float]:
    """Holm's p values, in the order of those they correct; NaN stays, and is no test.

    Example:
        >>> holm([0.01, 0.04, math.nan, 0.03])
        [0.03, 0.06, nan, 0.06]
    """
    places = sorted((i for i, p in enumerate(values) if p == p), key=lambda i: values[i])
    adjusted, largest = [math.nan] * len(values), 0.0
    for rank, i in enumerate(places):
        largest = max(largest, min(1.0, (len(places) - rank) * values[i]))
        adjusted[i] = largest
    return adjusted
