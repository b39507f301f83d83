"""Labelled sequences of a user's files: read, split, scaled, and what is kept of them."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from linrnn._options.numbers import number
from linrnn.errors import DataError
from linrnn.tasks._kinds.base import Given
from linrnn.tasks._reading.files import chosen
from linrnn.tasks._reading.frame import Frame, open_frame
from linrnn.tasks._reading.known import checksum, scale_of
from linrnn.tasks._reading.long import LongLayout, read_long
from linrnn.tasks._reading.missing import Missing, forward_filled, masked
from linrnn.tasks._reading.rows import numbers_of
from linrnn.tasks._reading.series import Layout, Series, check_series, read_pair, read_series
from linrnn.tasks._reading.stamps import even

T = TypeVar("T")

_TRAIN = re.compile(r"_TRAIN\.(ts|tsv|arff)")  # as the archives name their files
_SPLIT_SEED = 0  # the split is part of the task: never the run's seed

Parts = tuple[Series, Series, Series]
"""For training, validation and testing."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """Facts about the training sequences that a model needs; its run folder stores them."""

    columns: tuple[str, ...]
    """Names of the channels where a row of the file is a step, else none."""
    label: str
    """Name of what is asked where a row is a sequence and the file has names, else empty."""
    width: int
    """Numbers of each sequence where all have as many, else 0."""
    longest: int
    """Steps."""
    classes: tuple[str, ...]
    """In order; none in regression."""
    chance: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """Standard deviation of each channel over the training part; 1 without normalisation."""
    asked: tuple[float, float]
    """Mean and deviation of the targets in the training part; 0 and 1 of classes."""
    stamps: Literal["none", "numbers", "dates"]
    """How the times of the steps are written, where there are some."""
    unit: float
    """The median time between steps of the training part; 1 without times."""
    even: bool
    """Whether the steps of all sequences lie evenly, as they do without times."""
    sha256: str
    """Hash of the sequences."""

    def __post_init__(self) -> None:
        if not len(self.mean) == len(self.std) > 0 or len(self.columns) not in (0, len(self.mean)):
            raise ValueError("not a mean, a deviation and a name for each of some channels")
        if min(*self.std, self.asked[1], self.unit, self.longest) <= 0 or self.width < 0:
            raise ValueError("a deviation, a time between steps or a length that is not above 0")

    @property
    def channels(self) -> int:
        """Numbers a step in the units of the data."""
        return len(self.mean)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How sequences are read."""

    channels: int
    label_first: bool
    missing: Missing
    labels: str
    """A file of them, for one of x alone."""
    long: LongLayout | None
    """Layout of tables with a step per row; None: a row is a sequence."""

    def parts(self, path: Path) -> dict[str, Series]:
        """The parts of a file with labels: see `read_series`."""
        may = self.missing != "error"
        if self.long is not None:
            return {"train": self._checked(open_frame(path), self.long)}
        if path.suffix.lower() == ".npy":
            return {"train": read_pair(path, self.labels, may)}
        return read_series(path, Layout(self.channels, self.label_first, missing=may))

    def test(self, path: Path, train: Series) -> Series:
        """A second file with labels, whose columns are found by their names."""
        if self.long is None:
            return self.parts(path)["train"]
        return self._checked(open_frame(path), self.long, train.columns, train.stamps)

    def asked(self, path: Path, known: Known) -> Series:
        """Sequences of a file; targets may be in it, and are not read."""
        if self.long is not None:
            return self.frame(open_frame(path), known)
        may = self.missing != "error"
        layout = Layout(self.channels, self.label_first, False, may, known.label, known.width)
        return read_series(path, layout)["train"]

    def frame(self, frame: Frame, known: Known) -> Series:
        """Sequences of a table with a step a row."""
        assert self.long is not None
        stamps = None if known.stamps == "none" else known.stamps
        return self._checked(frame, replace(self.long, target=""), known.columns, stamps)

    def _checked(
        self,
        frame: Frame,
        layout: LongLayout,
        columns: tuple[str, ...] = (),
        stamps: Literal["numbers", "dates"] | None = None,
    ) -> Series:
        """The sequences of a table, with the columns of the training where those are known."""
        if columns:
            layout.check_like_training(frame, columns)
            layout = replace(layout, columns=columns)
        series = read_long(frame, layout, stamps)
        check_series(frame.where, series, layout.missing)
        return series


