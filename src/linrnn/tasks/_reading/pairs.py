"""Pairs of texts in a large file, a pair a line: only where the lines begin is kept in memory."""

import mmap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from linrnn._files.door import open_file
from linrnn.errors import DataError
from linrnn.tasks._kinds.generated import BatchDataset

SYMBOLS = 98
_UNKNOWN, _EOS, _FIRST = 1, 2, 3  # 0 is padding; then the printable ASCII characters
_ID = np.full(256, _UNKNOWN, np.uint8)
_ID[32:127] = np.arange(_FIRST, SYMBOLS)
_CHUNK = 1 << 22
_LINES = 1 << 22  # of a file; the largest of the release has a twentieth of them
_FIELDS = 5  # label, id, id, text, text


class Pairs(BatchDataset):
    """The lines of a file as pairs of sequences of ids.

    Args:
        path: of a file with a label of 0 or 1, two names and two texts a line, between tabs.
        length: steps of a sequence; of a longer text the beginning is read.

    Raises:
        DataError: the file is missing or empty; once it is read, a line with other fields.
    """

    def __init__(self, path: Path, length: int) -> None:
        self.path, self.length = path, length
        try:
            with open_file(path, inside=None) as file:
                self.text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: nothing is in it
            raise DataError(f"{path}: the file must hold lines of text, got: {error}.") from error
        self.ends = _line_ends(self.text)
        if len(self.ends) > _LINES:
            raise DataError(f"{path}: the file must hold at most {_LINES:,} lines, got more.")

    def __len__(self) -> int:
        return len(self.ends)

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        """Ids (pairs, 2, length), labels (pairs,) and lengths (pairs, 2)."""
        x = np.zeros((len(indices), 2, self.length), np.uint8)
        lengths = np.zeros((len(indices), 2), np.int64)
        labels = np.zeros(len(indices), np.int64)
        for row, index in enumerate(indices):
            labels[row], texts = self.pair(index)
            for i, text in enumerate(texts):
                lengths[row, i] = encode(text, x[row, i])
        return torch.from_numpy(x).long(), torch.from_numpy(labels), torch.from_numpy(lengths)

    def pair(self, index: int) -> tuple[int, list[bytes]]:
        """Label and both texts of a line.

        Raises:
            DataError: it has other fields.
        """
        begin = int(self.ends[index - 1]) + 1 if index else 0
        fields = self.text[begin : int(self.ends[index])].rstrip(b"\r").split(b"\t")
        if len(fields) != _FIELDS or fields[0] not in (b"0", b"1", b"0.0", b"1.0"):
            raise DataError(
                f"{self.path}: line {index + 1} must have a label of 0 or 1, two names and two "
                f"texts between tabs, got {len(fields)} fields that begin with "
                f"{fields[0][:20].decode(errors='replace')!r}."
            )
        return int(fields[0][:1]), fields[-2:]


def encode(text: bytes, row: np.ndarray) -> int:
    """Write a text and its end into a row of zeros, and give the steps written."""
    ids = _ID[np.frombuffer(text[: len(row) - 1], np.uint8)]
    row[: len(ids)], row[len(ids)] = ids, _EOS
    return len(ids) + 1


def decode(ids: Tensor) -> str:
    """Printable characters of ids, without padding and the end; ``?`` for an unknown one."""
    shown = ids[(ids == _UNKNOWN) | (ids >= _FIRST)].tolist()
    return "".join("?" if i == _UNKNOWN else chr(i - _FIRST + 32) for i in shown)


def _line_ends(text: mmap.mmap) -> np.ndarray:
    """The end of each line, up to where there are too many; the last may lack a line feed."""
    line_feeds, count = [], 0
    for start in range(0, len(text), _CHUNK):
        chunk = np.frombuffer(text[start : start + _CHUNK], np.uint8)
        line_feeds.append(np.flatnonzero(chunk == ord("\n")) + start)
        count += len(line_feeds[-1])
        if count > _LINES:
            break
    ends = np.concatenate(line_feeds)
    if text[-1:] != b"\n":
        ends = np.append(ends, len(text))
    return ends
