"""The grid of equal steps that the times of many series lie on."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from linrnn.errors import ArgumentError, ArgumentTypeError, show
from linrnn.estimators._time_index import inferred_step

Kind = Literal["dates", "periods", "numbers"]
_TRIED = 20
"""Series whose stamps are looked at, the longest, for a frequency."""
_STRETCH = 30
_LONGEST_SEASON = 400
_SEASONS = {"Y": 1, "A": 1, "Q": 4, "M": 12, "W": 52, "B": 5, "D": 7}
"""Steps of a year for years to weeks, of a week for days."""


@dataclass(frozen=True)
class Grid:
    """Times as whole numbers of steps after a first one."""

    kind: Kind
    first: Any
    """The time of place 0: a Timestamp, a Period or a number."""
    step: Any
    """An offset of pandas, or a number."""

    def places(self, stamps: Any) -> np.ndarray:
        """Places of an index on the grid; -1 where a time is off it or before its first."""
        import pandas as pd

        if self.kind == "numbers":
            steps = np.asarray(stamps, dtype=np.int64) - self.first
            return _whole(steps, self.step)
        if self.kind == "periods":
            return _whole(np.asarray(stamps.asi8 - self.first.ordinal), self.step.n)
        last = stamps.max()
        return np.asarray(pd.date_range(self.first, last, freq=self.step).get_indexer(stamps))

    def in_zone(self, where: str, what: str, stamps: Any) -> Any:
        """An index with its dates in the time zone of the grid.

        Raises:
            ArgumentError: dates have a zone, and those of the grid none, or the other way round.
        """
        if self.kind != "dates":
            return stamps
        zone = self.first.tz
        if (zone is None) != (stamps.tz is None):
            raise ArgumentError(
                f"{where}: {what} must have dates {'with' if zone else 'without'} a time zone as "
                f"in y, got {show(stamps[0])}. Use dt.tz_localize on one of them."
            )
        return stamps if zone is None else stamps.tz_convert(zone)

    def times(self, first: int, count: int) -> Any:
        """The index of a number of steps, from a place on."""
        import pandas as pd

        if self.kind == "numbers":
            start = self.first + first * self.step
            return pd.Index(start + self.step * np.arange(count))
        if self.kind == "periods":
            return pd.period_range(self.first + first, periods=count, freq=self.step)
        return pd.date_range(self.first, periods=first + count, freq=self.step)[first:]

    @property
    def said(self) -> str:
        """Its step in a message."""
        return str(self.step) if self.kind == "numbers" else str(self.step.freqstr)

    @property
    def season(self) -> int | None:
        """Steps of the usual season of this frequency; None where it says nothing."""
        import pandas as pd

        if self.kind == "numbers":
            return None
        # "BMS-..." and the like: business days, and whether the start or the end is meant
        name = str(self.step.rule_code).split("-")[0].rstrip("SE")
        name = name[1:] if name[:1] == "B" and len(name) > 1 else name
        times = max(1, int(self.step.n))
        if name in _SEASONS:
            return max(1, round(_SEASONS[name] / times))
        try:
            day = pd.Timedelta(1, "D") / pd.Timedelta(self.step)
        except (ValueError, TypeError):
            return None
        return round(day) if 2 <= day <= _LONGEST_SEASON else None


def _whole(steps: np.ndarray, step: int) -> np.ndarray:
    quotient, remainder = np.divmod(steps, step)
    return np.where(remainder == 0, quotient, -1)


def kind_of(stamps: Any) -> Kind:
    """The kind of an index that `as_stamps` returned."""
    import pandas as pd

    if isinstance(stamps, pd.PeriodIndex):
        return "periods"
    return "numbers" if stamps.dtype.kind in "iu" else "dates"


def as_stamps(where: str, what: str, column: Any) -> Any:
    """An index of dates, periods or whole numbers of a column or an index.

    Raises:
        ArgumentTypeError: anything else; text that is no date.
        ArgumentError: a time that is missing.
    """
    import pandas as pd

    index = pd.Index(column)
    if index.dtype.kind not in "iuM" and not isinstance(index, pd.PeriodIndex):
        if index.dtype.kind in "fcbm":
            raise ArgumentTypeError(
                f"{where}: {what} must hold dates, periods or whole numbers, got {index.dtype}."
            )
        try:
            index = pd.DatetimeIndex(pd.to_datetime(index, format="ISO8601"))
        except (ValueError, TypeError) as error:
            text = show(next((one for one in index if not _is_date(one)), index[0]))
            raise ArgumentTypeError(
                f"{where}: {what} must hold dates, periods or whole numbers, got {text}. "
                "Text is 2024-01-31 or 2024-01-31 12:00; pandas.to_datetime reads other forms."
            ) from error
    if index.hasnans:
        row = int(np.flatnonzero(index.isna())[0])
        raise ArgumentError(
            f"{where}: {what} must have a time in every row, got none in row {row}. Leave it out."
        )
    return index


def _is_date(text: Any) -> bool:
    import pandas as pd

    try:
        return bool(pd.notna(pd.to_datetime(text, format="ISO8601")))
    except (ValueError, TypeError):
        return False


def grid_of(where: str, stamps: Any, codes: np.ndarray, freq: str | None) -> Grid:
    """Find the step that the stamps of most series have.

    Args:
        where: for messages.
        stamps: an index with a time for each row.
        codes: (rows,): which series each belongs to.
        freq: an alias of pandas, or None to find it.

    Raises:
        ArgumentError: none is found, or ``freq`` is not one.
    """
    import pandas as pd

    if isinstance(stamps, pd.PeriodIndex):
        return Grid("periods", stamps.min(), stamps.freq)
    if stamps.dtype.kind in "iu":
        order = np.lexsort((stamps.to_numpy(), codes))
        steps = np.diff(stamps.to_numpy().astype(np.int64)[order])[np.diff(codes[order]) == 0]
        steps = steps[steps > 0]
        step = int(Counter(steps.tolist()).most_common(1)[0][0]) if len(steps) else 1
        return Grid("numbers", int(stamps.min()), step)
    if freq is not None:
        try:
            return Grid("dates", stamps.min(), pd.tseries.frequencies.to_offset(freq))
        except ValueError as error:
            raise ArgumentError(
                f"{where}: freq must be a frequency of pandas, as 'D', 'MS' or 'W-SUN', got "
                f"{freq!r}."
            ) from error
    frequencies = Counter(_inferred(stamps, codes))
    if not frequencies:
        raise ArgumentError(
            f"{where}: times must follow one another in equal steps in three rows of a series at "
            "least, got none that do. Pass freq=, as 'D' or 'MS', or resample the table first."
        )
    step = pd.tseries.frequencies.to_offset(frequencies.most_common(1)[0][0])
    return Grid("dates", stamps.min(), step)


def _inferred(stamps: Any, codes: np.ndarray) -> list[str]:
    names = []
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes)
    ends = counts.cumsum()
    for code in np.argsort(-counts)[:_TRIED]:
        series_stamps = stamps[order[ends[code] - counts[code] : ends[code]]].sort_values().unique()
        for k in range(0, max(1, len(series_stamps) - 2), _STRETCH):
            part = series_stamps[k : k + _STRETCH]
            step = inferred_step(part) if len(part) > 2 else None
            if step is not None:
                names.append(step.freqstr)
                break
    return names