class Inputs:
    """Sequences as a model reads them.

    Args:
        known: of the training data.
        missing: how a missing value is filled.
        times: what becomes of the time between steps.
    """

    def __init__(self, known: Known, missing: Missing, times: str) -> None:
        self.known, self.missing, self.times = known, missing, times

    @property
    def d_input(self) -> int:
        """Channels of what a model reads."""
        copies = 2 if self.missing == "mask" else 1
        return self.known.channels * copies + int(self.times == "column")

    def scaled(self, x: Tensor) -> Tensor:
        """(batch, time, channels) in the units of the data, as a model reads them."""
        mean, std = (
            torch.tensor(v, dtype=torch.float64) for v in (self.known.mean, self.known.std)
        )
        return masked(((x.double() - mean) / std).to(x.dtype), self.missing)

    def given(self, series: Series, steps: int | None = None) -> Given:
        """Sequences padded to the longest of them, or to ``steps``."""
        lengths = torch.tensor([len(x) for x in series.x])
        steps = steps or int(lengths.max())
        # of large numbers that differ little, float32 would keep nothing
        shape = (len(series.x), steps, self.known.channels)
        x = torch.full(shape, torch.nan, dtype=torch.float64)
        for row, sequence in zip(x, series.x, strict=True):
            row[: len(sequence)] = torch.from_numpy(sequence)
        if self.missing == "ffill":
            x = forward_filled(x)
        x = self.scaled(x).float()
        dt = self._times(series, steps)
        if self.times == "column" and dt is not None:
            x = torch.cat([x, dt[..., None]], -1)  # (batch, time, channels + 1)
        padding = torch.arange(steps) >= lengths[:, None]  # (batch, time)
        x = x.masked_fill(padding[..., None], 0)
        return Given(
            x,
            lengths if padding.any() else None,
            dt if self.times == "dt" else None,
            tuple(series.ids or ()),
        )

    def check_stamps(self, where: str, series: Series) -> None:
        """Raise `DataError` for sequences without times as those of the training have."""
        stamps = self.known.stamps
        if self.times == "none" or stamps == "none":
            return
        if series.gaps is None:
            raise DataError(
                f"{where}: steps must have time stamps, as in training, got none. Train with "
                "--task.times none where there may be none."
            )
        if series.stamps != stamps:
            raise DataError(
                f"{where}: time stamps must be {stamps}, as in training, got {series.stamps}."
            )

    def _times(self, series: Series, steps: int) -> Tensor | None:
        """The time since the step before as part of the usual one; 1 at the first step."""
        if series.gaps is None or self.times == "none":
            return None
        if self.times == "dt" and self.known.even:
            self._check_even(series)
            return None
        dt = torch.ones(len(series.x), steps)
        for row, gaps in zip(dt, series.gaps, strict=True):
            row[1 : len(gaps) + 1] = torch.from_numpy(gaps / self.known.unit)
        return dt

    def _check_even(self, series: Series) -> None:
        unit = self.known.unit
        gaps = np.append(_gaps(series), unit)
        if not even(gaps):
            wrong = gaps[np.abs(gaps - unit).argmax()]
            raise DataError(
                f"table: steps must be {unit:g} apart, in the unit of their stamps, as in "
                f"training, got {wrong:g}. Train with --task.times column where they may not be."
            )


def find_out(path: str, parts: Parts, *, normalise: bool, classes: bool) -> Known:
    """Measure what a model needs to know of labelled sequences.

    Args:
        path: of their file, for messages.
        parts: all of them.
        normalise: whether channels are brought to mean 0 and variance 1.
        classes: whether what is asked is a class.

    Raises:
        DataError: a channel without a value, or a target that is no number where one is needed.
    """
    train, _, test = parts
    steps = np.concatenate(train.x).astype(np.float64)
    empty = np.flatnonzero(np.isnan(steps).all(0))
    if len(empty):
        raise DataError(
            f"{path}: each channel must have a value in the training part, got none in "
            f"channel {empty[0] + 1}. Leave it out."
        )
    mean, std = (
        scale_of(steps) if normalise else (np.zeros(steps.shape[1]), np.ones(steps.shape[1]))
    )
    gaps = [_gaps(part) for part in parts]
    lengths = {len(x) for part in parts for x in part.x}
    named = in_order({label for part in parts for label in part.y}) if classes else []
    scale = (0.0, 1.0)
    if classes:
        chance = test.y.count(max(named, key=train.y.count)) / len(test.y)
    else:
        truth, numbers = (answers(path, part.y) for part in (test, train))
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is not kept
            scale = (float(numbers.mean()), float(numbers.std()) or 1.0)
            chance = float(np.mean(((truth - scale[0]) / scale[1]) ** 2))
    return Known(
        columns=train.columns,
        label=train.label,
        width=max(lengths) * steps.shape[1] if len(lengths) == 1 else 0,
        longest=max(lengths),
        classes=tuple(named),
        chance=chance,
        mean=tuple(mean.tolist()),
        std=tuple(std.tolist()),
        asked=scale,
        stamps=train.stamps or "none",
        unit=float(np.median(gaps[0])) if len(gaps[0]) else 1.0,
        even=even(np.concatenate(gaps)),
        sha256=parts_checksum(parts),
    )


