"""Sequences of DNA in FASTA, and intervals of them in BED."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from linrnn.errors import DataError
from linrnn.tasks._reading.files import READ_ERRORS, open_packed

LETTERS = "ACGNT"
"""Bases in the order of their ids; every other code of a nucleotide is read as N."""

PARTS = {"train": "train", "valid": "validation", "validation": "validation", "test": "test"}
_OTHERS = "RYSWKMBDHVU"
_UNREAD = 255
_PLACE = re.compile(r"[0-9]{1,12}")
_LARGEST = 1 << 33  # bytes of a file; the human genome has 3.2 billion


class Interval(NamedTuple):
    """A stretch of a sequence, from a line of a BED file."""

    sequence: str
    begin: int
    end: int
    part: str


def _table() -> np.ndarray:
    ids = np.full(256, _UNREAD, np.uint8)
    for i, letter in enumerate(LETTERS):
        ids[[ord(letter), ord(letter.lower())]] = i
    for letter in _OTHERS:
        ids[[ord(letter), ord(letter.lower())]] = LETTERS.index("N")
    return ids


_IDS = _table()


def read_fasta(path: Path) -> dict[str, np.ndarray]:
    """Sequences of a file by their names, each (bases,) ids of `LETTERS` in uint8.

    A name is the first word behind ``>``. Small letters, which mark repeats, are read as large
    ones.

    Raises:
        DataError: the file is missing, damaged, not FASTA, or has two sequences of one name, one
            without a base, or a letter that is no code of a nucleotide.
    """
    parts: dict[str, list[np.ndarray]] = {}
    name = ""
    for place, line in _lines(path):
        if line.startswith(b">"):
            words = line[1:].decode("ascii", errors="replace").split()
            name = words[0] if words else ""
            if not name or name in parts:
                raise DataError(
                    f"{path}: each sequence must have another name, got {name!r:.60} in line "
                    f"{place}."
                )
            parts[name] = []
            continue
        if not name:
            raise DataError(
                f"{path}: the file must be FASTA and begin with a line '>name', got "
                f"{line[:40]!r} in line {place}."
            )
        ids = _IDS[np.frombuffer(line, np.uint8)]
        if (ids == _UNREAD).any():
            wrong = chr(line[int(np.argmax(ids == _UNREAD))])
            raise DataError(
                f"{path}: bases must be A, C, G, T, N or another code of a nucleotide, got "
                f"{wrong!r} in line {place}."
            )
        parts[name].append(ids)
    empty = [name for name, lines in parts.items() if not lines]
    if empty or not parts:
        raise DataError(
            f"{path}: the file must hold sequences of bases, got none"
            f"{f' of {empty[0]!r:.60}' if empty else ''}."
        )
    return {name: np.concatenate(lines) for name, lines in parts.items()}


def read_bed(path: Path, sequences: Mapping[str, np.ndarray]) -> list[Interval]:
    """Intervals with the part each belongs to: columns name, begin, end and train, valid or test.

    Begin counts from 0 and end is not in the interval, as BED has it.

    Raises:
        DataError: the file is missing or damaged, or a line is no interval of a sequence.
    """
    intervals = []
    for place, line in _lines(path):
        cells = line.decode("utf-8", errors="replace").split()
        if not cells or cells[0] in ("track", "browser") or cells[0].startswith("#"):
            continue
        sequence, begin, end, part = [*cells[:4], "", "", "", ""][:4]
        known = sequences.get(sequence)
        bounds = [int(cell) if _PLACE.fullmatch(cell) else -1 for cell in (begin, end)]
        fits = known is not None and 0 <= bounds[0] < bounds[1] <= len(known)
        if not fits or part not in PARTS:
            size = "no such sequence" if known is None else f"{len(known):,} bases"
            raise DataError(
                f"{path}: a line must hold a name, begin and end in the sequence and one of "
                f"{', '.join(PARTS)}, got {' '.join(cells)!r:.80} in line {place}, with {size}."
            )
        intervals.append(Interval(sequence, bounds[0], bounds[1], PARTS[part]))
    if not intervals:
        raise DataError(f"{path}: the file must hold intervals, got none.")
    return intervals


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers from 1."""
    try:
        with open_packed(path, _LARGEST) as file:
            for place, line in enumerate(file, 1):
                if line := line.strip():
                    yield place, line
    except READ_ERRORS as error:
        raise DataError(f"{path}: the file must be readable, got: {error}. Get it anew.") from error
