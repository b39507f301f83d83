"""Forecasting: windows of one long series, normalised by its training part."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from linrnn._door import what_is
from linrnn.errors import DataError
from linrnn.tasks._base import Splits, Task
from linrnn.tasks._drawing import Regression
from linrnn.tasks._files import read_packed
from linrnn.tasks._generated import BatchDataset


class History(NamedTuple):
    """A series with the names of its columns, and where its three parts end."""

    values: np.ndarray
    """(time, columns)."""
    names: list[str]
    ends: tuple[int, int, int]
    """Of the training, validation and test part."""


class Windows(BatchDataset):
    """Stretches of a series and what followed each.

    Args:
        series: (time, columns).
        first: step at which the first forecast begins.
        end: step before which the last forecast ends.
        length: steps read.
        horizon: steps to forecast.
    """

    def __init__(self, series: Tensor, first: int, end: int, length: int, horizon: int) -> None:
        self.series, self.start = series, first - length
        self.size = end - horizon - first + 1
        self.length, self.horizon = length, horizon

    def __len__(self) -> int:
        return self.size

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        """(windows, length, columns) and, flat, (windows, horizon * columns)."""
        rows = self.start + torch.as_tensor(indices)[:, None]
        steps = self.series[rows + torch.arange(self.length + self.horizon)]
        return steps[:, : self.length], steps[:, self.length :].flatten(1)


class ForecastTask(Regression, Task):
    """Read ``length`` steps of a series, answer with the next ``horizon`` of every column."""

    pools = ("last", "mean")

    @abstractmethod
    def history(self, download: bool = True) -> History:
        """The columns that are read and forecast."""

    def normalised(self, download: bool = True) -> tuple[Tensor, History]:
        """The series with mean 0 and variance 1 over its training part."""
        history = self.history(download)
        mean, std = self._scale(history)
        return torch.from_numpy((history.values - mean) / std).float(), history

    @staticmethod
    def _scale(history: History) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of each column over the training part."""
        train = history.values[: history.ends[0]]
        std = train.std(0)
        return train.mean(0), np.where(std == 0, 1, std)

    @property
    def number_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The columns."""
        return tuple(self.history().names)

    def numbers(self, y: Tensor) -> Tensor:
        """(batch, horizon, columns) in the units of the file."""
        mean, std = self._scale(self.history())
        steps = y.double().reshape(len(y), self.options.horizon, self.d_input)
        return steps * torch.from_numpy(std) + torch.from_numpy(mean)

    def read(self, path: Path) -> Tensor:
        """The last ``length`` steps of a series like the one of the training, (1, time, columns).

        Raises:
            DataError: the file cannot be used, is shorter, or lacks a column.
        """
        values, names = read_history(path)
        known = self.history()
        missing = [name for name in known.names if name not in names]
        if missing or len(values) < self.options.length:
            raise DataError(
                f"{path}: the series must have {self.options.length} steps of "
                f"{', '.join(known.names)}, got {len(values)} of {', '.join(names)}."
            )
        mean, std = self._scale(known)
        columns = [names.index(name) for name in known.names]
        steps = (values[-self.options.length :, columns] - mean) / std
        return torch.from_numpy(steps).float()[None]

    def datasets(self) -> Splits:
        """Windows of each part; what is read may begin in the part before."""
        series, history = self.normalised()
        length, horizon = self.options.length, self.options.horizon
        begins = (length, *history.ends[:2])
        parts = [
            Windows(series, begin, end, length, horizon)
            for begin, end in zip(begins, history.ends, strict=True)
        ]
        if min(part.size for part in parts) < 1 or begins[1] < length:
            raise DataError(
                f"{type(self).__name__}: each part of the series must hold a window of {length} "
                f"and {horizon} steps, got parts that end at {history.ends}. Choose a smaller "
                "length or horizon."
            )
        return Splits(*parts)

    def example(self) -> str:
        """The end of what is read and the beginning of what followed; nothing is downloaded."""
        series, history = self.normalised(download=False)
        first = history.ends[1]
        before, after = (
            " ".join(f"{v:.2f}" for v in series[rows, -1].tolist())
            for rows in (slice(first - 8, first), slice(first, first + 8))
        )
        return f"input, of {history.names[-1]} ... {before}\ntarget {after} ..."


def read_history(path: Path) -> tuple[np.ndarray, list[str]]:
    """A table with a step in each row and the names of its columns in the first.

    A column whose first value is no number, such as a date, is left out.

    Args:
        path: a .csv, or one packed as .gz or .xz.

    Raises:
        DataError: missing, damaged, a row of another width, or a value that is no finite number.
    """
    if not path.is_file():
        raise DataError(f"{path}: the data file must exist, got {what_is(path)}. Check the path.")
    text = read_packed(path, "a table").decode("utf-8-sig", errors="replace")
    rows = [line.split(",") for line in text.splitlines() if line.strip()]
    if len(rows) < 2:
        raise DataError(f"{path}: the file must hold a row of names and others, got {len(rows)}.")
    names, *rows = rows
    for number, row in enumerate(rows, 2):
        if len(row) != len(names):
            raise DataError(
                f"{path}: each row must hold {len(names)} cells as the first, got {len(row)} in "
                f"row {number}. Is the file truncated?"
            )
    columns = [i for i, cell in enumerate(rows[0]) if np.isfinite(_number(cell))]
    if not columns:
        raise DataError(f"{path}: the second row must hold a number, got {rows[0][0]!r}.")
    values = np.array([[_number(row[i]) for i in columns] for row in rows])
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        step, column = int(bad[0][0]), columns[bad[0][1]]
        raise DataError(
            f"{path}: values must be finite numbers, got {rows[step][column]!r} in row {step + 2}, "
            f"column {names[column].strip()}. Fill what is missing."
        )
    return values, [names[i].strip() for i in columns]


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")
