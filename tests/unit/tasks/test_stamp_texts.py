"""Texts that are dates: the same on every Python that linrnn runs on."""

import itertools
import sys
from datetime import datetime, timedelta, timezone

import pytest

from linrnn.errors import DataError
from linrnn.tasks._reading.stamps import date_of, parse_stamps

DAYS = ("2016-07-01", "20160701", "2016-W26-5", "2016W265", "2016-W26")
TIMES = ("", "12", "12:30", "1230", "12:30:05", "123005", "12:30:05.5", "123005,25")
TIMES += ("12:30:05.123456", "12:30:05.1234567891")
ZONES = ("", "Z", "+02", "+0200", "+02:00", "-03:30", "+00:00", "+02:00:30")

FIRST = datetime(2016, 7, 1)
READ = {
    "2016-07-01": FIRST,
    " 20160701 ": FIRST,
    "2016-W26-5": FIRST,
    "2016W26": FIRST - timedelta(days=4),
    "2016-07-01T12": FIRST.replace(hour=12),
    "2016-07-01 12:30": FIRST.replace(hour=12, minute=30),
    "20160701T1230": FIRST.replace(hour=12, minute=30),
    "2016-07-01T12:30:05.5": FIRST.replace(hour=12, minute=30, second=5, microsecond=500_000),
    "2016-07-01T12:30:05,5": FIRST.replace(hour=12, minute=30, second=5, microsecond=500_000),
    "2016-07-01T00:00:00.1234567": FIRST.replace(microsecond=123_456),
    "2016-07-01T00:00Z": FIRST.replace(tzinfo=timezone.utc),
    "2016-07-01T00:00+0200": FIRST.replace(tzinfo=timezone(timedelta(hours=2))),
    "2016-07-01T00:00-0330": FIRST.replace(tzinfo=timezone(-timedelta(hours=3, minutes=30))),
    "2016-07-01T24:00": FIRST + timedelta(days=1),
    "2016-12-31T24:00:00": datetime(2017, 1, 1),
}
NOT_READ = (
    *("", "x", "12", "2016", "2016-07", "2016-7-1", "01.07.2016", "2016-07-32", "2016-13-01"),
    *("2016-07-01T", "2016-07-01T1", "2016-07-01T25", "2016-07-01T24:01", "2016-07-01T12:60"),
    *("2016-07-01T12:3005", "2016-07-01T1230:05", "2016-07-01T12:30:05.", "2016-07-01T12.5"),
    *("2016-07-01Z", "2016-07-01T12+2", "2016-07-01T12+24", "2016-07-01T12+02:60"),
    *("2016-W54-1", "2016-W26-8", "0000-01-01", "9999-12-31T24:00", "2016-07-01T12:30:05z"),
    *("\u0662016-07-01", "2016-07-01T12:30:60", "2016-0701", "201607-01", "2016-07-01x"),
)


@pytest.mark.parametrize("text", READ)
def test_text_is_this_date(text):
    assert date_of(text) == READ[text]


@pytest.mark.parametrize("text", NOT_READ)
def test_text_is_no_date(text):
    assert date_of(text) is None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 reads few of them")
def test_dates_are_those_that_python_reads():
    for day, time, zone in itertools.product(DAYS, TIMES, ZONES):
        text = f"{day}T{time}{zone}" if time else day
        expected = datetime.fromisoformat(text)
        assert date_of(text) == expected, text
        assert date_of(text).utcoffset() == expected.utcoffset(), text


def test_any_number_of_digits_is_read():
    assert date_of(f"2016-07-01T12:30:05.{'1' * 10_000}").microsecond == 111_111


def test_no_other_reader_of_dates_is_used(root):
    """`fromisoformat` accepts more since Python 3.11, and more again later."""
    users = [p.name for p in root.glob("src/linrnn/**/*.py") if ".fromisoformat(" in p.read_text()]
    assert users == []


#: what is usual, what has the same form and is no date, and what NumPy alone would take
USUAL = ("2016-07-01", "1600-02-29T12:30", "9999-12-31 23:59:59", "0001-01-01T00:00:00Z")
UNUSUAL = ("0000-01-01", "2015-02-29", "2016-07-01T24:00", "2016-07-01T24:01", "2016-07-01T12:60")
UNUSUAL += ("2016-07-01 12:30:60", "2016", "2016-07", "-016-07-01", "20160701", "2016-07-01T12:30z")
UNUSUAL += ("2016-07-0\u0661", "2016-07-01\n2016-07-01", "now", "NaT")


@pytest.mark.parametrize("text", [*READ, *NOT_READ, *USUAL, *UNUSUAL])
@pytest.mark.parametrize(
    "others", [[], ["2016-07-01"], ["2016-07-01T12:30:05"], ["2016-07-01T12:30Z"]]
)
@pytest.mark.parametrize("first", [False, True])
def test_many_dates_are_those_of_one(text, others, first):
    cells = [text, *others] if first else [*others, text]
    dates = [date_of(cell) for cell in cells]
    zones = {date and date.tzinfo is not None for date in dates}
    if None in dates or len(zones) > 1:
        with pytest.raises(DataError, match="time stamps must be dates"):
            parse_stamps(cells, "x.csv", str, "dates")
        return
    stamps = parse_stamps(cells, "x.csv", str, "dates")
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc if True in zones else None)
    assert stamps.at.tolist() == [(date - epoch).total_seconds() for date in dates]
