"""An index of pandas that goes on."""

from typing import Any

import numpy as np

from linrnn.errors import ArgumentError, ArgumentTypeError, show

_FIX = (
    "y.asfreq(...) puts NaN where steps are missing, and missing='ffill' reads such a series; "
    "y.resample(...) or y.reset_index(drop=True) are other ways."
)


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
                text = pd.infer_freq(index)
                self.step = None if text is None else pd.tseries.frequencies.to_offset(text)
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
        if self.step is None or not index.is_monotonic_increasing:
            raise ArgumentError(
                f"{where}: the index of {what} must go on in equal steps, got others. {_FIX}"
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
        wanted = self.after(len(index))
        other = [k for k, (a, b) in enumerate(zip(index, wanted, strict=True)) if a != b]
        if other:
            k = other[0]
            raise ArgumentError(
                f"{where}: the index of {what} must go on where the series ended, with "
                f"{show(wanted[k])} at step {k}, got {show(index[k])}. {_FIX}"
            )
        self.skip(len(index))

    def skip(self, n: int) -> None:
        """Go on by ``n`` steps."""
        if n:
            self.last = self.after(n)[-1]
