"""Labelled sequences of a user's files, split and scaled."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linrnn._numbers import number
from linrnn.errors import DataError
from linrnn.tasks._base import Given
from linrnn.tasks._files import chosen
from linrnn.tasks._frame import Frame, open_frame
from linrnn.tasks._long import LongLayout, read_long
from linrnn.tasks._missing import Missing, forward_filled, masked
from linrnn.tasks._series import Layout, Series, check_series, read_pair, read_series
from linrnn.tasks._stamps import even

_TRAIN = re.compile(r"_TRAIN\.(ts|tsv|arff)")  # as the archives name their files
_SPLIT_SEED = 0  # the split is part of the task: never the run's seed


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How sequences are read."""

    channels: int
    label_first: bool
    missing: Missing
    labels: str
    """A file of them, for one of x alone."""
    long: LongLayout | None
    """Of tables with a step a row; None: a row is a sequence."""

    def file(self, path: Path, *, labelled: bool = True) -> dict[str, Series]:
        """The parts of a file: see `read_series`."""
        if self.long is not None:
            return {"train": self.frame(open_frame(path), labelled=labelled)}
        may = self.missing != "error"
        if labelled and path.suffix.lower() == ".npy":
            return {"train": read_pair(path, self.labels, may)}
        return read_series(path, Layout(self.channels, self.label_first, labelled, may))

    def frame(self, frame: Frame, *, labelled: bool) -> Series:
        """The sequences of a table with a step a row; a target that is not needed is not read."""
        assert self.long is not None
        series = read_long(frame, self.long if labelled else self.long.without_target(frame))
        check_series(frame.where, series, self.long.missing)
        return series


class Labelled:
    """The sequences of a file in memory, and what follows from them.

    Args:
        reading: how.
        path: of the file.
        test: a second one; empty: X_TEST.ts beside X_TRAIN.ts, else a part of the first.
        normalise: whether channels are brought to mean 0 and variance 1.
        classes: whether what is asked is a class.
        times: what becomes of the time between steps.

    Attributes:
        parts: training, validation and test sequences.
        classes: in order.
        uneven: whether the steps of any sequence lie unevenly.
        unit: the median time between steps in the training part.

    Raises:
        DataError: it cannot be used, or the test part is of another kind.
    """

    def __init__(
        self, reading: Reading, path: str, test: str, normalise: bool, classes: bool, times: str
    ) -> None:
        self.reading, self.times = reading, times
        self.parts = _split(path, *_read(reading, path, test, classes))
        self.channels: int = self.parts[0].x[0].shape[1]
        self.longest = max(len(x) for part in self.parts for x in part.x)
        self.classes = in_order({label for part in self.parts for label in part.y})
        steps = np.concatenate(self.parts[0].x).astype(np.float64)
        empty = np.flatnonzero(np.isnan(steps).all(0))
        if len(empty):
            raise DataError(
                f"{path}: each channel must have a value in the training part, got none in "
                f"channel {empty[0] + 1}. Leave it out."
            )
        self.mean, self.std = np.nanmean(steps, 0), np.nanstd(steps, 0)
        if not normalise:
            self.mean, self.std = np.zeros(self.channels), np.ones(self.channels)
        self.std[self.std == 0] = 1
        gaps = [_gaps(part) for part in self.parts]
        self.unit = float(np.median(gaps[0])) if len(gaps[0]) else 1.0
        self.uneven = not even(np.concatenate(gaps))
        if times == "column" and self.parts[0].gaps is None:
            raise DataError(
                f"{path}: the file must have time stamps where --task.times is column, got none."
            )
        self.check_stamps(test or path, self.parts[2])

    @property
    def d_input(self) -> int:
        """Channels of what a model reads."""
        copies = 2 if self.reading.missing == "mask" else 1
        return self.channels * copies + int(self.times == "column")

    def scaled(self, x: Tensor) -> Tensor:
        """(batch, time, channels) in the units of the data, as a model reads them."""
        mean, std = torch.from_numpy(self.mean), torch.from_numpy(self.std)
        return masked(((x.double() - mean) / std).to(x.dtype), self.reading.missing)

    def given(self, series: Series, steps: int | None = None) -> Given:
        """Sequences padded to the longest of them, or to ``steps``."""
        lengths = torch.tensor([len(x) for x in series.x])
        steps = steps or int(lengths.max())
        x = torch.full((len(series.x), steps, self.channels), torch.nan)
        for row, sequence in zip(x, series.x, strict=True):
            row[: len(sequence)] = torch.from_numpy(sequence)
        if self.reading.missing == "ffill":
            x = forward_filled(x)
        x = self.scaled(x.double()).float()
        dt = self._times(series, steps)
        if self.times == "column" and dt is not None:
            x = torch.cat([x, dt[..., None]], -1)
        padding = torch.arange(steps) >= lengths[:, None]
        x = x.masked_fill(padding[..., None], 0)
        return Given(
            x,
            lengths if padding.any() else None,
            dt if self.times == "dt" else None,
            tuple(series.ids or ()),
        )

    def check_stamps(self, where: str, series: Series) -> None:
        """Raise `DataError` for sequences without times where those of the training have some."""
        if self.times != "none" and self.parts[0].gaps is not None and series.gaps is None:
            raise DataError(
                f"{where}: steps must have time stamps, as in training, got none. Train with "
                "--task.times none where there may be none."
            )

    def _times(self, series: Series, steps: int) -> Tensor | None:
        """The time since the step before as part of the usual one; 1 at the first step."""
        if series.gaps is None or self.times == "none":
            return None
        if self.times == "dt" and not self.uneven:
            self._check_even(series)
            return None
        dt = torch.ones(len(series.x), steps)
        for row, gaps in zip(dt, series.gaps, strict=True):
            row[1 : len(gaps) + 1] = torch.from_numpy(gaps / self.unit)
        return dt

    def _check_even(self, series: Series) -> None:
        found = np.append(_gaps(series), self.unit)
        if not even(found):
            wrong = found[np.abs(found - self.unit).argmax()]
            raise DataError(
                f"table: steps must be {self.unit:g} apart, in the unit of their stamps, as in "
                f"training, got {wrong:g}. Train with --task.times column where they may not be."
            )