def parts_checksum(parts: Parts) -> str:
    """The checksum of sequences, their targets and their times."""
    contents: list[np.ndarray | str] = []
    for part in parts:
        contents += [*part.columns, *part.y, *part.x, *(part.gaps or ())]
    return checksum(contents)


def answers(path: str, labels: Sequence[str]) -> np.ndarray:
    """Parse the numbers that are asked in regression.

    Raises:
        DataError: no finite number.
    """
    values = numbers_of(labels)
    if not np.isfinite(values).all():
        bad = labels[int(np.argmin(np.isfinite(values)))]
        raise DataError(
            f"{path}: the target in regression must be a finite number, got {bad!r}. For "
            "classes pass --task.kind classification."
        )
    return values


def _gaps(series: Series) -> np.ndarray:
    return np.concatenate(series.gaps) if series.gaps else np.zeros(0)


def in_order(labels: set[str]) -> list[str]:
    """Numbers by their size, else words by the alphabet."""
    if all(number(label) is not None for label in labels):
        return sorted(labels, key=lambda label: number(label) or 0.0)
    return sorted(labels)


def load_parts(reading: Reading, data: str, test_data: str, *, classes: bool) -> Parts:
    """The sequences of a file, split.

    Args:
        reading: how.
        data: the file.
        test_data: a second one; empty: X_TEST.ts beside X_TRAIN.ts, else a part of the first.
        classes: whether what is asked is a class.

    Raises:
        DataError: it cannot be used, or the test part is of another kind.
    """
    path = Path(data).expanduser()
    parts = reading.parts(path)
    test_path = path.with_name(_TRAIN.sub(r"_TEST.\1", path.name))
    if test_data:
        test_path = Path(test_data).expanduser()
    elif test_path != path and os.path.lexists(test_path):
        chosen("table", test_path, path.parent)
    train = parts["train"]
    if test_path != path and (test_data or test_path.is_file()):
        parts["test"] = reading.test(test_path, train)
    test = parts.get("test")
    if test is not None and test.x[0].shape[1] != train.x[0].shape[1]:
        raise DataError(
            f"{test_path}: sequences must have {train.x[0].shape[1]} channels as in {path}, got "
            f"{test.x[0].shape[1]}."
        )
    new = set(test.y) - set(train.y) if test is not None else set()
    if new and classes:
        raise DataError(
            f"{test_path}: classes must be among those of the training data, got {min(new)!r}."
        )
    return _split(data, train, test)


def _split(where: str, train: Series, test: Series | None) -> Parts:
    """A tenth of every class for validation, and a fifth for testing if nothing else is."""
    if len(train.x) < 10:
        raise DataError(f"{where}: there must be at least 10 sequences, got {len(train.x)}.")
    order = np.random.RandomState(_SPLIT_SEED).permutation(len(train.x))
    order = order[np.argsort(np.array(train.y)[order], kind="stable")]
    slot = np.arange(len(order)) % 10
    if test is None:
        tested = _take(train, order[np.isin(slot, (0, 5))])
        return (
            _take(train, order[~np.isin(slot, (0, 1, 5))]),
            _take(train, order[slot == 1]),
            tested,
        )
    return _take(train, order[slot != 1]), _take(train, order[slot == 1]), test


def _take(series: Series, rows: Sequence[int] | np.ndarray) -> Series:
    def select(part: list[T]) -> list[T]:
        return [part[i] for i in rows]

    return series._replace(
        x=select(series.x),
        y=select(series.y),
        gaps=None if series.gaps is None else select(series.gaps),
        ids=None if series.ids is None else select(series.ids),
    )
