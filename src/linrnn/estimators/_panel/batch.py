"""Series of different lengths side by side, and what is measured of each."""

from typing import NamedTuple

import numpy as np


class Batch(NamedTuple):
    """Rows that begin together; behind its end a row is 0.

    A row is a series, or the beginning of one: that is how back-tests ask all origins at once.
    """

    y: np.ndarray
    """(rows, time) float64."""
    n: np.ndarray
    """(rows,): lengths, at least 1."""

    @property
    def mask(self) -> np.ndarray:
        """(rows, time): where there are values."""
        return np.arange(self.y.shape[1]) < self.n[:, None]

    @property
    def last(self) -> np.ndarray:
        """(rows,): the last value of each."""
        return np.asarray(self.y[np.arange(len(self.n)), self.n - 1])

    def take(self, rows: np.ndarray) -> "Batch":
        """Some of the rows, cut to the longest of them."""
        n = self.n[rows]
        return Batch(self.y[rows, : int(n.max(initial=1))], n)

    def latest(self, count: int, season: int = 1) -> "Batch":
        """The last ``count`` values of each row or a few more, from the start of a season on."""
        less = np.maximum(self.n - count, 0) // season * season
        if not less.any():
            return self
        n = self.n - less
        places = less[:, None] + np.arange(int(n.max()))
        y = np.take_along_axis(self.y, places.clip(max=self.y.shape[1] - 1), 1)
        return Batch(np.where(np.arange(y.shape[1]) < n[:, None], y, 0.0), n)

    def mapped(self, y: np.ndarray) -> "Batch":
        """Other values in the places of these."""
        return Batch(np.where(self.mask, y, 0.0), self.n)

    def backwards(self) -> np.ndarray:
        """(rows, time): each row ends at the last column; before its start it has its first value.

        Changes are 0 there, so what reads changes reads nothing.
        """
        steps = self.y.shape[1]
        places = np.arange(steps) - (steps - self.n[:, None])
        return np.take_along_axis(self.y, places.clip(0), 1)


def means(batch: Batch, values: np.ndarray, where: np.ndarray | None = None) -> np.ndarray:
    """(rows,): of values (rows, time) over the steps of each row, 0 where there are none."""
    mask = batch.mask if where is None else where
    return np.asarray((values * mask).sum(1) / np.maximum(mask.sum(1), 1))


def change_scale(batch: Batch, season: int = 1) -> np.ndarray:
    """(rows,): the mean absolute change from a season before, by which MASE divides.

    From the step before where a row is no longer than a season, and 1 where nothing changes.
    """
    scale = np.zeros(len(batch.n))
    for lag in (season, 1):
        if lag < batch.y.shape[1]:
            change = np.abs(batch.y[:, lag:] - batch.y[:, :-lag])
            fallback = means(batch, change, batch.mask[:, lag:])
            scale = np.where(scale > 0, scale, fallback)
    level = np.abs(means(batch, batch.y))
    return np.where(scale > 1e-9 * level, scale, np.where(level > 0, level, 1.0))


def is_seasonal(batch: Batch, season: int) -> np.ndarray:
    """(rows,): whether the autocorrelation a season back is clear, by a test at 90 per cent.

    The rule of the M competitions, on changes where a row has a trend: at least three seasons.
    """
    if season < 2 or batch.y.shape[1] <= 2 * season:
        return np.zeros(len(batch.n), dtype=bool)
    mask = batch.mask
    centred = (batch.y - means(batch, batch.y)[:, None]) * mask
    power = np.maximum((centred**2).sum(1), 1e-300)
    correlations = np.stack(
        [(centred[:, lag:] * centred[:, :-lag]).sum(1) / power for lag in range(1, season + 1)]
    )
    limit = 1.645 * np.sqrt((1 + 2 * (correlations[:-1] ** 2).sum(0)) / batch.n)
    return np.asarray((np.abs(correlations[-1]) > limit) & (batch.n >= 2 * season + 1))
