"""Lines of text as rows of cells, as programs and spreadsheets write them.

NumPy splits tables and the module csv rows that may end early; what both pass over is found here.
``pandas.read_csv`` fills a row that is too short, names a second column of one name anew, and takes
7.2 s of a processor for the numbers of 200 MB where ``numpy.loadtxt`` takes 2.6 s.
"""

import codecs
import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from linrnn._options.numbers import number
from linrnn.errors import DataError

SEPARATORS = (",", ";", "\t")

_LONGEST = 131_072
_COMMA = re.compile(r"[+-]?\d*,\d+(?:e[+-]?\d+)?", re.IGNORECASE)
_AMBIGUOUS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")  # a decimal comma, or one between thousands


class Lines(NamedTuple):
    """Lines of a text, each with its number from 1."""

    places: Sequence[int]
    texts: Sequence[str]

    def rows(self, path: Path, separator: str) -> list[list[str]]:
        """The cells of each line: see `split_row`."""
        numbered = zip(self.places, self.texts, strict=True)
        return [split_row(path, place, text, separator) for place, text in numbered]


def filled_lines(path: Path, content: bytes) -> Lines:
    """The lines of a text that are not blank.

    A line ends at a line feed, a carriage return or both, and nowhere else: ``str.splitlines``
    would also end it at characters that a cell may hold.

    Raises:
        DataError: the text is not UTF-8.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: the file must be text in UTF-8, got {_said(content, error.start)}. Save it "
            "as UTF-8, or name a file that is a table."
        ) from error
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    places = [place for place, line in enumerate(lines, 1) if line and not line.isspace()]
    return Lines(places, [lines[place - 1] for place in places])


def _said(content: bytes, place: int) -> str:
    """Bytes that are no UTF-8: their place, and what they look like."""
    if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "UTF-16"
    line = 1 + content.count(b"\n", 0, place)
    return f"the byte {content[place : place + 1].hex()} in line {line}"


def split_rows(path: Path, lines: Lines) -> list[list[str]]:
    """The cells of all lines, without the blanks around them; rows may have any widths.

    Cells are separated by commas, semicolons or tabs, whichever the first two lines have. Where it
    is not the comma, numbers may have a decimal one, which becomes a point.

    Args:
        path: for messages.
        lines: of the file.

    Raises:
        DataError: as `split_row`; or commas that may all stand between thousands as well.
    """
    separator = _separator(path, lines)
    rows = [[cell.strip() for cell in row] for row in lines.rows(path, separator)]
    if separator == ",":
        return rows
    cells = [(cell, n) for n, row in zip(lines.places, rows, strict=True) for cell in row]
    points = iter(_with_points(path, cells))
    return [[next(points) for _ in row] for row in rows]


def split_table(path: Path, lines: Lines) -> np.ndarray:
    """The same (rows, width) of a table in which all rows are as wide, with blanks around cells.

    Args:
        path: for messages.
        lines: of the file, one at least.

    Raises:
        DataError: as `split_rows`; or a row of another width than the first.
    """
    separator = _separator(path, lines)
    for place, text in zip(*lines, strict=True):
        if '"' in text or len(text) > _LONGEST:
            split_row(path, place, text, separator)  # NumPy takes quotation marks as they come
    text_type = np.dtypes.StringDType()
    try:
        table = np.loadtxt(
            iter(lines.texts), text_type, None, separator, ndmin=2, quotechar='"'
        )  # (rows, width)
    except ValueError:
        table = np.empty((0, 0), text_type)
    if len(table) != len(lines.texts):
        rows = lines.rows(path, separator)
        for place, row in zip(lines.places, rows, strict=True):
            if len(row) != len(rows[0]):
                raise DataError(
                    f"{path}: each row must hold {len(rows[0])} cells as the first, got {len(row)} "
                    f"in line {place}. Is the file truncated?"
                )
        table = np.array(rows, text_type)
    if separator == ",":
        return table
    at, column = np.nonzero(np.strings.find(table, ",") >= 0)
    if len(at):
        cells = np.strings.strip(table[at, column]).tolist()
        places = [lines.places[i] for i in at.tolist()]
        table[at, column] = _with_points(path, list(zip(cells, places, strict=True)))
    return table


def split_row(path: Path, number: int, line: str, separator: str = ",") -> list[str]:
    """The cells of a line of text, of which quotation marks may hold a separator.

    Raises:
        DataError: a quotation mark that is not closed, or not one around a cell; or a cell that is
            longer than any number or word.
    """
    try:
        cells = next(csv.reader([line], delimiter=separator, strict=True))
    except csv.Error as error:
        raise DataError(
            f"{path}: a row must hold numbers and words, got: {error} in line {number}. "
            "Is there a quotation mark too many or too few?"
        ) from error
    longest = max(map(len, cells)) if len(line) > _LONGEST else 0
    if longest > _LONGEST:  # the limit of the module csv is anybody's to change
        raise DataError(
            f"{path}: a cell must have at most {_LONGEST:,} characters, got {longest:,} in line "
            f"{number}. Is there a quotation mark too many or too few?"
        )
    # a lone one inside a cell is a character to the module csv: an even number is left to be read
    if line.count('"') % 2:
        raise DataError(
            f"{path}: quotation marks must stand around a cell, in pairs, got a lone one in line "
            f"{number}. Write one inside a cell twice."
        )
    return cells


def _separator(path: Path, lines: Lines) -> str:
    """Choose a separator the first two lines have: one that leaves no other in cells comes first.

    Then one by which both have as many cells, then the one that makes most of them.
    """
    head = list(zip(lines.places[:2], lines.texts[:2], strict=True))
    everywhere = [s for s in SEPARATORS if all(s in line for _, line in head)]
    anywhere = [s for s in SEPARATORS if any(s in line for _, line in head)]

    def fit(separator: str) -> tuple[bool, bool, int]:
        rows = [split_row(path, n, line, separator) for n, line in head]
        clean = not any(_holds_another(row, separator) for row in rows)
        return clean, len({len(row) for row in rows}) == 1, len(rows[0])

    return max(everywhere or anywhere, key=fit) if anywhere else ","


def _holds_another(row: Sequence[str], separator: str) -> bool:
    candidates = [s for s in SEPARATORS if s != separator]
    return any(s in cell for cell in row for s in candidates if not _COMMA.fullmatch(cell.strip()))


def _with_points(path: Path, cells: Sequence[tuple[str, int]]) -> list[str]:
    """Cells, of which those that are numbers with a decimal comma have a point.

    Args:
        path: for messages.
        cells: each with the line in which it stands.

    Raises:
        DataError: no number tells what its comma is.
    """
    numbers = [(cell, place) for cell, place in cells if _COMMA.fullmatch(cell)]
    if numbers and all(_AMBIGUOUS.fullmatch(cell) for cell, _ in numbers):
        cell, place = numbers[0]
        raise DataError(
            f"{path}: a number must be readable in one way, got {cell!r} in line {place}, which is "
            f"{cell.replace(',', '.')} or {cell.replace(',', '')}, and no other tells. Write "
            "decimals with a point and thousands with nothing."
        )
    return [cell.replace(",", ".") if _COMMA.fullmatch(cell) else cell for cell, _ in cells]


def numbers_of(texts: Sequence[str]) -> np.ndarray:
    """The number that each text is, and NaN for one that is none; see `number`."""
    joined = "".join(texts)
    if joined.isascii() and "_" not in joined:  # then `float` has the rule of `number`
        try:
            return np.fromiter(map(float, texts), np.float64, len(texts))
        except ValueError:
            pass
    return np.array([number(text) for text in texts], np.float64)  # None becomes NaN
