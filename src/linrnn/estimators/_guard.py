"""Bounds on what one reading can do to a forecaster that reads for long."""

from dataclasses import dataclass

import torch
from torch import Tensor

_FACTOR = 2.0
"""A change is read in full up to this many of the largest one in the series that was fitted."""
_RISE = 1.25
"""Each change beyond the bound raises it, so a series that grows for good is followed."""
_FALL = 0.99
"""With each step the bound falls back, so faults that are far apart never add up."""
_MAX_RISE = 1e100
"""Times its start: squares of changes stay finite."""
_BLOCK = 512  # steps whose bounds are computed at once


@dataclass(frozen=True)
class Guard:
    r"""A series whose changes from step to step are bounded, and how far the real one is from it.

    Equation:
        s_t = s_{t-1} + clip(y_t - y_{t-1}, -b_t, b_t)
        b_t = max(b_0, 0.99 b_{t-1}), a quarter more after a change beyond it

    Modes read s in place of y. A fault of any size moves it by the bound at most, and where y comes
    back within reach, s is y again; a forecast of s is one of y once ``y_t - s_t`` is added. As
    long as no change is beyond the bound, s is y.
    """

    base: Tensor
    """(channels,): b_0."""
    bound: Tensor
    """(channels,): b_t."""
    offset: Tensor
    """(channels,): y_t - s_t."""
    count: Tensor
    """(channels,): how many changes were beyond the bound."""

    @classmethod
    def of(cls, series: Tensor) -> "Guard":
        """With the bounds that the changes of a series (time, channels) give."""
        largest = torch.diff(series, dim=0).abs().amax(0)
        base = _FACTOR * torch.where(largest > 0, largest, 1.0)
        return cls(base, base, torch.zeros_like(base), torch.zeros_like(base, dtype=torch.long))

    def admit(self, values: Tensor, last: Tensor) -> tuple[Tensor, "Guard"]:
        """The bounded series of the next values (time, channels).

        Args:
            values: finite.
            last: (channels,), the value before them.
        """
        if not len(values):
            return values, self
        changes = torch.diff(values, dim=0, prepend=last[None])
        within = changes.abs().le(self.base).all(0) & self.bound.le(self.base)
        if bool(within.all()):
            return values - self.offset, self
        columns, guards = [], []
        for c in range(values.shape[1]):
            one = Guard(*(part[c] for part in (self.base, self.bound, self.offset, self.count)))
            column, one = one._admit(values[:, c], changes[:, c], last[c])
            columns.append(column)
            guards.append((one.base, one.bound, one.offset, one.count))
        parts = (torch.stack(part) for part in zip(*guards, strict=True))
        return torch.stack(columns, 1), Guard(*parts)

    def _admit(self, values: Tensor, changes: Tensor, last: Tensor) -> tuple[Tensor, "Guard"]:
        """Admit the values of one channel."""
        bounded, bound, offset, count = (
            torch.empty_like(values),
            self.bound,
            self.offset,
            self.count,
        )
        start, previous = 0, last - offset
        while start < len(values):
            part = slice(start, start + _BLOCK)
            steps = torch.arange(1, len(values[part]) + 1, dtype=values.dtype, device="cpu")
            bounds = (bound * _FALL**steps).clamp_min(self.base)
            over = changes[part].abs() > bounds
            n = int(over.to(torch.uint8).argmax()) if bool(over.any()) else len(steps)
            bounded[start : start + n] = values[start : start + n] - offset
            start += n
            if n:
                previous, bound = bounded[start - 1], bounds[n - 1]
            if n < len(steps):
                bound, way = bounds[n], values[start] - previous
                if way.abs() > bound * _RISE:  # else the fault is over, and both are one again
                    way = changes[start].sign() * bound
                    bound = (bound * _RISE).clamp_max(self.base * _MAX_RISE)
                bounded[start] = previous = previous + way
                offset, count = values[start] - previous, count + 1
                start += 1
        return bounded, Guard(self.base, bound, offset, count)
