"""Series as they come: arrays, and what has an index and columns as pandas' do."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    LinrnnError,
    ShapeError,
    check_in,
    show,
)
from linrnn.estimators._inputs import as_numbers, refuse_kind
from linrnn.estimators._time_index import TimeIndex

_FARTHEST = 1e302  # from 0: forecasts beyond it would soon be infinite
_SCALES = 1e305  # differences are finite


class Series(NamedTuple):
    """Numbers with the names they came with."""

    values: np.ndarray
    """(time, channels) float64."""
    flat: bool
    """Whether it came as (time,)."""
    names: list[Any] | None
    """Names of the channels, if they had any."""
    index: Any = None
    """The pandas index, if it came with one."""
    turned: bool = False
    """Whether it came as (channels, time)."""

    def like(self, values: np.ndarray, index: TimeIndex | None) -> Any:
        """Forecasts (steps, channels) in the form of this series, its index continued."""
        if index is None:
            return self.shaped(values)
        import pandas as pd

        steps = index.after(len(values))
        if self.flat:
            name = None if self.names is None else self.names[0]
            return pd.Series(values[:, 0], steps, name=name)
        return pd.DataFrame(values, steps, columns=self.names)

    def table(self, values: np.ndarray, levels: np.ndarray, index: TimeIndex | None) -> Any:
        """Quantiles (steps, channels, quantiles) in the form of this series."""
        if index is None:
            return self.shaped(values)
        import pandas as pd

        columns = pd.Index(levels, name="quantile")
        if not self.flat:
            pairs = [self.names, levels]
            columns = pd.MultiIndex.from_product(pairs, names=["column", "quantile"])
        return pd.DataFrame(values.reshape(len(values), -1), index.after(len(values)), columns)

    def said(self, channels: list[int]) -> str:
        """Some channels in a sentence; nothing for a series that is alone."""
        if self.flat:
            return ""
        return f"of {show(channels if self.names is None else [self.names[c] for c in channels])} "

    def check_like(self, where: str, what: str, other: "Series") -> None:
        """Raise for other channels than those of the series of ``fit``."""
        n_channels = other.values.shape[1]
        if self.values.shape[1] != n_channels:
            raise ShapeError(
                f"{where}: {what} must have {n_channels} channels as y of fit, got "
                f"{self.values.shape[1]}."
            )
        if None not in (self.names, other.names) and self.names != other.names:
            raise ArgumentError(
                f"{where}: {what} must have the columns {show(other.names)}, got "
                f"{show(self.names)}."
            )

    def shaped(self, values: np.ndarray) -> np.ndarray:
        """An array (steps, channels, ...) with the axes of this series."""
        if self.flat:
            return values[:, 0]
        return values.swapaxes(0, 1) if self.turned else values


def has_index(y: object) -> bool:
    """Whether this is a Series or a DataFrame, told by what it can do."""
    return all(hasattr(y, name) for name in ("index", "to_numpy", "iloc"))


def read_series(where: str, what: str, y: Any, layout: str | None = None) -> Series:
    """The numbers of ``y``.

    Args:
        where, what: for messages.
        y: an array, a list, a tensor, or a Series or DataFrame of pandas.
        layout: of two axes; None is "time_channels".

    Raises:
        ArgumentTypeError: they are no real numbers.
        ArgumentError: a frame with names that are alike, or whose rows are said to be channels.
        ShapeError: neither (time,) nor (time, channels), or no channel.
    """
    if not has_index(y):
        return _read_array(where, what, y, layout == "channels_time")
    if layout == "channels_time" and y.ndim == 2:
        raise ArgumentError(
            f"{where}: layout must be None or 'time_channels' for a frame, whose index is time, "
            f"got 'channels_time'. Pass {what}.T."
        )
    y = as_numbers(where, what, y)
    flat = y.ndim == 1
    columns = None if flat and y.name is None else [y.name] if flat else list(y.columns)
    values = y.to_numpy(dtype=np.float64, na_value=np.nan)
    return Series(_two_axes(where, what, values), flat, columns, y.index)


def _read_array(where: str, what: str, y: Any, transpose: bool) -> Series:
    try:
        array = np.asarray(as_numbers(where, what, y))
    except (ValueError, OverflowError, TypeError) as error:
        if isinstance(error, LinrnnError):
            raise
        raise ShapeError(
            f"{where}: {what} must be one series (time,), or several of one length as columns "
            f"(time, channels), got {_lengths(y)}. Series of different lengths need a forecaster "
            "each; those of one length are numpy.stack(series, axis=1)."
        ) from error
    refuse_kind(where, what, array.dtype)
    if array.dtype.kind not in "biuf":
        raise ArgumentTypeError(
            f"{where}: {what} must hold real numbers, got dtype {array.dtype}. Convert it first, "
            "with numpy.asarray(..., dtype=float)."
        )
    flat = array.ndim == 1
    values = array.astype(np.float64)
    if transpose and array.ndim == 2:
        values = values.T
    return Series(_two_axes(where, what, values), flat, None, turned=transpose and not flat)


def _lengths(y: Any) -> str:
    """Lengths of the series in a list, as far as they have any."""
    try:
        sizes = sorted({len(one) for one in y})
    except TypeError:
        return show(y)
    return f"series of {sizes[0]} to {sizes[-1]} steps"


def _two_axes(where: str, what: str, values: np.ndarray) -> np.ndarray:
    two = values[:, None] if values.ndim == 1 else values
    if two.ndim != 2 or two.shape[1] == 0:
        raise ShapeError(
            f"{where}: {what} must have shape (time,) or (time, channels), got {values.shape}."
        )
    return two


def filled(
    where: str, what: str, values: np.ndarray, missing: str, previous: np.ndarray | None
) -> np.ndarray:
    """The values without NaN.

    Args:
        where, what: for the message.
        values: (time, channels).
        missing: "error", or "ffill" for the last value that was there.
        previous: (channels,), the values before these; None where there are none.

    Raises:
        ArgumentError: infinity; NaN that is not to be filled, or with no value before it.
    """
    check_in(where, "missing", missing, ("error", "ffill"))
    if values.size and np.abs(values).max() <= _FARTHEST:  # which NaN is not
        return values
    far = np.abs(values) > _FARTHEST
    kinds = {"infinity": np.isinf(values), f"more than {_FARTHEST:g}": far, "NaN": np.isnan(values)}
    for kind, bad in kinds.items():
        if not bad.any() or (kind == "NaN" and missing == "ffill"):
            continue
        step, channel = np.argwhere(bad)[0].tolist()
        fix = "missing='ffill' holds the last value." if kind == "NaN" else "Replace it."
        rule = f"lie within {_FARTHEST:g}" if kind.startswith("more") else "be finite"
        raise ArgumentError(
            f"{where}: {what} must {rule}, got {kind} in {int(bad.sum())} places, the first at "
            f"step {step} of channel {channel}. {fix}"
        )
    present = ~np.isnan(values)
    if present.all():
        return values
    if previous is None and not present[0].all():
        channel = int(np.argmin(present[0]))
        raise ArgumentError(
            f"{where}: {what} must begin with a value in each channel to be held, got NaN at step "
            f"0 of channel {channel}. Cut what comes before its first value."
        )
    start = values[0] if previous is None else previous
    continued = np.concatenate([start[None], values])
    place = np.where(np.isnan(continued), 0, np.arange(len(continued))[:, None])
    return np.asarray(np.take_along_axis(continued, np.maximum.accumulate(place), 0)[1:])


def in_scale(where: str, what: str, values: np.ndarray, scale: np.ndarray) -> Tensor:
    """The values (time, channels) in units of each channel's scale.

    Raises:
        ArgumentError: some are so far away that their differences would not be finite.
    """
    with np.errstate(over="ignore"):
        scaled = values / scale
    if (np.abs(scaled) > _SCALES).any():
        raise ArgumentError(
            f"{where}: {what} must lie within {_SCALES:g} standard deviations of the training "
            "part, got values farther away. Fit anew, or leave them out."
        )
    return torch.from_numpy(scaled)
