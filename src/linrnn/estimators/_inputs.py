"""Inputs of an estimator, read without a loss; bad ones raise errors of `linrnn.errors`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import NotFittedError
from torch import Tensor

from linrnn.errors import ArgumentError, ArgumentTypeError, LinrnnError, ShapeError, show

_LONGEST = 400  # letters of somebody else's message


@contextmanager
def worded(where: str, *arguments: str) -> Iterator[None]:
    """Turn errors of NumPy, scikit-learn and pandas about an input into errors of this library.

    Args:
        where: who reads, for messages.
        arguments: names of those that are read. They come first where the text names none of them.
    """
    try:
        yield
    except (LinrnnError, NotFittedError):
        raise
    except TypeError as error:
        raise ArgumentTypeError(f"{where}: {_shortened(error, arguments)}") from error
    except (ValueError, OverflowError, RuntimeError, MemoryError) as error:
        raise ArgumentError(f"{where}: {_shortened(error, arguments)}") from error


def _shortened(error: Exception, arguments: tuple[str, ...]) -> str:
    """Its text: scikit-learn writes whole arrays into some."""
    text = str(error)
    if arguments and not any(re.search(rf"\b{name}\b", text) for name in arguments):
        text = f"{', '.join(arguments)} cannot be read: {text}"
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def refuse_scalar(where: str, what: str, data: Any, form: str) -> None:
    """Raise `ArgumentTypeError` for a single value, text or another object where rows belong.

    Args:
        where, what: who reads which argument.
        data: the argument.
        form: what it must be, for the message.
    """
    try:
        single = np.ndim(data) == 0
    except (ValueError, TypeError):  # rows of different lengths
        return
    if single:
        raise ArgumentTypeError(f"{where}: {what} must be {form}, got {show(data)}.")


def as_numbers(where: str, what: str, data: Any) -> Any:
    """The data as NumPy and scikit-learn read it: a masked value is NaN, a tensor an array.

    Raises:
        ArgumentTypeError: dates or text.
        ArgumentError: a frame with names that are alike, or with several series one below the
            other.
    """
    if isinstance(data, Tensor):
        return _of_tensor(data)
    if hasattr(data, "iloc"):
        _refuse_stacked(where, what, data)
    if isinstance(data, (list, tuple)):
        kinds = (Tensor, np.ma.MaskedArray)
        special = any(isinstance(x, kinds) or hasattr(x, "iloc") for x in data)
        return [as_numbers(where, what, x) for x in data] if special else data
    if hasattr(data, "dtypes") and hasattr(data, "columns"):
        _check_frame(where, what, data)
        return data
    kind = getattr(getattr(data, "dtype", None), "kind", "")
    if kind:
        refuse_kind(where, what, data.dtype)
    if isinstance(data, np.ma.MaskedArray) and kind in "biuf":
        numbers: Any = data.astype(np.float64)
        return numbers.filled(np.nan)
    return data


def check_has_channels(where: str, X: Any) -> None:
    """Raise `ShapeError` for a single sequence of numbers, which may be one step or one channel."""
    n_axes = X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim
    if n_axes == 1:
        raise ShapeError(
            f"{where}: X must have shape (time, channels), got ({len(X)},). Reshape your data: "
            "X[:, None] is a series of one channel, X[None] a single step."
        )


def refuse_kind(where: str, what: str, dtype: Any) -> None:
    """Raise `ArgumentTypeError` for records, dates and text, which NumPy would read as numbers."""
    kind = getattr(dtype, "kind", "O")
    if kind in "mM":
        raise ArgumentTypeError(
            f"{where}: {what} must hold numbers, got dates ({dtype}). Convert them first, for "
            "example to days: (x - x[0]) / numpy.timedelta64(1, 'D')."
        )
    if kind == "V":
        raise ArgumentTypeError(
            f"{where}: {what} must hold numbers, got records ({dtype}). Choose a field."
        )
    if kind in "SU":
        raise ArgumentTypeError(
            f"{where}: {what} must hold numbers, got text ({dtype}). Convert it first, with "
            "numpy.asarray(..., dtype=float)."
        )


def as_target(where: str, y: Any, *, numeric: bool) -> Any:
    """The target of each series, as scikit-learn reads it.

    Raises:
        ArgumentTypeError: dates or text where numbers are told.
        ArgumentError: a masked value.
    """
    if isinstance(y, Tensor):
        y = _of_tensor(y)
    if isinstance(y, np.ma.MaskedArray):
        missing = int(np.ma.count_masked(y))
        if missing:
            raise ArgumentError(
                f"{where}: y must have a value for each series, got {missing} masked. Leave those "
                "series out: X[~y.mask]."
            )
        y = y.data
    if y is not None:
        refuse_scalar(where, "y", y, "one answer for each series")
    if not numeric or y is None:
        return y
    array = np.asarray(y)
    refuse_kind(where, "y", array.dtype)
    if array.dtype.kind == "O" or not array.dtype.isnative:
        return array.astype(np.float64)
    return y


def _refuse_stacked(where: str, what: str, table: Any) -> None:
    """Raise `ArgumentError` for a long table of pandas, whose rows are no single series.

    It has levels of the index for series and time, or the columns that `PanelForecaster` reads.
    """
    levels = list(table.index.names)
    if len(levels) > 1:
        marks = f"the index levels {show(levels)}"
        outer = "0" if len(levels) == 2 else str(list(range(len(levels) - 1)))
        fix = f"X.groupby(level={outer}), as part.droplevel({outer})"
    elif {"unique_id", "ds"} <= {*levels, *getattr(table, "columns", ())}:
        marks = "'unique_id' and 'ds' among its columns and index"
        fix = "X.groupby('unique_id'), as its columns of numbers with the index 'ds'"
    else:
        return
    raise ArgumentError(
        f"{where}: {what} must not hold several series one below the other, got a table with "
        f"{marks}. Read each part of {fix.replace('X.', what + '.')}; PanelForecaster reads such a "
        "table as it is."
    )


def _of_tensor(data: Tensor) -> np.ndarray:
    data = data.detach().cpu()
    # NumPy has no bfloat16
    exact = data if data.dtype in (torch.float32, torch.float64) else data.double()
    return (exact if data.is_floating_point() else data).resolve_conj().numpy()


def _check_frame(where: str, what: str, frame: Any) -> None:
    for kind in frame.dtypes:
        refuse_kind(where, what, kind)
    names = list(frame.columns)
    repeated = [name for k, name in enumerate(names) if name in names[:k]]
    if repeated:
        raise ArgumentError(
            f"{where}: the columns of {what} must have names that differ, got {show(repeated[0])} "
            f"twice. {what}.to_numpy() leaves the names out."
        )
