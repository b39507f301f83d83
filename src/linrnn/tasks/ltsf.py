"""Long-term forecasts of electricity and weather, in the split of 70, 10 and 20 percent."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from linrnn.errors import DataError, check_in, check_positive_int
from linrnn.tasks._kinds.base import Published
from linrnn.tasks._kinds.published_text import find_file
from linrnn.tasks._kinds.windows import ForecastTask, History, Known, read_history
from linrnn.tasks._reading.files import folder_of

_SHAPES = {"electricity": (26_304, 321), "weather": (52_696, 21)}  # rows and columns
_SEASONS = {"electricity": 24, "weather": 144}  # steps of a day
_DLINEAR = "Zeng et al. 2023, arXiv:2205.13504, all columns, as later tables quote it"
_PATCH = "Nie et al. 2023, arXiv:2211.14730, all columns, as later tables quote it"

Set = Literal["electricity", "weather"]
Columns = Literal["all", "OT"]


@dataclass(frozen=True, kw_only=True)
class LTSFOptions:
    """Options of the task `ltsf`."""

    data: str = ""
    """The file, or its folder. Default: the folder of the set's name in `LINRNN_DATA`."""
    set: Set = "weather"
    """Electricity of 321 clients by the hour, or 21 readings of weather every ten minutes."""
    columns: Columns = "all"
    """Whether all columns are read and forecast, or the last one, OT, alone."""
    horizon: int = 96
    """Steps to forecast."""
    length: int = 336
    """Steps read before them."""
    check_counts: bool = True
    """Whether the file must have the published numbers of rows and columns."""


class LTSF(ForecastTask):
    """Forecast all columns of the files electricity.csv or weather.csv of long-term forecasting.

    electricity.csv has 26,304 hours of 321 clients, weather.csv 52,696 steps of ten minutes of 21
    readings; the first column is the date. They are other data than those that the code of Informer
    calls ECL and WTH. The first 70 % of the steps are for training, the last 20 % for testing, and
    those between for validation. Columns are brought to mean 0 and variance 1 over the training
    part. The metric is the mean squared error of those, over all windows: published code often
    leaves the last ones out, which changes the numbers.

    The chance level is that of always answering the training mean; before a file is there it is a
    placeholder. ``linrnn show ltsf`` computes what repeating the last step, and the last day,
    reaches.

    Args:
        options: `LTSFOptions`.

    Raises:
        UnknownNameError: no such set or columns.
        ArgumentError: a length or horizon below 1.
    """

    Options: ClassVar[type] = LTSFOptions
    summary: ClassVar[str] = "long-term forecasts of electricity or weather, a file of your own"
    published: ClassVar[tuple[Published, ...]] = tuple(
        Published(model=f"{model}, {name}, 96 steps ahead", value=value, source=source)
        for model, name, value, source in (
            ("DLinear", "weather", 0.176, _DLINEAR),
            ("PatchTST", "weather", 0.149, _PATCH),
            ("DLinear", "electricity", 0.140, _DLINEAR),
            ("PatchTST", "electricity", 0.129, _PATCH),
        )
    )

    def __init__(self, options: Any = None, known: Known | None = None) -> None:
        super().__init__(options, known)
        options = self.options
        check_in("LTSF", "set", options.set, get_args(Set))
        check_in("LTSF", "columns", options.columns, get_args(Columns))
        check_positive_int("LTSF", length=options.length, horizon=options.horizon)
        self.sequence_length, self.season = options.length, _SEASONS[options.set]
        columns, self.chance = _SHAPES[options.set][1] if options.columns == "all" else 1, 1.0
        if known is not None or not options.check_counts:
            columns, self.chance = len(self.known.names), self.known.chance
        self.d_input, self.d_output = columns, columns * options.horizon

    def history(self, download: bool = True) -> History:
        """Read the file; it may be packed as .gz or .xz."""
        name, options = self.options.set, self.options
        place = folder_of(name, options.data)
        layout = f"{name}.csv, of the columns date, 0, 1 and so on to OT or of names, and its rows"
        path = place if place.is_file() else find_file("ltsf", place, [f"{name}.csv"], layout)
        values, names = read_history(path)
        if options.check_counts and values.shape != _SHAPES[name]:
            rows, columns = _SHAPES[name]
            raise DataError(
                f"{path}: the file must have {rows:,} rows of {columns} numbers as published, got "
                f"{len(values):,} of {len(names)}. Get the published file, or say "
                "--task.no-check-counts for another of its layout."
            )
        if options.columns == "OT":
            values, names = values[:, -1:], names[-1:]
        steps = len(values)
        train, test = int(steps * 0.7), int(steps * 0.2)
        return History(values, names, (train, steps - test, steps))
