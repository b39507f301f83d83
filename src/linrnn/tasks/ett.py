"""Temperature of an electricity transformer, to be forecast."""

import os
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from linrnn.errors import check_in, check_positive_int
from linrnn.tasks._kinds.base import Published
from linrnn.tasks._kinds.windows import ForecastTask, History, Known, read_history
from linrnn.tasks._reading.files import Source, chosen, folder_of, obtain

_PLACE = "https://raw.githubusercontent.com/zhouhaoyi/ETDataset/main/ETT-small/"
_SOURCES = {
    name: Source(f"{name}.csv", f"{_PLACE}{name}.csv", checksum)
    for name, checksum in (
        ("ETTh1", "sha256:f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066"),
        ("ETTh2", "md5:51a229a3fc13579dd939364fefe9c7ab"),
        ("ETTm1", "sha256:6ce1759b1a18e3328421d5d75fadcb316c449fcd7cec32820c8dafda71986c9e"),
    )
}
_MONTH = 30 * 24  # hours
_S4 = "Gu, Goel and Re 2022, arXiv:2111.00396, univariate forecasting"
_INFORMER = "Zhou et al. 2021, arXiv:2012.07436, as in arXiv:2111.00396"

Set = Literal["ETTh1", "ETTh2", "ETTm1"]
Columns = Literal["OT", "all"]

# horizon: S4, Informer
_ERRORS: dict[str, dict[int, tuple[float, float]]] = {
    "ETTh1": {
        24: (0.061, 0.098),
        48: (0.079, 0.158),
        168: (0.104, 0.183),
        336: (0.080, 0.222),
        720: (0.116, 0.269),
    },
    "ETTh2": {
        24: (0.095, 0.093),
        48: (0.191, 0.155),
        168: (0.167, 0.232),
        336: (0.189, 0.263),
        720: (0.187, 0.277),
    },
    "ETTm1": {
        24: (0.024, 0.030),
        48: (0.051, 0.069),
        96: (0.086, 0.194),
        288: (0.160, 0.401),
        672: (0.292, 0.512),
    },
}


@dataclass(frozen=True, kw_only=True)
class ETTOptions:
    """Options of the task `ett`."""

    data: str = ""
    """Folder of the file, or the file. Default: downloaded once, into `LINRNN_DATA`."""
    set: Set = "ETTh1"
    """Which transformer, and whether by the hour (h) or by the quarter of an hour (m)."""
    columns: Columns = "OT"
    """Whether the oil temperature alone or all seven columns are read and forecast."""
    horizon: int = 24
    """Steps to forecast."""
    length: int = 384
    """Steps read before them."""


class ETT(ForecastTask):
    """The oil temperature of an electricity transformer, forecast from what went before.

    ETTh1 and ETTh2 have a row for each hour of two years, ETTm1 for each quarter of an hour of
    ETTh1's. Twelve months are for training, the next four for validation, the next four for
    testing; columns are brought to mean 0 and variance 1 over the training part, and the metric
    is the mean squared error of those. The answer is the model's last output, `horizon` numbers.

    Always answering the training mean, the chance level given, is far off in the test part, whose
    weather was another; repeating the last temperature is hard to beat: 0.034 on ETTh1 and 0.012 on
    ETTm1, 24 steps ahead. Published numbers are for the oil temperature alone; their authors
    chose how many steps were read.

    Args:
        options: `ETTOptions`.

    Raises:
        UnknownNameError: no such set or columns.
        ArgumentError: a length or horizon below 1.
    """

    Options: ClassVar[type] = ETTOptions
    summary: ClassVar[str] = "forecast the oil temperature of an electricity transformer"
    published: ClassVar[tuple[Published, ...]] = tuple(
        Published(model=f"{model}, {name}, {horizon} steps ahead", value=value, source=source)
        for name, rows in _ERRORS.items()
        for horizon, row in rows.items()
        for model, source, value in zip(("S4", "Informer"), (_S4, _INFORMER), row, strict=True)
    )

    def __init__(self, options: Any = None, known: Known | None = None) -> None:
        super().__init__(options, known)
        options = self.options
        check_in("ETT", "set", options.set, get_args(Set))
        check_in("ETT", "columns", options.columns, get_args(Columns))
        check_positive_int("ETT", length=options.length, horizon=options.horizon)
        self.sequence_length = options.length
        self.d_input = 1 if options.columns == "OT" else 7
        self.d_output = self.d_input * options.horizon
        # of the training mean in the test part; at ETTh2 that was not measured, and 1 is what
        # it is in the training part
        measured = 1.91 if options.columns == "OT" else 1.11
        self.chance = 1.0 if options.set == "ETTh2" else measured

    def history(self, download: bool = True) -> History:
        """Read one file; one packed as .gz is taken as well."""
        name = self.options.set
        place = folder_of("ett", self.options.data)
        packed = place / f"{name}.csv.gz"
        if place.is_file():
            path = place
        elif os.path.lexists(packed):
            path = chosen("ett", packed, place)
        else:
            path = obtain("ett", _SOURCES[name], "ett", self.options.data, download)
        values, names = read_history(path, ("OT",) if self.options.columns == "OT" else ())
        month = _MONTH * (4 if name == "ETTm1" else 1)
        ends = (12 * month, 16 * month, min(20 * month, len(values)))
        return History(values, names, ends)
