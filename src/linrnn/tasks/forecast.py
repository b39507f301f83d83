"""Your own series, to be forecast."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np

from linrnn.errors import ArgumentError, DataError, check_in, check_positive_int, show
from linrnn.tasks._kinds.windows import ForecastTask, History, Known, chosen_columns
from linrnn.tasks._reading.frame import open_frame
from linrnn.tasks._reading.missing import Missing
from linrnn.tasks._reading.stamps import check_rising, read_stamps


@dataclass(frozen=True, kw_only=True)
class ForecastOptions:
    """Options of the task `forecast`."""

    data: str = ""
    """The file: .csv, also as .gz or .xz, or .parquet. Default: required."""
    columns: tuple[str, ...] = ()
    """Columns to read and forecast. Default: all that hold a number."""
    time: str = ""
    """Column with the time of each step, a number or a date. Default: equal steps."""
    missing: Missing = "error"
    """Fill for a missing value: none (an error), the last value before, or 0 and a mask channel."""
    horizon: int = 24
    """Steps to forecast."""
    length: int = 96
    """Steps read before them."""
    id: tuple[str, ...] = ()
    """Columns that identify the series of a row. Default: unique_id, or one series."""
    value: str = ""
    """With many series, the column to forecast. Default: y, or the only other numeric one."""
    known: tuple[str, ...] = ()
    """With many series, columns known in advance, such as prices. Default: none."""
    past: tuple[str, ...] = ()
    """With many series, further columns known only in the past. Default: none."""
    static: tuple[str, ...] = ()
    """With many series, columns constant within a series, numbers or words. Default: none."""
    totals: bool = False
    """With many series, forecast totals over the id columns too, so that all forecasts add up."""
    season: int = 0
    """With many series, steps in a season; 1 means no season, 0 estimates it from the data."""
    freq: str = ""
    """With many series, the time step as a pandas alias such as D or MS. Default: inferred."""


_OF_MANY = ("id", "value", "known", "past", "static", "totals", "season", "freq")
"""Options that say something of many series alone."""


class Forecast(ForecastTask):
    """Forecast your own series.

    Pass a .csv or .parquet as ``--data FILE``, with column names in the first row and one time step
    in each later row. Columns without any number, such as dates, are ignored. In all other columns
    a cell that is not a number is an error, unless ``columns`` selects the columns to read.

    Empty cells, NaN, NA, null, none and ? are missing values, and an error. With
    ``--task.missing ffill`` the previous value replaces them. With ``mask`` the training mean
    replaces them, and one more channel for each channel marks them. Missing values are no targets.

    ``--task.time`` names a column of increasing numbers or dates, and forecasts then have times. If
    steps are uneven, layers that read `dt` get the time since the previous step, divided by its
    median in the training part.

    A table of many series has one row for each series and time. ``--task.id`` names the columns
    that identify the series; or name the columns unique_id, ds and y. `linrnn.PanelForecaster`
    then forecasts them, without training by gradients.

    The first 70 % of the steps are for training, the next 10 % for validation, and the rest for
    testing. Columns are scaled to mean 0 and variance 1 over the training part. The metric is the
    mean squared error of the scaled values, and the chance level that of predicting the training
    mean. Before a file is passed, numbers such as the chance level are placeholders.

    Args:
        options: `ForecastOptions`.

    Raises:
        DataError: the file cannot be used.
        UnknownNameError: it has no such column.
        ArgumentError: a length or horizon below 1.
    """

    Options: ClassVar[type] = ForecastOptions
    summary: ClassVar[str] = "forecast the columns of your own .csv file: --data FILE"

    chance = 1.0
    d_input = 1

    def __init__(self, options: Any = None, known: Known | None = None) -> None:
        super().__init__(options, known)
        options = self.options
        check_positive_int("Forecast", length=options.length, horizon=options.horizon)
        for name in _OF_MANY:
            value = getattr(options, name)
            if value:
                raise ArgumentError(
                    f"Forecast: {name} must be left out where a mixer or a bank reads one series, "
                    f"got {show(list(value) if isinstance(value, tuple) else value)}. "
                    "`linrnn train forecast` without --only and --mixer, or PanelForecaster, reads "
                    "many: name the columns of ids with --task.id. For a single series, add a "
                    "column with the same text in every row."
                )
        check_in("Forecast", "missing", options.missing, get_args(Missing))
        self.sequence_length, columns = options.length, 1
        if options.data:
            columns, self.chance = len(self.known.names), self.known.chance
        self.d_input = columns * (2 if options.missing == "mask" else 1)
        self.d_output = columns * options.horizon

    def history(self, download: bool = True) -> History:
        """Read the file."""
        return self._history

    @cached_property
    def _history(self) -> History:
        if not self.options.data:
            raise DataError("forecast: the data must be a file, got none. Pass --data FILE.")
        options, stamps = self.options, None
        frame = open_frame(Path(options.data).expanduser())
        frame.check_single()
        steps = len(frame)
        if options.time:
            stamps = read_stamps(frame, options.time)
            check_rising(frame, options.time, stamps.at, np.arange(steps))
        names = chosen_columns(frame, options.columns, but=options.time)
        values = frame.values(names, missing=options.missing != "error")
        return History(values, names, (steps * 7 // 10, steps * 8 // 10, steps), stamps)
