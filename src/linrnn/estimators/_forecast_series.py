"""Series as they come: arrays, and what has an index and columns as pandas' do."""

from typing import Any, NamedTuple

import numpy as np

from linrnn.errors import ArgumentError, ArgumentTypeError, ShapeError, check_in, show
from linrnn.estimators._time_index import TimeIndex


class Series(NamedTuple):
    """Numbers with the names they came with."""

    values: np.ndarray
    """(time, channels) float64."""
    flat: bool
    """Whether it came as (time,)."""
    names: list[Any] | None
    """Of the channels, if they had some."""
    index: Any = None
    """The pandas index, if it came with one."""

    def like(self, values: np.ndarray, index: TimeIndex | None) -> Any:
        """Forecasts (steps, channels) in the form of this series, its index continued."""
        if index is None:
            return values[:, 0] if self.flat else values
        import pandas as pd

        steps = index.after(len(values))
        if self.flat:
            name = None if self.names is None else self.names[0]
            return pd.Series(values[:, 0], steps, name=name)
        return pd.DataFrame(values, steps, columns=self.names)


def has_index(y: object) -> bool:
    """Whether this is a Series or a DataFrame, told by what it can do."""
    return all(hasattr(y, name) for name in ("index", "to_numpy", "iloc"))


def read_series(where: str, what: str, y: Any) -> Series:
    """The numbers of ``y``.

    Raises:
        ArgumentTypeError: they are no real numbers.
        ShapeError: neither (time,) nor (time, channels), or no channel.
    """
    if not has_index(y):
        return _read_array(where, what, y)
    flat = y.ndim == 1
    columns = [y.name] if flat else list(y.columns)
    kinds = [y.dtype] if flat else list(y.dtypes)
    for name, kind in zip(columns, kinds, strict=True):
        if getattr(kind, "kind", "O") not in "iuf":
            raise ArgumentTypeError(
                f"{where}: each column of {what} must hold numbers, got {kind} in "
                f"{show(name)}. Choose columns: {what}[[...]]."
            )
    values = y.to_numpy(dtype=np.float64, na_value=np.nan)
    named = None if flat and y.name is None else columns
    return Series(_two_axes(where, what, values), flat, named, y.index)


def _read_array(where: str, what: str, y: Any) -> Series:
    array = np.asarray(y)
    if array.dtype.kind not in "iuf":
        raise ArgumentTypeError(
            f"{where}: {what} must hold real numbers, got dtype {array.dtype}. Convert it first, "
            "with numpy.asarray(..., dtype=float)."
        )
    values = array.astype(np.float64)
    return Series(_two_axes(where, what, values), array.ndim == 1, None)


def _two_axes(where: str, what: str, values: np.ndarray) -> np.ndarray:
    two = values[:, None] if values.ndim == 1 else values
    if two.ndim != 2 or two.shape[1] == 0:
        raise ShapeError(
            f"{where}: {what} must have shape (time,) or (time, channels), got {values.shape}."
        )
    return two


def filled(
    where: str, what: str, values: np.ndarray, missing: str, before: np.ndarray | None
) -> np.ndarray:
    """The values without NaN.

    Args:
        where, what: for the message.
        values: (time, channels).
        missing: "error", or "ffill" for the last value that was there.
        before: (channels,), the values before these; None where there are none.

    Raises:
        ArgumentError: infinity; NaN that is not to be filled, or with no value before it.
    """
    check_in(where, "missing", missing, ("error", "ffill"))
    for kind, bad in (("infinity", np.isinf(values)), ("NaN", np.isnan(values))):
        if not bad.any() or (kind == "NaN" and missing == "ffill"):
            continue
        step, channel = np.argwhere(bad)[0].tolist()
        fix = "missing='ffill' holds the last value." if kind == "NaN" else "Replace it."
        raise ArgumentError(
            f"{where}: {what} must be finite, got {kind} in {int(bad.sum())} places, the first at "
            f"step {step} of channel {channel}. {fix}"
        )
    there = ~np.isnan(values)
    if there.all():
        return values
    if before is None and not there[0].all():
        channel = int(np.argmin(there[0]))
        raise ArgumentError(
            f"{where}: {what} must begin with a value in each channel to be held, got NaN at step "
            f"0 of channel {channel}. Cut what comes before its first value."
        )
    start = values[0] if before is None else before
    whole = np.concatenate([start[None], values])
    place = np.where(np.isnan(whole), 0, np.arange(len(whole))[:, None])
    return np.asarray(np.take_along_axis(whole, np.maximum.accumulate(place), 0)[1:])
