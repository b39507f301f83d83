"""Time stamps: numbers, or dates and times as ISO 8601 writes them; and what lies between them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import numpy as np

from linrnn._numbers import number
from linrnn.errors import DataError
from linrnn.tasks._frame import Frame

_EVEN = 1e-6  # of a gap: what is lost where stamps are written in decimals
_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True)
class Stamps:
    """When the steps of a series were.

    Attributes:
        at: (time,) numbers, or seconds since 1970.
        write: gives back the text of such a number, as they were written.
    """

    at: np.ndarray
    write: Callable[[float], str]


def read_stamps(frame: Frame, name: str) -> Stamps:
    """A column of stamps.

    Raises:
        UnknownNameError: no such column.
        DataError: a cell that is neither a finite number nor a date, or a mixture of them.
    """
    frame.check_has([name])
    return parse_stamps(
        frame.cells(name), frame.where, lambda row: f"{frame.place(row)}, column {name}"
    )


def parse_stamps(cells: Sequence[str], where: str, place: Callable[[int], str]) -> Stamps:
    """Stamps that are written in one way.

    Args:
        cells: their texts.
        where: the file, for messages.
        place: says of a cell by its number where it stands.

    Raises:
        DataError: as `read_stamps`.
    """
    numbers = [number(cell) for cell in cells]
    if None not in numbers and np.isfinite(np.array(numbers, np.float64)).all():
        return Stamps(np.array(numbers, np.float64), "{:.12g}".format)
    dates = [_date(cell) for cell in cells]
    zoned = next((date.tzinfo is not None for date in dates if date is not None), False)
    for row, date in enumerate(dates):
        if date is None or (date.tzinfo is not None) is not zoned:
            raise DataError(
                f"{where}: time stamps must be all numbers, or all dates as 2016-07-01 or "
                f"2016-07-01T12:30:00, with a time zone or without, got {cells[row]!r:.60} in "
                f"{place(row)}."
            )
    epoch = _EPOCH.replace(tzinfo=timezone.utc) if zoned else _EPOCH
    at = np.array([(date - epoch).total_seconds() for date in dates if date is not None])
    separator = "T" if any("T" in cell for cell in cells) else " "
    day = all(len(cell) <= len("2016-07-01") for cell in cells)

    def write(seconds: float) -> str:
        date = epoch + timedelta(seconds=seconds)
        return date.date().isoformat() if day else date.isoformat(separator)

    return Stamps(at, write)


def check_rising(frame: Frame, name: str, at: np.ndarray, rows: np.ndarray) -> None:
    """Raise `DataError` unless the stamps of some rows rise from each to the next.

    Args:
        frame, name: for the message.
        at: the stamps.
        rows: in the file, of each stamp.
    """
    wrong = np.flatnonzero(~(np.diff(at) > 0))
    if len(wrong):
        row = int(rows[wrong[0] + 1])
        cell = frame.cells(name)[row]
        before = frame.cells(name)[int(rows[wrong[0]])]
        raise DataError(
            f"{frame.where}: time stamps must rise, got {cell!r:.60} after {before!r:.60} in "
            f"{frame.place(row)}, column {name}. Sort the rows, and take out what is there twice."
        )


def even(gaps: np.ndarray) -> bool:
    """Whether all gaps are one and the same but for what rounding takes."""
    return not len(gaps) or bool(np.ptp(gaps) <= _EVEN * np.median(gaps))


def _date(cell: str) -> datetime | None:
    # before Python 3.11 a Z for UTC was not read
    text = cell.strip()
    text = text[:-1] + "+00:00" if text.endswith("Z") else text
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
