"""Forecasting: windows of one long series, normalised by its training part."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from linrnn._options.numbers import number
from linrnn.errors import ArgumentError, DataError, UnknownNameError
from linrnn.tasks._kinds.base import Given, Splits, Task
from linrnn.tasks._kinds.drawing import Regression
from linrnn.tasks._kinds.generated import BatchDataset
from linrnn.tasks._reading.frame import Frame, PandasFrame, is_unnamed, open_frame
from linrnn.tasks._reading.known import check_same, checksum, find_kept, kept_text, scale_of
from linrnn.tasks._reading.missing import Missing, forward_filled, masked
from linrnn.tasks._reading.stamps import Stamps, check_rising, date_of, even, read_stamps

KEPT = "series.json"


class History(NamedTuple):
    """A series with the names of its columns, and where its three parts end."""

    values: np.ndarray
    """(time, columns); NaN is a value that is missing."""
    names: list[str]
    ends: tuple[int, int, int]
    """Ends of the training, validation and test part."""
    stamps: Stamps | None = None
    """When the steps were, where that is known."""

    @property
    def unit(self) -> float:
        """The median time between steps of the training part."""
        assert self.stamps is not None
        return float(np.median(np.diff(self.stamps.at[: self.ends[0]])))

    def times(self) -> Tensor | None:
        """(time,) since the step before over the `unit`, where that is not the same for all."""
        if self.stamps is None or even(np.diff(self.stamps.at)):
            return None
        gaps = np.diff(self.stamps.at) / self.unit
        return torch.from_numpy(np.concatenate([[1.0], gaps])).float()


@dataclass(frozen=True, kw_only=True)
class Known:
    """Facts about the training series that a model needs; its run folder stores them."""

    names: tuple[str, ...]
    """Names of the columns."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """Standard deviation of each column over the training part."""
    chance: float
    """The mean squared error of the training mean in the test part."""
    stamps: Literal["none", "numbers", "dates"]
    """How the times of the steps are written, where there are some."""
    unit: float
    """The median time between steps of the training part; 1 without times."""
    even: bool
    """Whether the steps lie evenly, as they do without times."""
    sha256: str
    """Hash of the series and of the ends of its parts."""

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.mean) == len(self.std) > 0:
            raise ValueError("not a mean and a deviation for each of some columns")
        if min(*self.std, self.unit) <= 0:
            raise ValueError("a deviation or a time between steps that is not above 0")


class Windows(BatchDataset):
    """Stretches of a series and what followed each, if any of that is known.

    Args:
        read: (time, d_input), what a model reads.
        target: (time, columns); NaN is not known.
        times: (time,), the `dt` of each step, or None.
        first: step at which the first forecast begins.
        end: step before which the last forecast ends.
        length: steps read.
        horizon: steps to forecast.
    """

    def __init__(
        self,
        read: Tensor,
        target: Tensor,
        times: Tensor | None,
        first: int,
        end: int,
        length: int,
        horizon: int,
    ) -> None:
        self.read, self.targets, self.times = read, target, times
        self.length, self.horizon = length, horizon
        self.starts = torch.arange(first, max(first, end - horizon + 1))
        if target.isnan().any():
            counts = torch.cat([torch.zeros(1), (~target.isnan()).any(1).cumsum(0)])
            self.starts = self.starts[counts[self.starts + horizon] > counts[self.starts]]

    def __len__(self) -> int:
        return len(self.starts)

    def batch(self, indices: Sequence[int] | Tensor) -> tuple[Tensor, ...]:
        """(windows, length, d_input), flat (windows, horizon * columns), dt where there is one."""
        starts = self.starts[torch.as_tensor(indices)][:, None]  # (windows, 1)
        input_rows = starts - self.length + torch.arange(self.length)  # (windows, length)
        target_rows = starts + torch.arange(self.horizon)  # (windows, horizon)
        timed = () if self.times is None else (self.times[input_rows],)
        return self.read[input_rows], self.targets[target_rows].flatten(1), *timed


class ForecastTask(Regression, Task):
    """Read ``length`` steps of a series, answer with the next ``horizon`` of every column."""

    pools = ("last", "mean")

    season: int = 0
    """Steps of a season, for the baseline that repeats the last one; 0: none is known."""

    def __init__(self, options: Any = None, known: Known | None = None) -> None:
        super().__init__(options)
        self._stored = known
        self._reach = 0

    @property
    def reach(self) -> int:
        """Steps that a model is given where there are as many; ``length`` at least."""
        length: int = self.options.length
        return max(self._reach, length)

    def reaching(self, steps: int) -> "ForecastTask":
        """The same task for a model that reads up to ``steps`` steps, where there are as many."""
        other = type(self)(self.options, self._stored)
        other._reach = steps
        return other

    @abstractmethod
    def history(self, download: bool = True) -> History:
        """The columns that are read and forecast."""

    @cached_property
    def known(self) -> Known:
        """The facts that answers need: as the run folder keeps them, else of the series."""
        return self._stored or _find_out(self.history())

    @property
    def time_unit(self) -> float | None:  # type: ignore[override]
        """The usual time between steps, where that is not the same for all."""
        return None if self.known.even else self.known.unit

    def run_files(self) -> Mapping[str, str]:
        """The facts about the series that a model needs, as a file of a run folder."""
        return {KEPT: kept_text(self.known)}

    @classmethod
    def of_run(cls, options: Any, folder: Path) -> "ForecastTask":
        """The task with the facts of a run folder; the series is not needed to use its model."""
        return cls(options, find_kept(folder, KEPT, Known, "the series"))

    def at_length(self, length: int) -> "ForecastTask":
        """The same series in other windows."""
        return type(self)(replace(self.options, length=length), self._stored)

    def normalised(self, download: bool = True) -> tuple[Tensor, History]:
        """The series with mean 0 and variance 1 over its training part.

        Raises:
            DataError: it cannot be used, or is another than the one a run began with.
        """
        history = self.history(download)
        if self._stored is not None:
            where = getattr(self.options, "data", "") or type(self).__name__
            check_same(where, self._stored.sha256, _checksum(history))
        elif "known" not in vars(self):
            self.known = _find_out(history)  # rather than read the file once more
        facts = self.known
        return torch.from_numpy((history.values - facts.mean) / facts.std).float(), history

    @property
    def time(self) -> str:
        """Name of the column of time stamps, where there is one."""
        return getattr(self.options, "time", "")

    def as_stamps(self, times: Sequence[str]) -> list[Any]:
        """Times as a table has them: numbers, or dates of the standard library."""
        if self.known.stamps == "numbers":
            return [number(time) for time in times]
        return [date_of(time) for time in times]

    @property
    def _missing(self) -> Missing:
        how: Missing = getattr(self.options, "missing", "error")
        return how

    @property
    def channels(self) -> int:
        """Columns that are read and forecast."""
        return self.d_input // (2 if self._missing == "mask" else 1)

    def loss(self, y: Tensor, target: Tensor) -> Tensor:
        """The mean squared error of what is known."""
        present = ~target.isnan()
        errors = (y - target.nan_to_num()).square() * present
        return errors.sum() / present.sum().clamp_min(1)

    def scores(self, y: Tensor, target: Tensor) -> Tensor:
        """The mean squared error of each example, of what is known."""
        present = ~target.isnan()
        errors = ((y - target.nan_to_num()).square() * present).flatten(1)  # (batch, numbers)
        return errors.sum(1) / present.flatten(1).sum(1).clamp_min(1)

    @property
    def number_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The columns."""
        return self.known.names

    def scaled(self, x: Tensor) -> Tensor:
        """Scale to mean 0 and variance 1 over the training part; missing values by the options."""
        mean, std = (
            x.new_tensor(v, dtype=torch.float64) for v in (self.known.mean, self.known.std)
        )
        return masked(((x.double() - mean) / std).to(x.dtype), self._missing)

    def arranged(self, x: Tensor) -> Tensor:
        """The last `reach` steps, scaled and with missing values filled."""
        length = self.options.length
        if x.shape[1] < length:
            raise ArgumentError(
                f"{type(self).__name__}: x must have {length} steps at least, got {x.shape[1]}. "
                "A forecast follows from as many as were read in training."
            )
        # a value from before the window may stand for one that is missing in it
        x = forward_filled(x) if self._missing == "ffill" else x
        return self.scaled(x[:, -self.reach :])

    def numbers(self, y: Tensor) -> Tensor:
        """(batch, horizon, columns) in the units of the file."""
        mean, std = (
            y.new_tensor(v, dtype=torch.float64) for v in (self.known.mean, self.known.std)
        )
        return y.double().reshape(len(y), self.options.horizon, self.channels) * std + mean

    def read(self, path: Path) -> Tensor:
        """The last ``length`` steps of a series like the one of the training, (1, time, columns).

        Raises:
            DataError: the file cannot be used, is shorter, or lacks a column.
        """
        return self.read_given(path).x

    def read_given(self, path: Path) -> Given:
        """The same with the times of its steps, and of those that are forecast."""
        return self._last_window(open_frame(path))

    def read_frame(self, where: str, table: Any) -> Given:
        """The last window of a table of pandas, as `read_given` reads it from a file.

        Raises:
            DataError: also for several series one below the other, in levels of the index.
        """
        if table.index.nlevels > 1:
            raise DataError(
                f"{where}: the table must hold one series, got several in the index levels "
                f"{list(table.index.names)}. Read each part of table.groupby(level=0)."
            )
        return self._last_window(PandasFrame(where, table))

    def _last_window(self, frame: Frame) -> Given:
        facts, length = self.known, self.options.length
        required = [*facts.names, *([self.time] if self.time else [])]
        absent = [name for name in required if name not in frame.names]
        if absent or len(frame) < length:
            raise DataError(
                f"{frame.where}: the series must have {length} steps of {', '.join(required)}, got "
                f"{len(frame)} of {', '.join(frame.names)}"
                f"{f', without {absent[0]}' if absent else ''}."
            )
        frame.check_single()
        values = frame.values(facts.names, missing=self._missing != "error")
        x = self.arranged(torch.from_numpy(values)[None]).float()
        if not self.time:
            return Given(x)
        stamps = read_stamps(frame, self.time, None if facts.stamps == "none" else facts.stamps)
        check_rising(frame, self.time, stamps.at, np.arange(len(frame)))
        length = min(self.reach, len(frame))
        gaps = np.diff(stamps.at[-length:]) / facts.unit
        if facts.even:
            if not even(np.append(gaps, 1.0)):
                raise DataError(
                    f"{frame.where}: steps must be {facts.unit:g} apart, in the unit of their "
                    f"stamps, as in training, got {gaps[np.abs(gaps - 1).argmax()] * facts.unit:g}."
                )
            ahead = 1 + np.arange(self.options.horizon)
            return Given(x, times=tuple(map(stamps.write, stamps.at[-1] + facts.unit * ahead)))
        dt = np.concatenate([[1.0], gaps])[-x.shape[1] :]
        if len(stamps.at) > length:
            dt[0] = (stamps.at[-length] - stamps.at[-length - 1]) / facts.unit
        return Given(x, dt=torch.from_numpy(dt).float()[None])  # (1, time)

    def datasets(self) -> Splits:
        """Windows of each part; what is read may begin in the part before."""
        series, history = self.normalised()
        length, horizon = self.reach, self.options.horizon
        begins = (length, *history.ends[:2])
        read = forward_filled(series[None]) if self._missing == "ffill" else series[None]
        read = masked(read, self._missing)[0]
        parts = [
            Windows(read, series, history.times(), begin, end, length, horizon)
            for begin, end in zip(begins, history.ends, strict=True)
        ]
        if min(map(len, parts)) < 1 or begins[1] < length:
            raise DataError(
                f"{type(self).__name__}: each part of the series must hold a window of {length} "
                f"and {horizon} steps, got parts that end at the steps {history.ends}. Choose a "
                "smaller length or horizon (--task.length, --task.horizon), or a longer series."
            )
        return Splits(*parts)

    def baselines(self) -> dict[str, float]:
        """The last step repeated, and the last season where its length is known.

        None where values may be missing.
        """
        if self._missing != "error":
            return {}
        series, history = self.normalised(download=False)
        _, begin, end = history.ends
        values, horizon = series.double().numpy(), self.options.horizon
        starts = np.arange(begin, end - horizon + 1)
        spans = {"the last step": 1} | ({"the last season": self.season} if self.season else {})
        return {
            name: _repeating(values, starts, horizon, span)
            for name, span in spans.items()
            if len(starts) and span <= begin
        }

    def example(self) -> str:
        """The end of what is read and the beginning of what followed; nothing is downloaded."""
        series, history = self.normalised(download=False)
        first = history.ends[1]
        inputs, targets = (
            " ".join(f"{v:.2f}" for v in series[rows, -1].tolist())
            for rows in (slice(first - 8, first), slice(first, first + 8))
        )
        return f"input, of {history.names[-1]} ... {inputs}\ntarget {targets} ..."


