"""Series of any container as one tensor (series, time, channels), NaN where a value is missing."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from linrnn.errors import ArgumentError, ArgumentTypeError, DataError, ShapeError, show
from linrnn.estimators._inputs import as_numbers, refuse_kind, worded
from linrnn.estimators._time_index import check_rising

LAYOUTS = ("time_channels", "channels_time")
"""Meaning of the last two axes of an array, or of both axes of a series."""


class Series(NamedTuple):
    """Series of one number of channels, padded behind their ends."""

    x: Tensor
    """(series, time, channels), float64; NaN is missing or behind the end."""
    lengths: Tensor
    """(series,): how many steps each has."""
    dt: Tensor | None = None
    """(series, time): the time since the step before, 1 behind the end."""

    def rows(self, indices: np.ndarray) -> "Series":
        """Some of the series."""
        return Series(*(None if part is None else part[indices] for part in self))  # type: ignore[arg-type]


def is_table(X: Any) -> bool:
    """Whether it is scikit-learn's to read and to refuse: not of three axes, not ragged."""
    if isinstance(X, Tensor) or (isinstance(X, np.ndarray) and X.dtype != object):
        return bool(X.ndim != 3)
    if isinstance(X, np.ndarray) and X.ndim != 1:
        return True
    if not isinstance(X, (list, tuple, np.ndarray)):
        return True
    shapes = [_shape(x) for x in X]
    several = any(len(shape) == 2 for shape in shapes)
    ragged = len(set(shapes)) > 1 and all(len(shape) == 1 for shape in shapes)
    return not (several or ragged)


def _shape(x: Any) -> tuple[int, ...]:
    """The shape as far as it matters; that of nested lists by their first elements."""
    if not isinstance(x, (list, tuple)):
        return tuple(np.shape(x))
    return (len(x), *(_shape(x[0]) if len(x) else ()))


def of_table(X: Any) -> Series:
    """Series of one channel, from the table (series, time)."""
    x = torch.from_numpy(np.array(X, dtype=np.float64))[..., None]
    return Series(x, torch.full((len(x),), x.shape[1], device="cpu"))


def check_rows_rise(where: str, X: Any) -> None:
    """Raise `ArgumentError` for a list with a series of pandas whose times do not rise."""
    for x in X if isinstance(X, (list, tuple)) else ():
        check_rising(where, "a series of X", x)


def read_series(where: str, X: Any, layout: str | None) -> Series:
    """Series of several channels, or of different lengths.

    Args:
        where: who reads, for messages.
        X: an array (series, time, channels), or a list with an array (time,) or (time, channels)
            for each series.
        layout: "channels_time" if the last two axes are the other way round; None reads them as
            "time_channels" if there are not more channels than steps.

    Raises:
        ShapeError: arrays of other shapes, series of different channels, or None with more channels
            than steps.
        ArgumentTypeError: what is not real numbers.
        DataError: infinity.
    """
    rows = [_one(where, x, layout) for x in as_numbers(where, "X", X)]
    if not rows:
        raise ShapeError(f"{where}: X must hold at least one series, got none.")
    channels = {x.shape[1] for x in rows}
    if len(channels) > 1:
        raise ShapeError(
            f"{where}: all series of X must have the same channels, got {sorted(channels)} with "
            f"layout={layout!r}. A series has shape (time, channels) with 'time_channels', the "
            "default, and (channels, time) with 'channels_time'."
        )
    longest = max(map(len, rows))
    if longest == 0 or 0 in channels:
        raise ShapeError(f"{where}: X must hold series of at least one step, got only empty ones.")
    if layout is None:
        check_layout(where, "X", "(series, channels, time)", longest, *channels)
    padded = np.full((len(rows), longest, *channels), np.nan)
    for place, x in zip(padded, rows, strict=True):
        place[: len(x)] = x
    if np.isinf(padded).any():
        raise DataError(f"{where}: X must be finite or NaN, got infinity.")
    return Series(torch.from_numpy(padded), torch.tensor([len(x) for x in rows], device="cpu"))


def check_layout(where: str, what: str, axes: str, steps: int, channels: int) -> None:
    """Refuse a layout that nobody chose where time and channels look exchanged.

    Raises:
        ShapeError: more channels than steps.
    """
    if channels > steps:
        raise ShapeError(
            f"{where}: {what} must not have more channels than steps unless layout= says which "
            f"axis is time, got {channels} channels and {steps} step{'' if steps == 1 else 's'}. "
            f"Pass layout='channels_time' if it is {axes}, else layout='time_channels'."
        )


def _one(where: str, x: Any, layout: str | None) -> np.ndarray:
    numbers = as_numbers(where, "X", x)
    check_rising(where, "a series of X", x)
    x = np.asarray(numbers)
    refuse_kind(where, "X", x.dtype)
    if x.dtype.kind not in "biuf":
        raise ArgumentTypeError(f"{where}: X must hold real numbers, got {x.dtype}.")
    x = x.astype(np.float64)
    if x.ndim not in (1, 2):
        raise ShapeError(
            f"{where}: a series of X must have shape (time,) or (time, channels), got {x.shape}."
        )
    if x.ndim == 1:
        x = x[:, None]
    elif layout == "channels_time":
        x = x.T
    values: np.ndarray = x
    return values


def with_times(where: str, series: Series, dt: Any) -> Series:
    """The series, and the times between their steps: a row of as many numbers for each.

    Raises:
        ShapeError: rows of other lengths.
        ArgumentError: times that are negative or not finite.
    """
    if dt is None:
        return series
    dt = as_numbers(where, "dt", dt)
    if not hasattr(dt, "__iter__") or isinstance(dt, str):
        raise ShapeError(
            f"{where}: dt must have a row of numbers for each series, got {show(dt)}. Where all "
            "steps are equally long, leave it out."
        )
    with worded(f"{where}: dt must hold numbers"):
        rows = [np.asarray(as_numbers(where, "dt", row), dtype=np.float64) for row in dt]
    lengths = series.lengths.tolist()
    if [row.shape for row in rows] != [(n,) for n in lengths]:
        raise ShapeError(
            f"{where}: dt must have one number for each step of each series, in {len(lengths)} "
            f"rows, got {len(rows)} rows, of lengths {sorted({row.shape for row in rows})[:5]}."
        )
    times = torch.ones(series.x.shape[:2], dtype=torch.float64, device="cpu")
    for place, row in zip(times, rows, strict=True):
        place[: len(row)] = torch.from_numpy(row)
    if not bool((times.isfinite() & (times >= 0)).all()):
        raise ArgumentError(f"{where}: dt must be finite and at least 0, got other numbers.")
    if not bool(times.sum(1).isfinite().all()):
        raise ArgumentError(f"{where}: dt must have a finite sum in each series, got infinity.")
    return series._replace(dt=times)
