"""A fitted forecaster's place in its series: constant memory, however long that is."""

from dataclasses import dataclass

import torch
from torch import Tensor

from linrnn._moments import Moments
from linrnn.estimators._forecast_modes import Reading
from linrnn.estimators._read_out import Choice, ReadOut
from linrnn.estimators._rows import Rows


@dataclass
class Follower:
    """What is kept of a series; values are in units of each channel's scale.

    A row of the regression is complete when its whole horizon has been seen, so the states stand
    as many steps back, and the values since then wait.
    """

    rows: Rows
    reading: Reading
    """Before the values that wait."""
    step: int
    """Place of the first of them in the series."""
    waiting: Tensor
    """(horizon, channels): the last values."""
    recent: Tensor
    """(season, channels): the last values, for naive forecasts."""
    moments: Moments
    choice: Choice
    read_out: ReadOut
    stale: bool = False
    """Whether rows were counted since the read-out was solved."""

    def absorb(self, values: Tensor) -> None:
        """Read the next values (time, channels) and count the rows that they complete."""
        series = torch.cat([self.waiting, values])
        n = len(values)
        self.reading = self.rows.count(series, n, self.reading, self.moments, self.step)
        self.step += n
        self.waiting = series[n:].clone()
        self.recent = torch.cat([self.recent, values])[n:].clone()
        self.stale = self.stale or n > 0

    def solve(self) -> ReadOut:
        """The read-out of all rows that were counted."""
        if self.stale:
            self.read_out, self.stale = self.choice.solve(self.moments), False
        return self.read_out

    def now(self) -> Reading:
        """Where the reading stands after the last value."""
        return self.rows.count(self.waiting, len(self.waiting), self.reading, None, self.step)

    def forecast(self, steps: int) -> Tensor:
        """(steps, channels); beyond the horizon forecasts are read on as if they had come."""
        read_out, last, reading = self.solve(), self.waiting[-1], self.now()
        found: list[Tensor] = []
        x, z = self.rows.features(reading)
        while True:
            ahead = read_out.changes(x, z)[:, 0].T + last  # (H, C)
            found.append(ahead)
            if sum(map(len, found)) >= steps:
                return torch.cat(found)[:steps]
            last = ahead[-1]
            reading = self.rows.count(ahead, len(ahead), reading, None, 0)
            x, z = self.rows.features(reading)
