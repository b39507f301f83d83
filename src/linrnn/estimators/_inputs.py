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
from linrnn.estimators._cells import check_column, needs_reading, of_column, of_objects

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
        return _of_pandas(where, what, data)
    if isinstance(data, (list, tuple)):
        return _of_list(where, what, data)
    if isinstance(data, (str, bytes)):
        refuse_kind(where, what, np.asarray(data).dtype)
    kind = getattr(getattr(data, "dtype", None), "kind", "")
    if kind:
        refuse_kind(where, what, data.dtype)
    if isinstance(data, np.ma.MaskedArray) and kind in "biufO":
        numbers: Any = data if kind == "O" else data.astype(np.float64)
        data = numbers.filled(None if kind == "O" else np.nan)
    if kind == "O":
        parts = data.ravel().tolist()
        if not _all_parts(parts):
            return of_objects(where, what, data)
        if data.ndim == 1:  # NumPy does not stack arrays that an array holds
            return _of_list(where, what, parts)
    return data


def _of_list(where: str, what: str, data: Any) -> Any:
    """Each part of a list of arrays, lists or tables; a list of cells as it came, if it may."""
    if any(map(_is_part, {type(x) for x in data})):
        return [as_numbers(where, f"{what}[{k}]", x) for k, x in enumerate(data)]
    array = np.asarray(data)
    refuse_kind(where, what, array.dtype)
    return of_objects(where, what, array) if array.dtype.kind == "O" else data


def _all_parts(cells: list[Any]) -> bool:
    return bool(cells) and all(map(_is_part, {type(cell) for cell in cells}))


def _is_part(kind: type) -> bool:
    """Whether objects of a type have several cells."""
    return issubclass(kind, (list, tuple, np.ndarray, Tensor)) or hasattr(kind, "iloc")


def _of_pandas(where: str, what: str, data: Any) -> Any:
    """A frame or a series; columns of objects, and sparse ones, become numbers."""
    _refuse_stacked(where, what, data)
    if data.ndim == 1:
        refuse_kind(where, what, data.dtype)
        check_column(where, what, data.dtype)
        if not needs_reading(data.dtype):
            return data
        return type(data)(of_column(where, what, data), data.index, name=data.name)
    _check_frame(where, what, data)
    columns = [k for k, kind in enumerate(data.dtypes) if needs_reading(kind)]
    if columns:
        data = data.copy()
    for k in columns:
        name = data.columns[k]
        data[name] = of_column(where, what, data.iloc[:, k], f" of column {show(name)}")
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
    y = as_numbers(where, "y", y)
    array = np.asarray(y)
    return y if array.dtype.isnative else array.astype(np.float64)


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
    for name, kind in zip(frame.columns, frame.dtypes, strict=True):
        refuse_kind(where, what, kind)
        check_column(where, what, kind, f" in {show(name)}")
    check_names(where, what, frame)


def check_names(where: str, what: str, frame: Any) -> None:
    """Raise `ArgumentError` for a frame with two columns of one name.

    Args:
        where, what: who reads which argument.
        frame: of pandas.
    """
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise ArgumentError(
            f"{where}: the columns of {what} must have names that differ, got {show(twice[0])} "
            f"twice. Rename one; {what}.to_numpy() leaves the names out."
        )
