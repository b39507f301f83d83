"""Images that take long to generate, stored in a file at their first access."""

import logging
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from linrnn._files.door import folder_at
from linrnn._files.reading import why
from linrnn._process.memory import available
from linrnn.errors import DataError
from linrnn.tasks._kinds.generated import BatchDataset

Make = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Bytes (images, width) and classes (images,), below 255, of the images with some numbers."""

_SUM = 4
"""Bytes of a checksum."""


class KeptImages(BatchDataset):
    """Images of bytes with a class each, generated at their first access.

    They are kept in a file that is as large as all of them, most of it a hole at first; after the
    pixels of each come their checksum and 1 + its class. An image of which a power cut left a part
    is made again. Processes may share the file, for all would write the same. Where it cannot be
    written, they are kept in memory.

    Args:
        size: number of images.
        width: pixels of one.
        make: makes some of them.
        sequences: bytes (images, width) as what a model reads.
        path: of the file, whose name must tell apart all that would be made differently.

    Raises:
        DataError: they fit neither into a file nor into memory.
    """

    def __init__(
        self,
        size: int,
        width: int,
        make: Make,
        sequences: Callable[[Tensor], Tensor],
        path: Path,
    ) -> None:
        self.make, self.sequences = make, sequences
        self.rows = _open(path, size, width + _SUM + 1)

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        """Sequences and classes."""
        rows = np.asarray(indices)
        records = np.array(self.rows[rows])
        intact = (records[:, -1] > 0) & (records[:, -1 - _SUM : -1] == _checksums(records)).all(1)
        if not intact.all():
            missing = np.unique(rows[~intact])
            self.rows[missing] = self._make(missing)
            records = np.array(self.rows[rows])
        images = torch.from_numpy(records)
        return self.sequences(images[:, : -1 - _SUM]), images[:, -1].long() - 1

    def _make(self, numbers: np.ndarray) -> np.ndarray:
        """The rows of some images."""
        rows = np.zeros((len(numbers), self.rows.shape[1]), np.uint8)
        pixels, label = self.make(numbers)
        rows[:, : -1 - _SUM] = pixels
        rows[:, -1] = 1 + label
        rows[:, -1 - _SUM : -1] = _checksums(rows)
        return rows


def _checksums(rows: np.ndarray) -> np.ndarray:
    """(images, bytes) over pixels and class of some rows."""
    sums = [zlib.crc32(row[-1:], zlib.crc32(row[: -1 - _SUM])) for row in rows]
    return np.array(sums, "<u4").view(np.uint8).reshape(len(rows), _SUM)


def _open(path: Path, size: int, width: int) -> np.ndarray:
    """(size, width) bytes, 0 where nothing was written yet."""
    try:
        with folder_at(path.parent, make=True) as folder:
            handle = folder.open(path.name, os.O_RDWR | os.O_CREAT)
        with os.fdopen(handle, "r+b") as file:
            file.truncate(size * width)
            return np.memmap(file, np.uint8, "r+", shape=(size, width))
    except OSError as error:
        if size * width > available():
            raise DataError(
                f"{path}: the images must fit into a file or into memory, got {size:,} of "
                f"{width:,} bytes, and of the file: {why(error)}. Ask for fewer."
            ) from error
        logging.getLogger(__name__).warning("images are kept in memory alone: %s", error)
        return np.zeros((size, width), np.uint8)
