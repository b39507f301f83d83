"""Values with time stamps in a .ts file: ``(2024-03-01 08:00,71.5),(2024-03-01 09:30,73)``."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from linrnn.errors import DataError
from linrnn.tasks._reading.stamps import Kind, parse_stamps

_PAIR = re.compile(r"\(([^(),]*),([^(),]*)\)")
_PAIRS = re.compile(r"\s*\([^()]*\)(\s*,\s*\([^()]*\))*\s*")


class Stamped(NamedTuple):
    """A dimension of a sequence."""

    line: int
    stamps: list[str]
    values: np.ndarray


def split_pairs(path: Path, line: int, dimension: str) -> tuple[list[str], list[str]]:
    """The stamps of a dimension, and its values.

    Raises:
        DataError: something else than pairs with commas between.
    """
    pairs = _PAIR.findall(dimension)
    if not _PAIRS.fullmatch(dimension) or len(pairs) != dimension.count("("):
        raise DataError(
            f"{path}: with time stamps, values must be pairs (time,value) with commas between, got "
            f"{dimension.strip()!r:.60} in line {line}. Is it truncated?"
        )
    return [stamp.strip() for stamp, _ in pairs], [value.strip() for _, value in pairs]


def merge(
    path: Path, sequences: Sequence[Sequence[Stamped]], missing: bool
) -> tuple[list[np.ndarray], list[np.ndarray], Kind]:
    """Sequences (time, dimensions), the time between their steps, and how times are written.

    Times are (time - 1,) for each sequence.

    Where dimensions have stamps of their own, there is a step for each stamp of any, and the
    values of the others are missing there.

    Args:
        path: of the file.
        sequences: their dimensions, at least one each.
        missing: whether values may be missing; they are NaN.

    Raises:
        DataError: stamps that are not written in one way or do not rise, or that differ between
            dimensions where no value may be missing.
    """
    every = [part for sequence in sequences for part in sequence]
    cells = [(part.line, cell) for part in every for cell in part.stamps]
    stamps = parse_stamps(
        [cell for _, cell in cells], str(path), lambda place: f"line {cells[place][0]}"
    )
    at = iter(np.split(stamps.at, np.cumsum([len(part.stamps) for part in every])[:-1]))
    x, gaps = [], []
    for sequence in sequences:
        times = [next(at) for _ in sequence]
        for part, own_stamps in zip(sequence, times, strict=True):
            _check_rising(path, part, own_stamps)
        merged = np.unique(np.concatenate(times))
        steps = np.full((len(merged), len(sequence)), np.nan)
        for channel, (part, own_stamps) in enumerate(zip(sequence, times, strict=True)):
            if len(own_stamps) < len(merged) and not missing:
                raise DataError(
                    f"{path}: the dimensions of a sequence must have the same time stamps, got "
                    f"{len(own_stamps)} of {len(merged)} in dimension {channel + 1} in line "
                    f"{part.line}. Choose how to fill the others: --task.missing mask or ffill."
                )
            steps[np.searchsorted(merged, own_stamps), channel] = part.values
        x.append(steps)
        gaps.append(np.diff(merged))
    return x, gaps, stamps.kind


def _check_rising(path: Path, part: Stamped, at: np.ndarray) -> None:
    wrong = np.flatnonzero(~(np.diff(at) > 0))
    if len(wrong):
        previous, cell = part.stamps[wrong[0] : wrong[0] + 2]
        raise DataError(
            f"{path}: time stamps must rise, got {cell!r:.60} after {previous!r:.60} in line "
            f"{part.line}."
        )
