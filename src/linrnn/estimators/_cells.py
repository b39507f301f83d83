"""Cells of a table as numbers, by one rule for all estimators.

A cell is a number, or a truth value, which is 0 or 1. None, NaN and NA of pandas are missing. Text,
also of digits, categories, dates and other objects are refused.
"""

from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

from linrnn.errors import ArgumentError, ArgumentTypeError, show

_PLAIN = {float, int, bool, type(None), np.float64}
_FIX = (
    "Numbers in text: {what}.astype(float). Categories: pandas.get_dummies makes columns of 0 and "
    "1. Or leave it out."
)


def are_objects(kind: Any) -> bool:
    """Whether a dtype is NumPy's of any objects; pandas' kinds of text and categories are not."""
    return isinstance(kind, np.dtype) and kind.kind == "O"


def needs_reading(kind: Any) -> bool:
    """Whether scikit-learn reads a dtype by another rule or not at all: objects and sparse."""
    return are_objects(kind) or hasattr(kind, "fill_value")


def of_objects(
    where: str, what: str, cells: np.ndarray, rows: Any = None, column: str = ""
) -> np.ndarray:
    """Numbers in the shape of an array of objects.

    Args:
        where, what: who reads which argument.
        cells: of objects.
        rows: names of the rows; None counts them.
        column: where these are, for the message; empty where the array says it.

    Raises:
        ArgumentTypeError: an object is no number; the message has its place.
        ArgumentError: a number beyond float64.
    """
    if {type(cell) for cell in cells.ravel().tolist()} <= _PLAIN:
        try:
            return cells.astype(np.float64)
        except OverflowError:
            pass  # the loop says where
    numbers = np.full(cells.shape, np.nan)
    for place, cell in np.ndenumerate(cells):
        if cell is None or type(cell).__name__ == "NAType":
            continue
        if not isinstance(cell, (Real, Decimal, np.bool_)):
            raise ArgumentTypeError(
                f"{where}: each value of {what} must be a number, got {show(cell)} in "
                f"{_said(place, rows, column)}.{_refusal(cell)} {_FIX.format(what=what)}"
            )
        try:
            numbers[place] = float(cell)
        except OverflowError as error:
            raise ArgumentError(
                f"{where}: each value of {what} must be finite in float64, got {show(cell)} in "
                f"{_said(place, rows, column)}."
            ) from error
    return numbers


def of_column(where: str, what: str, column: Any, said: str = "") -> np.ndarray:
    """Numbers of a series or a column of pandas.

    Args:
        where, what: who reads which argument.
        column: of pandas.
        said: the column's place in the argument, for a message about a cell.

    Raises:
        ArgumentTypeError: text, categories or other objects.
        ArgumentError: a number beyond float64.
    """
    if are_objects(column.dtype):
        return of_objects(where, what, column.to_numpy(), column.index, said)
    check_column(where, what, column.dtype)
    numbers: np.ndarray = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return numbers


def check_column(where: str, what: str, kind: Any, said: str = "") -> None:
    """Raise `ArgumentTypeError` for a dtype of pandas that is neither of numbers nor of objects.

    Args:
        where, what: who reads which argument.
        kind: the dtype.
        said: the column's place, for the message.
    """
    if are_objects(kind) or getattr(kind, "kind", "O") in "biuf":
        return
    raise ArgumentTypeError(
        f"{where}: {what} must hold numbers, got {kind}{said}. {_FIX.format(what=what)}"
    )


def _said(place: tuple[int, ...], rows: Any, column: str) -> str:
    if len(place) > 2:
        return f"place {list(place)}"
    row = f"row {place[0] if rows is None else show(rows[place[0]])}"
    return row + (column or (f" of column {place[1]}" if len(place) == 2 else ""))


def _refusal(cell: Any) -> str:
    """Python's words, which scikit-learn's checks look for; nothing of text, which has a fix."""
    if isinstance(cell, (str, bytes)):
        return ""
    try:
        float(cell)
    except TypeError as error:
        return f" {error}."
    except (ValueError, OverflowError):
        pass
    return ""
