"""Whether what comes still lies in the bands."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from linrnn.estimators._panel.long_form import Panel

_KEPT = 50
_OUTSIDE = 0.2  # of a band of 80 per cent
_RARE = 1e-3


class Watch(NamedTuple):
    """The last values of each series, as outside their bands or not."""

    missed: np.ndarray
    """(series, 50): 1 outside, 0 inside, -1 where nothing was read; the latest last."""

    @classmethod
    def start(cls, count: int) -> "Watch":
        """Of so many series, before anything is read."""
        return cls(np.full((count, _KEPT), -1, dtype=np.int8))

    def read(self, old: Panel, new: Panel, middle: np.ndarray, half: np.ndarray) -> "Watch":
        """After the first new value of each series: forecasts and widths are (series, horizon)."""
        missed = self.missed.copy()
        places = new.keys.get_indexer(old.keys)
        later = new.ends[places] > old.ends
        # counted from the end, for the beginning may have been cut off
        place = new.batch.n[places] - (new.ends[places] - old.ends)
        can = later & (place >= 0)
        rows = np.flatnonzero(can)
        value = new.batch.y[places[rows], place[rows]]
        outside = np.abs(value - middle[rows, 0]) > half[rows, 0]
        missed[rows] = np.concatenate([missed[rows, 1:], outside[:, None]], 1)
        return Watch(missed)

    def widened(self, count: int) -> "Watch":
        """For series that came later."""
        return Watch(np.concatenate([self.missed, Watch.start(count - len(self.missed)).missed]))

    def notices(self, keys: Any) -> Iterator[tuple[Any, str]]:
        """Of series that were outside more often than chance allows."""
        for key, row in zip(keys, self.missed, strict=True):
            seen, outside = int((row >= 0).sum()), int((row == 1).sum())
            if seen and _at_least(outside, seen) < _RARE:
                yield (
                    key,
                    f"{outside} of the last {seen} values lay outside bands of 80 %, where "
                    f"{_OUTSIDE * seen:.0f} are to be expected. Fit anew, or look at the series.",
                )


class State(NamedTuple):
    """All that an update changes."""

    panel: Panel
    watch: Watch


def _at_least(count: int, trials: int) -> float:
    """The probability of so many or more outside."""
    return sum(
        math.comb(trials, k) * _OUTSIDE**k * (1 - _OUTSIDE) ** (trials - k)
        for k in range(count, trials + 1)
    )
