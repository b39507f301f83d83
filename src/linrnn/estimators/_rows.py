"""From a series to rows of a regression, block by block in time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from linrnn._moments import Moments
from linrnn.estimators._forecast_modes import ChangeBank, Reading


class Block(NamedTuple):
    """Features after some steps that follow one another, or some of them."""

    steps: Tensor
    """(rows,): places in the series."""
    x: Tensor
    """(channels, rows, features)."""
    z: Tensor | None
    """(rows, width): some features of all channels, side by side."""
    reading: Reading
    """Where the reading stands after the block."""


@dataclass(frozen=True)
class Rows:
    """How rows are made.

    Args:
        bank: reads each channel.
        horizon: steps ahead in a target.
        every: only each so-manieth step has a row.
        few: which features of a channel those of all channels are, or None.
    """

    bank: ChangeBank
    horizon: int
    every: int = 1
    few: Tensor | None = None

    def width(self, channels: int) -> int:
        """Of the features of all channels together."""
        return 0 if self.few is None else channels * len(self.few)

    def blocks(
        self, values: Tensor, reading: Reading, *, first: int = 0, size: int | None = None
    ) -> Iterator[Block]:
        """Read values (time, channels) on from ``reading``; the first is step ``first``."""
        size = size or self.bank.steps_at_once(values.shape[1], self.horizon)
        for part in values.split(size):
            x, reading = self.bank.read(part, reading)
            steps = torch.arange(first, first + len(part))
            first += len(part)
            kept = steps % self.every == 0
            if self.every > 1:
                x = x[:, kept]
            yield Block(steps[kept], x, self._together(x), reading)

    def features(self, reading: Reading) -> tuple[Tensor, Tensor | None]:
        """Those of each channel (channels, 1, features) and of all (1, width), of a reading."""
        x = self.bank.features(reading.state[:, None])
        return x, self._together(x)

    def _together(self, x: Tensor) -> Tensor | None:
        if self.few is None:
            return None
        return x[..., self.few].transpose(0, 1).flatten(1)

    def count(
        self, series: Tensor, n_rows: int, reading: Reading, moments: Moments | None, first: int
    ) -> Reading:
        """Add the rows of the first ``n_rows`` values to the moments, or only read them.

        Args:
            series: (time, channels), ``horizon`` steps longer at least where there are moments.
            n_rows: how many steps are read.
            reading: before the first of them.
            moments: of what is to be summed; None sums nothing.
            first: place of the first value in all of the series; ``every`` counts from it.

        Returns:
            Where the reading stands then.
        """
        for block in self.blocks(series[:n_rows], reading, first=first):
            reading = block.reading
            if moments is not None and len(block.steps):
                y = targets(series, block.steps - first, self.horizon)
                moments.add(block.x, y, block.z)
        return reading


def targets(series: Tensor, steps: Tensor, horizon: int) -> Tensor:
    """Changes (channels, rows, horizon) from the values at some steps to those that follow."""
    ahead = series.unfold(0, horizon, 1)  # (T - horizon + 1, C, H)
    return (ahead[steps + 1] - series[steps][..., None]).transpose(0, 1)
