"""Intervals and tests of a few seeds: Student's distribution, the sign test, Holm's rule."""

import math
import statistics
from collections.abc import Sequence

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
    half = quantile(SHARE, n - 1) * statistics.stdev(differences) / math.sqrt(n)
    mean = statistics.fmean(differences)
    return mean, mean - half, mean + half


def coverage(t: float, freedom: int) -> float:
    """Probability that a number of Student's distribution lies between -t and t.

    By the finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4.

    Example:
        >>> round(coverage(2.776, 4), 3), round(coverage(1.0, 1), 3)
        (0.95, 0.5)
    """
    angle = math.atan2(t, math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(1, freedom // 2 + 1):
        total += term
        term *= math.cos(angle) ** 2 * ((2 * k) / (2 * k + 1) if odd else (2 * k - 1) / (2 * k))
    total *= math.sin(angle)
    return min(1.0, 2 / math.pi * (angle + total) if odd else total)


def quantile(share: float, freedom: int) -> float:
    """The number between whose two signs that share of Student's distribution lies.

    Example:
        >>> round(quantile(0.95, 4), 3)
        2.776
    """
    low, high = 0.0, 1.0
    while coverage(high, freedom) < share:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if coverage(middle, freedom) < share else (low, middle)
    return high


def sign_test(held: Sequence[bool | None]) -> float:
    """The two-sided p value of as many yes and no among seeds that say either; NaN of none.

    Example:
        >>> sign_test([True] * 5), sign_test([True] * 3 + [False]), sign_test([])
        (0.0625, 0.625, nan)
    """
    n, rarer = len(held) - held.count(None), min(held.count(True), held.count(False))
    if not held:
        return math.nan
    as_rare = sum(math.comb(n, k) for k in range(rarer + 1))
    return min(1.0, math.ldexp(as_rare, 1 - n))


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
