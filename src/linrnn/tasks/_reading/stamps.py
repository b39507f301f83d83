"""Time stamps: numbers, or dates and times as ISO 8601 writes them; and what lies between them.

NumPy reads what is usual. For the rest ``pandas.to_datetime`` takes 2016 for a day and knows no
weeks, and ``dateutil.parser.isoparse``, at 3.1 us a date where `date_of` takes 3.5, also 2016-07.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from typing import Literal

import numpy as np

from linrnn.errors import DataError
from linrnn.tasks._reading.frame import Frame
from linrnn.tasks._reading.rows import numbers_of

_EVEN = 1e-6  # of a gap: what is lost where stamps are written in decimals
_EPOCH = datetime(1970, 1, 1)
_BASIC = re.compile(r"[0-9]{8}")  # a date without its hyphens
_TO_ZERO = str.maketrans("123456789", "000000000")
_USUAL = re.compile(r"0000-00-00([T ]00:00(:00)?Z?)?")  # a date that NumPy reads as `date_of` does
_ISO = re.compile(
    r"""(?P<year>[0-9]{4})
    (?: -(?P<month>[0-9]{2})-(?P<day>[0-9]{2}) | (?P<month_>[0-9]{2})(?P<day_>[0-9]{2})
      | -W(?P<week>[0-9]{2})(?:-(?P<weekday>[1-7]))? | W(?P<week_>[0-9]{2})(?P<weekday_>[1-7])? )
    (?: [^0-9] (?P<hour>[0-9]{2})
        (?: (?P<colon>:)?(?P<minute>[0-9]{2})
            (?: (?(colon):)(?P<second>[0-9]{2}) (?: [.,](?P<fraction>[0-9]+) )? )? )?
        (?P<zone> Z | [+-](?P<zone_hour>[0-9]{2})
            (?: :?(?P<zone_minute>[0-9]{2}) (?: :?(?P<zone_second>[0-9]{2}) )? )? )? )?""",
    re.VERBOSE,
)

Kind = Literal["numbers", "dates"]


@dataclass(frozen=True)
class Stamps:
    """When the steps of a series were.

    Attributes:
        at: (time,) numbers, or seconds since 1970.
        write: gives back the text of such a number, in the form and time zone of the last one.
        kind: what they are written as.
    """

    at: np.ndarray
    write: Callable[[float], str]
    kind: Kind


def read_stamps(frame: Frame, name: str, kind: Kind | None = None) -> Stamps:
    """A column of stamps.

    Args:
        frame: with it.
        name: of the column.
        kind: what they were in training; None finds out.

    Raises:
        UnknownNameError: no such column.
        DataError: a cell that is neither a finite number nor a date, or a mixture of them; or
            stamps of another kind.
    """
    frame.check_has([name])
    return parse_stamps(
        frame.cells(name), frame.where, lambda row: f"{frame.place(row)}, column {name}", kind
    )


def parse_stamps(
    cells: Sequence[str], where: str, place: Callable[[int], str], kind: Kind | None = None
) -> Stamps:
    """Stamps that are written in one way.

    Eight digits are a date, as 20160701, where those of every cell are one.

    Args:
        cells: their texts.
        where: the file, for messages.
        place: says of a cell by its number where it stands.
        kind: as of `read_stamps`.

    Raises:
        DataError: as `read_stamps`.
    """
    at = None if kind == "numbers" else _usual_dates(cells)
    last = None if at is None else date_of(cells[-1])
    if at is not None and last is not None:
        return Stamps(at, _writer(cells, last), "dates")
    must = "all numbers, or all dates as 2016-07-01 or 2016-07-01T12:30:00, with a time zone or "
    must += "without"
    if kind is not None:
        must = f"{kind}, as in training"
    elif cells and all(_BASIC.fullmatch(cell.strip()) and date_of(cell) for cell in cells):
        kind = "dates"
    if kind != "dates":
        numbers = numbers_of(cells)
        if np.isfinite(numbers).all():
            return Stamps(numbers, "{:.12g}".format, "numbers")
        wrong = int(np.argmin(np.isfinite(numbers)))
    if kind != "numbers":
        dates = [date_of(cell) for cell in cells]
        parsed = [date for date in dates if date is not None]
        zoned = bool(parsed) and parsed[0].tzinfo is not None
        fits = [date is not None and (date.tzinfo is not None) is zoned for date in dates]
        if all(fits):
            epoch = _EPOCH.replace(tzinfo=timezone.utc) if zoned else _EPOCH
            at = np.array([(date - epoch).total_seconds() for date in parsed])
            return Stamps(at, _writer(cells, parsed[-1]), "dates")
        wrong = fits.index(False)
    raise DataError(
        f"{where}: time stamps must be {must}, got {cells[wrong]!r:.60} in {place(wrong)}."
    )


def _usual_dates(cells: Sequence[str]) -> np.ndarray | None:
    """Seconds since 1970 where all cells are written alike in the usual form, else None.

    NumPy reads a million of them in a hundredth of the time that `date_of` takes.
    """
    form = cells[0].translate(_TO_ZERO) if cells else ""
    text = "\n".join(cells).translate(_TO_ZERO)
    if not _USUAL.fullmatch(form) or text != "\n".join([form] * len(cells)):
        return None
    try:
        at = np.array([cell.removesuffix("Z") for cell in cells], "datetime64[s]")
    except ValueError:  # no such day, or hour
        return None
    return at.astype(np.float64) if at.min() >= np.datetime64("0001-01-01") else None


def _writer(cells: Sequence[str], last: datetime) -> Callable[[float], str]:
    """Writes seconds since 1970 as dates, as some are written of which ``last`` is the last."""
    separator = "T" if any("T" in cell for cell in cells) else " "
    day = all(len(cell) <= len("2016-07-01") for cell in cells)
    basic, utc = _BASIC.fullmatch(cells[-1].strip()), cells[-1].strip().endswith("Z")
    epoch = _EPOCH if last.tzinfo is None else _EPOCH.replace(tzinfo=timezone.utc)

    def write(seconds: float) -> str:
        date = epoch + timedelta(seconds=seconds)
        if last.tzinfo is not None:
            date = date.astimezone(last.tzinfo)
        if day:
            text = date.date().isoformat()
            return text.replace("-", "") if basic else text
        text = date.isoformat(separator)
        return text.removesuffix("+00:00") + "Z" if utc else text

    return write


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
        previous = frame.cells(name)[int(rows[wrong[0]])]
        raise DataError(
            f"{frame.where}: time stamps must rise, got {cell!r:.60} after {previous!r:.60} in "
            f"{frame.place(row)}, column {name}. Sort the rows, and remove duplicates."
        )


def even(gaps: np.ndarray) -> bool:
    """Whether all gaps are one and the same but for what rounding takes."""
    return not len(gaps) or bool(np.ptp(gaps) <= _EVEN * np.median(gaps))


def date_of(cell: str) -> datetime | None:
    """The date and time that a text is, as ISO 8601 writes them, or None.

    A day of a month or of a week, with hyphens or without; then, behind a T, a space or another
    sign, hours with what follows down to fractions of a second, of which microseconds are kept,
    with colons or without; and Z or what it is ahead of UTC. Every version of Python reads the
    same, which is why this is not `datetime.fromisoformat`.

    Example:
        >>> date_of("20160701T123000.5+0200").isoformat()
        '2016-07-01T12:30:00.500000+02:00'
    """
    match = _ISO.fullmatch(cell.strip())
    if match is None:
        return None
    # the same part in two places has an underscore in one
    part = {name.rstrip("_"): text for name, text in match.groupdict().items() if text}
    part["fraction"] = part.get("fraction", "").ljust(6, "0")[:6]
    number = {name: int(text) for name, text in part.items() if text.isdigit()}
    hour, minute = number.get("hour", 0), number.get("minute", 0)
    clock = hour, minute, number.get("second", 0), number.get("fraction", 0)
    midnight = clock == (24, 0, 0, 0)  # of the day after
    try:
        if "week" in number:
            day = date.fromisocalendar(number["year"], number["week"], number.get("weekday", 1))
        else:
            day = date(number["year"], number["month"], number["day"])
        of_day = time() if midnight else time(*clock)
        moment = datetime.combine(day, of_day, _zone(part.get("zone"), number))
        return moment + timedelta(days=1) if midnight else moment
    except (ValueError, OverflowError):  # no such day, hour or zone
        return None


def _zone(text: str | None, number: Mapping[str, int]) -> timezone | None:
    """Parse how far a zone is ahead of UTC; None where none was written."""
    if text is None:
        return None
    minutes, seconds = number.get("zone_minute", 0), number.get("zone_second", 0)
    if max(minutes, seconds) > 59:
        raise ValueError(text)
    ahead = timedelta(hours=number.get("zone_hour", 0), minutes=minutes, seconds=seconds)
    return timezone(-ahead if text.startswith("-") else ahead)
