"""A fitted forecaster's place in its series: constant memory, however long that is."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from linrnn.compute.moments import Moments
from linrnn.estimators._guard import Guard
from linrnn.estimators._spread import Spread
from linrnn.estimators._watch import Watch
from linrnn.estimators.read_out import Choice, ReadOut
from linrnn.estimators.rows import Limits, Rows
from linrnn.nn.change_bank import Reading


@dataclass(frozen=True, kw_only=True)
class Follower:
    """The state of a series that is followed; values are in units of each channel's scale.

    A row of the regression is complete when its whole horizon has been seen, so the states stand
    as many steps back, and the values since then wait. `absorb` returns another follower, and this
    one stays as it was.
    """

    rows: Rows
    reading: Reading
    """Before the values that wait."""
    step: int
    """Place of the first of them in the series."""
    waiting: Tensor
    """(horizon, channels): the last values of the bounded series; see `Guard`."""
    recent: Tensor
    """(season or horizon, channels), the longer: the last values as they came."""
    season: int
    """In steps, of naive forecasts."""
    guard: Guard
    spread: Spread
    limits: Limits
    moments: Moments
    choice: Choice
    watch: Watch

    @cached_property
    def read_out(self) -> ReadOut:
        """The read-out of all rows that were counted, solved when it is first needed."""
        return self.choice.solve(self.moments)

    @property
    def last(self) -> Tensor:
        """(channels,): the last value as it came."""
        return self.recent[-1]

    def absorb(self, values: Tensor, missing: Tensor | None = None) -> "Follower":
        """Read the next values (time, channels) and count the rows that they complete.

        Args:
            values: finite.
            missing: (time, channels), which of them repeat the last one, as they did not come.
        """
        n = len(values)
        if not n:
            return self
        bounded, guard = self.guard.admit(values, self.last)
        series, moments = torch.cat([self.waiting, bounded]), self.moments.clone()
        changes = torch.diff(values, dim=0, prepend=self.last[None]).T
        errors = changes - self.watch.next.recent(series, n)  # less, below, what states add
        reading, place = self.reading, 0
        for block in self.rows.blocks(series[:n], reading, first=self.step):
            reading = block.reading
            self.rows.add(block, series, moments, self.step, self.limits)
            end = place + block.dense.shape[1]
            errors[:, place:end] -= self.watch.next.forecasts(
                block.dense, self.rows.together(block.dense)
            )
            place = end
        return replace(
            self,
            reading=reading,
            step=self.step + n,
            waiting=series[n:].clone(),
            recent=torch.cat([self.recent, values])[n:].clone(),
            guard=guard,
            spread=self.spread.read(series[len(self.waiting) - 1 :]),
            moments=moments,
            watch=self.watch.read(errors, missing, self.rows, self.choice, moments),
        )

    def windows(self, later: Tensor, horizon: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Forecasts from each step of ``later`` and from the one before it; nothing is learnt.

        Args:
            later: (time, channels), the values that follow.
            horizon: steps ahead, at most those of the read-out, all of which are in ``later``.

        Returns:
            Blocks of steps (rows,), where 0 is the last value read, and of changes from the values
            there (channels, rows, horizon).
        """
        bounded, _ = self.guard.admit(later, self.last)
        series = torch.cat([self.waiting[-1:], bounded])
        rows = self.rows.dense
        reading = rows.count(self.waiting, len(self.waiting) - 1, self.reading, None, 0)
        for block in rows.blocks(series[: len(series) - horizon], reading):
            yield block.steps, self.read_out.changes(block.x, block.z)[..., :horizon]

    def now(self) -> Reading:
        """Where the reading stands after the last value."""
        return self.rows.count(self.waiting, len(self.waiting), self.reading, None, self.step)

    def forecast(self, steps: int) -> Tensor:
        """(steps, channels); beyond the horizon forecasts are read on as if they had come."""
        last, reading = self.waiting[-1], self.now()
        forecasts: list[Tensor] = []
        x, z = self.rows.features(reading)
        while True:
            ahead = self.read_out.changes(x, z)[:, 0].T + last  # (H, C)
            forecasts.append(ahead)
            if sum(map(len, forecasts)) >= steps:
                return torch.cat(forecasts)[:steps] + self.guard.offset
            last = ahead[-1]
            reading = self.rows.count(ahead, len(ahead), reading, None, 0)
            x, z = self.rows.features(reading)
