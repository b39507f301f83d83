"""Lines of text as rows of cells, as programs and spreadsheets write them."""

import csv
import re
from collections.abc import Sequence
from pathlib import Path

from linrnn.errors import DataError

SEPARATORS = (",", ";", "\t")

_LONGEST = 131_072
_COMMA = re.compile(r"[+-]?\d*,\d+(?:e[+-]?\d+)?", re.IGNORECASE)
_AMBIGUOUS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")  # a decimal comma, or one between thousands


def filled_lines(path: Path, content: bytes) -> list[tuple[int, str]]:
    """The lines of a text that are not blank, each with its number from 1.

    A line ends at a line feed, a carriage return or both, and nowhere else: ``str.splitlines``
    would also end it at characters that a cell may hold.

    Raises:
        DataError: the text is not UTF-8.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the file must be text in UTF-8, got other bytes.") from error
    lines = re.split(r"\r\n|\n|\r", text)
    return [(place, line) for place, line in enumerate(lines, 1) if line.strip()]


def split_rows(path: Path, lines: Sequence[tuple[int, str]]) -> list[list[str]]:
    """The cells of all lines, without the blanks around them.

    Cells are separated by commas, semicolons or tabs, whichever the first two lines have. Where it
    is not the comma, numbers may have a decimal one, which becomes a point.

    Args:
        path: for messages.
        lines: as `filled_lines` gives them.

    Raises:
        DataError: as `split_row`; or commas that may all stand between thousands as well.
    """
    separator = _separator(path, lines[:2])
    rows = [[c.strip() for c in split_row(path, n, line, separator)] for n, line in lines]
    if separator == ",":
        return rows
    places = [n for n, _ in lines]
    _check_decimals(path, places, rows)
    return [[c.replace(",", ".") if _COMMA.fullmatch(c) else c for c in row] for row in rows]


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
    longest = max(map(len, cells), default=0)
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


def _separator(path: Path, lines: Sequence[tuple[int, str]]) -> str:
    """Choose a separator both lines have: one that leaves no other in its cells comes first.

    Then one by which both have as many cells, then the one that makes most of them.
    """
    everywhere = [s for s in SEPARATORS if all(s in line for _, line in lines)]
    anywhere = [s for s in SEPARATORS if any(s in line for _, line in lines)]

    def fit(separator: str) -> tuple[bool, bool, int]:
        rows = [split_row(path, n, line, separator) for n, line in lines]
        clean = not any(_holds_another(row, separator) for row in rows)
        return clean, len({len(row) for row in rows}) == 1, len(rows[0])

    return max(everywhere or anywhere, key=fit) if anywhere else ","


def _holds_another(row: Sequence[str], separator: str) -> bool:
    candidates = [s for s in SEPARATORS if s != separator]
    return any(s in cell for cell in row for s in candidates if not _COMMA.fullmatch(cell.strip()))


def _check_decimals(path: Path, places: Sequence[int], rows: Sequence[Sequence[str]]) -> None:
    """Raise `DataError` if numbers have commas, and no number tells what they are."""
    comma_cells = [
        (cell, place)
        for place, row in zip(places, rows, strict=True)
        for cell in row
        if _COMMA.fullmatch(cell)
    ]
    if comma_cells and all(_AMBIGUOUS.fullmatch(cell) for cell, _ in comma_cells):
        cell, place = comma_cells[0]
        raise DataError(
            f"{path}: a number must be readable in one way, got {cell!r} in line {place}, which is "
            f"{cell.replace(',', '.')} or {cell.replace(',', '')}, and no other tells. Write "
            "decimals with a point and thousands with nothing."
        )
