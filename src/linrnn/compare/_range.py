"""Ranges of numbers from which a sweep draws."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from linrnn.errors import ArgumentError, show

_DIGITS = 4  # of a drawn number, which names a folder; more where a range is narrow
_MISSES = 1000  # draws in a row that were there before, after which none is taken to be left


@dataclass(frozen=True)
class Range:
    """Numbers between two, from which `linrnn.compare.sweep` draws.

    They are drawn uniformly in their logarithm where both ends are positive and the upper one is at
    least ten times the lower, and else uniformly.

    Args:
        low: the lower end, which may be drawn.
        high: the upper end, too.
        whole: draw integers.

    Raises:
        ArgumentError: ends that are not finite, not in order, or not integers where `whole`.

    Example:
        >>> Range(1e-4, 1e-2).log, Range(0, 0.5).log, Range(8, 64, whole=True).log
        (True, False, False)
    """

    low: float
    high: float
    whole: bool = False

    def __post_init__(self) -> None:
        kinds = (int,) if self.whole else (int, float)
        ends = (self.low, self.high)
        good = all(isinstance(end, kinds) and not isinstance(end, bool) for end in ends)
        if not good or not -math.inf < self.low < self.high < math.inf:
            what = "integers" if self.whole else "finite numbers"
            raise ArgumentError(
                f"sweep: a range must go from one of two {what} to a larger one, got "
                f"{show(self.low)} to {show(self.high)}."
            )

    @property
    def log(self) -> bool:
        """Whether logarithms are drawn uniformly."""
        return self.low > 0 and self.high >= 10 * self.low

    def draw(self, source: Random) -> float:
        """One number; of one that is no integer the first four digits, or more if it is narrow."""
        # `random` alone gives the same numbers in every version of Python
        part, end = source.random(), self.high + self.whole
        if self.log:
            value = self.low * math.exp(part * math.log(end / self.low))
        else:
            value = self.low + part * (end - self.low)
        if self.whole:
            return max(self.low, min(self.high, math.floor(value)))
        # how much wider than the range its numbers are; a logarithmic one is wide
        times = max(abs(self.low), abs(self.high)) / (self.high - self.low)
        digits = _DIGITS if self.log else _DIGITS + max(0, math.ceil(math.log10(times)))
        return max(self.low, min(self.high, float(f"{value:.{digits}g}")))


def drawn(over: Mapping[str, Sequence[Any] | Range], draws: int) -> list[dict[str, Any]]:
    """At most ``draws`` different combinations of values of ranges and lists.

    The first of more draws are those of fewer.
    """
    source, misses, points = Random(0), 0, dict[str, dict[str, Any]]()
    while len(points) < draws and misses < _MISSES:
        point = {name: _one(values, source) for name, values in over.items()}
        misses = misses + 1 if str(point) in points else 0
        points.setdefault(str(point), point)
    return list(points.values())


def _one(values: Sequence[Any] | Range, source: Random) -> Any:
    if isinstance(values, Range):
        return values.draw(source)
    return values[int(source.random() * len(values))]
