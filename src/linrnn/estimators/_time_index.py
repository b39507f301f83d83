"""An index of pandas that goes on."""

import itertools
import warnings
from typing import Any

import numpy as np

from linrnn.errors import ArgumentError, ArgumentTypeError, show

_FIX = (
    "y.asfreq(...) puts NaN where steps are missing, and missing='ffill' reads such a series; "
    "y.resample(...) or y.reset_index(drop=True) are other ways."
)
_ORDER = "y.sort_index() puts them in order."
_TWICE = "y[~y.index.duplicated()] keeps the first of each, y.groupby(level=0).mean() their mean."


def inferred_step(index: Any) -> Any:
    """The offset of pandas between dates that are three at least, or None."""
    import pandas as pd

    with warnings.catch_warnings():
        # some versions announce that an offset will be returned, not its name; either does
        warnings.filterwarnings("ignore", ".*BaseOffset", DeprecationWarning)
        warnings.filterwarnings("ignore", ".*BaseOffset", FutureWarning)
        step = pd.infer_freq(index)
    return None if step is None else pd.tseries.frequencies.to_offset(step)


class TimeIndex:
    """The steps after those of a regular index.

    Args:
        where, what: for the messages.
        index: of dates, periods, time differences or integers, of pandas.

    Raises:
        ArgumentError: its steps are not equally far apart, or do not rise.
        ArgumentTypeError: another kind of index.
    """

    def __init__(self, where: str, what: str, index: Any) -> None:
        import pandas as pd

        self.name, self.last = index.name, index[-1]
        if isinstance(index, (pd.DatetimeIndex, pd.TimedeltaIndex)):
            self.step = index.freq
            if self.step is None and len(index) > 2:
                self.step = inferred_step(index)
        elif isinstance(index, pd.PeriodIndex):
            self.step = index.freq if (index[1:] == index[:-1] + 1).all() else None
        elif index.dtype.kind in "iu":
            gaps = np.unique(np.diff(index.to_numpy()))
            self.step = int(gaps[0]) if len(gaps) == 1 and gaps[0] > 0 else None
        else:
            raise ArgumentTypeError(
                f"{where}: the index of {what} must hold dates, periods, time differences or "
                f"integers, got {index.dtype}. y.reset_index(drop=True) counts steps instead."
            )
        if self.step is None or not index.is_monotonic_increasing or index.has_duplicates:
            raise ArgumentError(
                f"{where}: the index of {what} must go on in equal steps, got {_odd_step(index)}"
            )

    def after(self, n: int) -> Any:
        """The index of the next ``n`` steps."""
        import pandas as pd

        if isinstance(self.last, pd.Period):
            return pd.period_range(self.last + 1, periods=n, freq=self.step, name=self.name)
        if isinstance(self.last, pd.Timestamp):
            dates = pd.date_range(self.last, periods=n + 1, freq=self.step)
            return dates[1:].rename(self.name)
        if isinstance(self.last, pd.Timedelta):
            times = pd.timedelta_range(self.last, periods=n + 1, freq=self.step)
            return times[1:].rename(self.name)
        first = int(self.last) + self.step
        return pd.RangeIndex(first, first + n * self.step, self.step, name=self.name)

    def advance(self, where: str, what: str, index: Any) -> None:
        """Go on by the steps of ``index``.

        Raises:
            ArgumentError: they are not the next ones.
        """
        expected = self.after(len(index))
        mismatches = [k for k, (a, b) in enumerate(zip(index, expected, strict=True)) if a != b]
        if mismatches:
            k = mismatches[0]
            raise ArgumentError(
                f"{where}: the index of {what} must go on where the series ended, with "
                f"{show(expected[k])} at step {k}, got {show(index[k])}. {_FIX}"
            )
        self.skip(len(index))

    def skip(self, n: int) -> None:
        """Go on by ``n`` steps."""
        if n:
            self.last = self.after(n)[-1]


def check_rising(where: str, what: str, data: Any) -> None:
    """Raise `ArgumentError` where the dates, periods or time differences of rows do not rise.

    Dates count also where they stand in an index of objects, as ``datetime.date`` does.

    Args:
        where, what: for the message.
        data: a frame or a series of pandas; anything else has no such index.
    """
    if not hasattr(data, "iloc"):
        return
    import pandas as pd

    index = data.index
    if index.inferred_type in ("date", "datetime"):
        index = pd.DatetimeIndex(index)
    if not isinstance(index, (pd.DatetimeIndex, pd.TimedeltaIndex, pd.PeriodIndex)):
        return
    if index.isna().any():
        row = int(np.flatnonzero(index.isna())[0])
        raise ArgumentError(
            f"{where}: the index of {what} must hold a time in each row, got none in row {row}."
        )
    if not index.is_monotonic_increasing or index.has_duplicates:
        raise ArgumentError(f"{where}: the index of {what} must rise, got {_odd_step(index)}")


def _odd_step(index: Any) -> str:
    """Where an index first does not go on as it should, how, and what to do."""
    pairs = list(itertools.pairwise(index))
    for k, (one, following) in enumerate(pairs, 1):
        if one == following:
            return f"{show(following)} twice, at steps {k - 1} and {k}. {_TWICE}"
        if not one < following:
            return f"{show(following)} at step {k} after {show(one)}, which is later. {_ORDER}"
    gaps = [following - one for one, following in pairs]
    if len(gaps) < 2:
        return f"{len(index)} of them, too few to tell their distance. Set y.index.freq."
    usual = max(set(gaps[:1000]), key=gaps[:1000].count)
    k = next((k for k, gap in enumerate(gaps) if gap != usual), 0)
    kind = "a gap" if gaps[k] > usual else "a shorter step"
    return (
        f"{kind} from {show(index[k])} to {show(index[k + 1])} at step {k + 1}, where others are "
        f"{usual} apart. {_FIX}"
    )
