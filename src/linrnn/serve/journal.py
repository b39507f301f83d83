"""The journal of sessions since their states were last written, record by record.

A record is on the disk before anybody gets an answer that depends on it. After a crash the states
are read, and what the journal says is done again, in calls of the same rows.
"""

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from linrnn._files.door import read_bytes
from linrnn._files.storage import append, remove
from linrnn.errors import DataError

_HEAD = 12  # bytes of length and checksum before a record
_MOST = 8 << 30  # bytes of a journal at most; limits are far below


class Journal:
    """A file of records that grows at its end.

    Args:
        path: of it; made with the first record.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        """Bytes that were added."""
        self.broken = False
        """Whether a record was cut off, after which no other may be added."""

    def add(self, kind: str, header: Mapping[str, Any], data: bytes = b"") -> None:
        """Add a record and wait until the disk has it.

        Raises:
            StorageError: it cannot be written; it does not count then.
        """
        text = json.dumps({"kind": kind, **header}).encode() + b"\n" + data
        head = len(text).to_bytes(8, "little") + zlib.crc32(text).to_bytes(4, "little")
        try:
            append(self.path, head + text, inside=self.path.parent)
        except BaseException:
            self.broken = True
            raise
        self.size += _HEAD + len(text)

    def remove(self) -> None:
        """Remove the file."""
        remove(self.path, inside=self.path.parent)


def records(path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The records of a journal; one that was cut off at the end, which nobody heard of, is none.

    Raises:
        DataError: a record before the last one is damaged.
    """
    try:
        data = read_bytes(path, inside=path.parent, limit=_MOST)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: the journal must be readable, got: {error}.") from error
    at = 0
    while at + _HEAD <= len(data):
        end = at + _HEAD + int.from_bytes(data[at : at + 8], "little")
        text = data[at + _HEAD : end]
        if end > len(data):
            return
        if zlib.crc32(text) != int.from_bytes(data[at + 8 : at + _HEAD], "little"):
            if end == len(data):
                return
            raise DataError(
                f"{path}: the journal must be as it was written, got damage at byte {at:,}. "
                "Restore the folder from a copy, or move the file away to lose what it holds."
            )
        header, _, body = text.partition(b"\n")
        yield json.loads(header), body
        at = end
