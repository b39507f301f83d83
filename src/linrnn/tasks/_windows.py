"""Forecasting: windows of one long series, normalised by its training part."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from linrnn._door import what_is
from linrnn._numbers import like_number, number
from linrnn.errors import ArgumentError, DataError, UnknownNameError
from linrnn.tasks._base import Splits, Task
from linrnn.tasks._drawing import Regression
from linrnn.tasks._files import read_packed
from linrnn.tasks._generated import BatchDataset
from linrnn.tasks._table import filled_lines, split_row


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

    def scaled(self, x: Tensor) -> Tensor:
        """With mean 0 and variance 1 over the training part."""
        mean, std = (torch.from_numpy(v) for v in self._scale(self.history()))
        return ((x.double() - mean) / std).to(x.dtype)

    def arranged(self, x: Tensor) -> Tensor:
        """The last ``length`` steps."""
        length = self.options.length
        if x.shape[1] < length:
            raise ArgumentError(
                f"{type(self).__name__}: x must have {length} steps at least, got {x.shape[1]}. "
                "A forecast follows from as many as were read in training."
            )
        return self.scaled(x[:, -length:])

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
        file, known = HistoryFile(path), self.history()
        missing = [name for name in known.names if name not in file.names]
        if missing or len(file) < self.options.length:
            raise DataError(
                f"{path}: the series must have {self.options.length} steps of "
                f"{', '.join(known.names)}, got {len(file)} of {', '.join(file.names)}."
            )
        mean, std = self._scale(known)
        steps = (file.values(known.names)[-self.options.length :] - mean) / std
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


def read_history(path: Path, columns: Sequence[str] = ()) -> tuple[np.ndarray, list[str]]:
    """The numbers (time, columns) of a file, and the names of its columns.

    Args:
        path: see `HistoryFile`.
        columns: names of those that are read; none: all in which any cell is a number.

    Raises:
        DataError: the file cannot be used, or such a column has a cell that is no finite number.
        UnknownNameError: no such column with numbers.
    """
    file = HistoryFile(path)
    names = file.with_numbers()
    for name in columns:
        if name not in names:
            raise UnknownNameError("column", name, names)
    names = list(columns) or names
    return file.values(names), names


class HistoryFile:
    """A table with a step in each row and the names of its columns in the first.

    Args:
        path: a .csv, or one packed as .gz or .xz.

    Raises:
        DataError: missing, damaged, two columns of one name, or a row of another width.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise DataError(
                f"{path}: the data file must exist, got {what_is(path)}. Check the path."
            )
        self.path = path
        self._lines = filled_lines(path, read_packed(path, "a table"))
        self._rows = [
            [cell.strip() for cell in split_row(path, place, line)] for place, line in self._lines
        ]
        if len(self._rows) < 2:
            raise DataError(
                f"{path}: the file must hold a row of names and others, got {len(self._rows)}."
            )
        self.names = self._rows.pop(0)
        """Of all columns."""
        self._lines.pop(0)
        self._check()

    def _check(self) -> None:
        for (place, _), row in zip(self._lines, self._rows, strict=True):
            if len(row) != len(self.names):
                raise DataError(
                    f"{self.path}: each row must hold {len(self.names)} cells as the first, got "
                    f"{len(row)} in line {place}. Is the file truncated?"
                )
        twice = [name for i, name in enumerate(self.names) if name in self.names[:i]]
        if twice:
            raise DataError(
                f"{self.path}: each column must have a name of its own, got {twice[0]!r:.60} twice."
            )

    def __len__(self) -> int:
        return len(self._rows)

    def with_numbers(self) -> list[str]:
        """Names of the columns in which any cell may be meant as a number; a date is none."""
        columns = zip(*self._rows, strict=True)
        names = [
            name
            for name, cells in zip(self.names, columns, strict=True)
            if any(map(like_number, cells))
        ]
        if not names:
            raise DataError(
                f"{self.path}: a column must hold numbers, got only {', '.join(self.names):.60}."
            )
        return names

    def values(self, names: Sequence[str]) -> np.ndarray:
        """The numbers of some columns, (time, columns).

        Raises:
            DataError: a cell of theirs that is empty or no finite number.
        """
        places = [self.names.index(name) for name in names]
        cells = [[number(row[place]) for place in places] for row in self._rows]
        values = np.array(cells, np.float64).reshape(len(cells), len(names))  # None becomes NaN
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            step, column = bad[0].tolist()
            raise DataError(
                f"{self.path}: values must be finite numbers, got "
                f"{self._rows[step][places[column]]!r:.60} in line {self._lines[step][0]}, column "
                f"{names[column]}. Fill what is missing, or choose other columns."
            )
        return values
