"""Facts about a user's data in a run folder, so that its model can be used without the data."""

import hashlib
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from linrnn._files.reading import reading
from linrnn._files.storage import read_json
from linrnn._options.schema import record
from linrnn.errors import DataError

T = TypeVar("T")


def kept_text(facts: Any) -> str:
    """Write a dataclass as the text of a file in a run folder.

    Raises:
        DataError: a number in it is not finite.
    """
    for name, value in vars(facts).items():
        numbers = value if isinstance(value, tuple) else (value,)
        if any(isinstance(n, float) and not math.isfinite(n) for n in numbers):
            raise DataError(
                f"statistics of the data must be finite, got an infinite or undefined {name}. "
                "Choose a unit that makes the numbers of the data smaller."
            )
    return json.dumps(vars(facts), indent=2) + "\n"


def read_kept(folder: Path, name: str, cls: type[T], what: str) -> T:
    """Read what `kept_text` wrote.

    Args:
        folder: of the run.
        name: of the file.
        cls: the dataclass, which raises `ValueError` for values that do not fit one another.
        what: it is about, for messages.

    Raises:
        DataError: the file is missing or damaged.
    """
    file = folder / name
    must = f"hold what is known of {what}"
    with reading(file, DataError, must, "Restore it from a copy."):
        return cls(**record(name, cls, read_json(file, inside=folder)))


def find_kept(folder: Path, name: str, cls: type[T], what: str) -> T | None:
    """The same; None of a run of an earlier version, which kept no such file."""
    return read_kept(folder, name, cls, what) if os.path.lexists(folder / name) else None


def checksum(parts: Iterable[np.ndarray | str]) -> str:
    """SHA-256 of numbers and texts as they were read, however their file writes them."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            text = part.encode("utf-8", "surrogatepass")
            digest.update(b"t%d\n" % len(text) + text)
            continue
        values = np.where(np.isnan(part), np.nan, part).astype("<f8")  # NaN has many patterns
        digest.update(f"n{values.shape}\n".encode() + values.tobytes())
    return digest.hexdigest()


def check_same(where: str, first_sha256: str, sha256: str) -> None:
    """Raise `DataError` unless a checksum of data is that of those a run began with."""
    if first_sha256 != sha256:
        raise DataError(
            f"{where}: the data must be those the run began with, got others (SHA-256 "
            f"{sha256:.12} instead of {first_sha256:.12}). Restore the file, or start anew."
        )


def scale_of(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (columns,) of (rows, columns), NaN left out.

    The deviation is 1 where all are one number, whatever the rounding of their mean.
    """
    low, high = np.nanmin(values, 0), np.nanmax(values, 0)
    with np.errstate(over="ignore"):  # an infinite one is for whoever asks to refuse
        mean, std = np.nanmean(values, 0), np.nanstd(values, 0)
    return np.where(low == high, low, mean), np.where((low == high) | (std == 0), 1.0, std)
