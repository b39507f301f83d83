"""From a series to rows of a regression, block by block in time."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from linrnn.compute.moments import Moments
from linrnn.nn.change_bank import ChangeBank, Reading

_LARGE = 30.0  # root mean squares


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
    dense: Tensor
    """(channels, time, features), after every step."""


class Limits(NamedTuple):
    """Sizes beyond which a row is counted as a smaller one, so that none outweighs the others."""

    x: Tensor
    """(groups, features); a group is a channel, or all of them."""
    y: Tensor
    """(groups, horizon)."""

    @classmethod
    def of(cls, moments: Moments, channels: int) -> "Limits":
        """Thirty root mean squares over the rows of a fit."""
        rows = moments.rows * (channels / moments.groups)
        squares = (moments.xx.diagonal(dim1=1, dim2=2) / rows, moments.yy / rows)
        return cls(*(_LARGE * torch.where(s > 0, s, 1.0).sqrt() for s in squares))

    def weights(self, x: Tensor, y: Tensor) -> Tensor:
        """(rows,): 1, or what brings a row x (channels, rows, features), y within the limits."""
        largest = [(z.abs() / top[:, None]).amax((0, 2)) for z, top in ((x, self.x), (y, self.y))]
        return 1 / torch.maximum(*largest).clamp_min(1.0)


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
        """Number of features of all channels together."""
        return 0 if self.few is None else channels * len(self.few)

    @property
    def dense(self) -> "Rows":
        """The same, with a row for every step."""
        return self if self.every == 1 else replace(self, every=1)

    def blocks(
        self, values: Tensor, reading: Reading, *, first: int = 0, size: int | None = None
    ) -> Iterator[Block]:
        """Read values (time, channels) on from ``reading``; the first is step ``first``."""
        size = size or self.bank.steps_at_once(values.shape[1], self.horizon)
        for part in values.split(size) if len(values) else ():
            x, reading = self.bank.read(part, reading)
            steps = torch.arange(first, first + len(part), device="cpu")
            first += len(part)
            few = x
            if self.every > 1:
                sampled = steps % self.every == 0
                steps, few = steps[sampled], x[:, sampled]
            yield Block(steps, few, self.together(few), reading, x)

    def features(self, reading: Reading) -> tuple[Tensor, Tensor | None]:
        """Those of each channel (channels, 1, features) and of all (1, width), of a reading."""
        x = self.bank.features(reading.state[:, None])
        return x, self.together(x)

    def together(self, x: Tensor) -> Tensor | None:
        """Some features of all channels (rows, width), of those of each channel."""
        if self.few is None:
            return None
        return x[..., self.few].transpose(0, 1).flatten(1)

    def count(
        self,
        series: Tensor,
        n_rows: int,
        reading: Reading,
        moments: Moments | None,
        first: int,
        limits: Limits | None = None,
    ) -> Reading:
        """Add the rows of the first ``n_rows`` values to the moments, or only read them.

        Args:
            series: (time, channels), ``horizon`` steps longer at least where there are moments.
            n_rows: how many steps are read.
            reading: before the first of them.
            moments: of what is to be summed; None sums nothing.
            first: place of the first value in all of the series; ``every`` counts from it.
            limits: of what one row may weigh; None counts all in full.

        Returns:
            Where the reading stands then.
        """
        for block in self.blocks(series[:n_rows], reading, first=first):
            reading = block.reading
            if moments is not None:
                self.add(block, series, moments, first, limits)
        return reading

    def add(
        self,
        block: Block,
        series: Tensor,
        moments: Moments,
        first: int,
        limits: Limits | None = None,
    ) -> None:
        """Add the rows of a block to the moments; arguments as those of `count`."""
        if not len(block.steps):
            return
        y = targets(series, block.steps - first, self.horizon)
        x, z = block.x, block.z
        if limits is not None:
            weights = limits.weights(x, y)[:, None]
            x, y, z = x * weights, y * weights, None if z is None else z * weights
        moments.add(x, y, z)


def targets(series: Tensor, steps: Tensor, horizon: int) -> Tensor:
    """Changes (channels, rows, horizon) from the values at some steps to those that follow."""
    ahead = series.unfold(0, horizon, 1)  # (T - horizon + 1, C, H)
    return (ahead[steps + 1] - series[steps][..., None]).transpose(0, 1)
