"""Your own series, to be forecast."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from linrnn.errors import DataError, check_positive_int
from linrnn.tasks._windows import ForecastTask, History, read_history


@dataclass(frozen=True, kw_only=True)
class ForecastOptions:
    """Options of the task `forecast`."""

    data: str = ""
    """The file: .csv, packed as .gz or not."""
    columns: tuple[str, ...] = ()
    """Names of the columns to read and forecast; none: all in which any cell is a number."""
    horizon: int = 24
    """Steps to forecast."""
    length: int = 96
    """Steps read before them."""


class Forecast(ForecastTask):
    """Forecast a series of your own from what went before.

    Give a .csv as ``--task.data FILE``, with the names of the columns in the first row and a step
    of time in each row after it. A column without any number, such as the date, is left out; a
    cell that is empty or no number in another column is an error, unless ``columns`` names those to
    read. The first 70 % of the steps are for training, the next 10 % for validation, the rest
    for testing. Columns are brought to mean 0 and variance 1 over the training part, and the
    metric is the mean squared error of those; the chance level is that of always answering the
    training mean. Before a file is given, the numbers that describe the data are placeholders.

    Args:
        options: `ForecastOptions`.

    Raises:
        DataError: the file cannot be used.
        UnknownNameError: it has no such column.
        ArgumentError: a length or horizon below 1.
    """

    Options: ClassVar[type] = ForecastOptions
    summary: ClassVar[str] = "forecast the columns of your own .csv file: --task.data FILE"

    chance = 1.0
    d_input = 1

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        options = self.options
        check_positive_int("Forecast", length=options.length, horizon=options.horizon)
        self.sequence_length = options.length
        if options.data:
            series, history = self.normalised()
            self.d_input = series.shape[1]
            self.chance = float(series[history.ends[1] :].square().mean())
        self.d_output = self.d_input * options.horizon

    def history(self, download: bool = True) -> History:
        """Read the file."""
        return self._history

    @cached_property
    def _history(self) -> History:
        if not self.options.data:
            raise DataError("forecast: the data must be a file, got none. Say --task.data FILE.")
        path = Path(self.options.data).expanduser()
        values, names = read_history(path, self.options.columns)
        steps = len(values)
        return History(values, names, (steps * 7 // 10, steps * 8 // 10, steps))