def _gaps(series: Series) -> np.ndarray:
    return np.concatenate(series.gaps) if series.gaps else np.zeros(0)


def in_order(labels: set[str]) -> list[str]:
    """Numbers by their size, else words by the alphabet."""
    if all(number(label) is not None for label in labels):
        return sorted(labels, key=lambda label: number(label) or 0.0)
    return sorted(labels)


def _read(
    reading: Reading, data: str, test_data: str, classes: bool
) -> tuple[Series, Series | None]:
    """The training and, if there is one, the test part."""
    path = Path(data).expanduser()
    parts = reading.file(path)
    beside = path.with_name(_TRAIN.sub(r"_TEST.\1", path.name))
    if test_data:
        beside = Path(test_data).expanduser()
    elif beside != path and os.path.lexists(beside):
        chosen("table", beside, path.parent)
    if beside != path and (test_data or beside.is_file()):
        parts["test"] = reading.file(beside)["train"]
    train, test = parts["train"], parts.get("test")
    if test is not None and test.x[0].shape[1] != train.x[0].shape[1]:
        raise DataError(
            f"{beside}: sequences must have {train.x[0].shape[1]} channels as in {path}, got "
            f"{test.x[0].shape[1]}."
        )
    new = set(test.y) - set(train.y) if test is not None else set()
    if new and classes:
        raise DataError(
            f"{beside}: classes must be among those of the training data, got {min(new)!r}."
        )
    return train, test


def _split(where: str, train: Series, test: Series | None) -> tuple[Series, Series, Series]:
    """A tenth of every class for validation, and a fifth for testing if nothing else is."""
    if len(train.x) < 10:
        raise DataError(f"{where}: there must be 10 sequences to split, got {len(train.x)}.")
    order = np.random.RandomState(_SPLIT_SEED).permutation(len(train.x))
    order = order[np.argsort(np.array(train.y)[order], kind="stable")]
    slot = np.arange(len(order)) % 10
    if test is None:
        held = _take(train, order[np.isin(slot, (0, 5))])
        return _take(train, order[~np.isin(slot, (0, 1, 5))]), _take(train, order[slot == 1]), held
    return _take(train, order[slot != 1]), _take(train, order[slot == 1]), test


def _take(series: Series, rows: Sequence[int] | np.ndarray) -> Series:
    def some(part: list[Any] | None) -> list[Any] | None:
        return None if part is None else [part[i] for i in rows]

    return Series(some(series.x), some(series.y), some(series.gaps), some(series.ids))  # type: ignore[arg-type]