def _repeating(values: np.ndarray, starts: np.ndarray, horizon: int, span: int) -> float:
    """The mean squared error of repeating the last ``span`` steps before each of ``starts``."""
    total = 0.0
    for ahead in range(horizon):
        last = starts - span + ahead % span
        total += float(np.square(values[starts + ahead] - values[last]).mean())
    return total / horizon


def read_history(path: Path, columns: Sequence[str] = ()) -> tuple[np.ndarray, list[str]]:
    """The numbers (time, columns) of a file, and the names of its columns.

    Args:
        path: see `open_frame`.
        columns: names of those that are read; none: all in which any cell is a number.

    Raises:
        DataError: the file cannot be used, or such a column has a cell that is no finite number.
        UnknownNameError: no such column with numbers.
    """
    frame = open_frame(path)
    names = chosen_columns(frame, columns)
    return frame.values(names), names


def chosen_columns(frame: Frame, columns: Sequence[str], but: str = "") -> list[str]:
    """Names of the columns that are read.

    Args:
        frame: with them.
        columns: their names; none: all in which any cell is a number.
        but: the name of one that is not.

    Raises:
        DataError: no column holds numbers.
        UnknownNameError: no such column with numbers.
    """
    names = [name for name in frame.with_numbers() if name != but]
    for name in () if columns else names:
        # a column that nobody named is often the count of rows
        if is_unnamed(name):
            raise DataError(
                f"{frame.where}: each column must have a name, got {name!r} with "
                f"{frame.cells(name)[0]!r:.60}. Name those that are to be read, --task.columns, or "
                "write the table with index=False."
            )
    for name in columns:
        if name not in names:
            raise UnknownNameError("column of numbers", name, names)
    return list(columns) or names


def _find_out(history: History) -> Known:
    """Measure what answers need to know of a series.

    Raises:
        DataError: a column without a value in the training part.
    """
    train = history.values[: history.ends[0]]
    empty = np.flatnonzero(np.isnan(train).all(0))
    if len(empty):
        raise DataError(
            "forecast: each column must have a value in the training part, got none of "
            f"{history.names[empty[0]]}. Choose other columns."
        )
    mean, std = scale_of(train)
    with np.errstate(over="ignore"):  # what is not finite is not kept
        errors = ((history.values[history.ends[1] :] - mean) / std) ** 2
    stamps = history.stamps
    return Known(
        names=tuple(history.names),
        mean=tuple(mean.tolist()),
        std=tuple(std.tolist()),
        chance=1.0 if np.isnan(errors).all() else float(np.nanmean(errors)),
        stamps="none" if stamps is None else stamps.kind,
        unit=1.0 if stamps is None or len(stamps.at) < 2 else history.unit,
        even=history.times() is None,
        sha256=_checksum(history),
    )


def _checksum(history: History) -> str:
    at = [] if history.stamps is None else [history.stamps.at]
    return checksum([*history.names, np.array(history.ends, np.float64), *at, history.values])
