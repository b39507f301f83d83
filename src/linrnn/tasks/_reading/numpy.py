"""NumPy's files from strangers: nothing is unpickled, and nothing is believed about a size."""

import lzma
import math
import os
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from linrnn._files.door import open_file

BOMB_BYTES, BOMB_RATIO = 256 << 20, 100
"""A file that unpacks to more bytes than this, and by more than this ratio, is refused."""

BOMB_TEXT = 16 << 20
"""The same of a text that is read whole, of which a cell of two bytes takes some forty."""

_MEMBERS = 1 << 16  # of an archive

_HEADER_BYTES = 1000  # time to read one grows with the square; of an array it is 118 or few more

# what reading a damaged or made-up file raises; RuntimeError says that an archive is encrypted
DAMAGED = (
    *(ValueError, OSError, EOFError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, tokenize.TokenError),
)


class ObjectsError(ValueError):
    """An array of objects, which only code could restore.

    Attributes:
        name: of the array in an archive; empty of a .npy.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"Object arrays, which could run code{name and f', in {name}'}")
        self.name = name


def open_numpy(path: Path) -> Any:
    """Open a file as `numpy.load` does, after its headers were found to be true.

    Args:
        path: a .npy or an .npz.

    Raises:
        ObjectsError: objects.
        ValueError: a header that claims another size than there is; or an archive that would unpack
            to far more than it is.
        DAMAGED: one of these for any other damage; reading an array of an archive may as well.
    """
    file = open_file(path, inside=None)
    try:
        size = os.fstat(file.fileno()).st_size
        packed = zipfile.is_zipfile(file)
        file.seek(0)
        if packed:
            _check_archive(file, size)
        else:
            _check_header(file, size)
        file.seek(0)
        loaded = np.load(file, allow_pickle=False)
        if packed:
            loaded.fid = file  # it is closed with the archive
    except BaseException:
        file.close()
        raise
    if not packed:
        file.close()
    return loaded


def _check_archive(file: BinaryIO, size: int) -> None:
    """Raise unless an .npz holds arrays alone, in all not far more than it is."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if len(members) > _MEMBERS:
            raise ValueError(f"{len(members):,} arrays, more than {_MEMBERS:,}")
        # a part of the file may be that of several members
        check_ratio(sum(member.file_size for member in members), size)
        for member in members:
            if not member.filename.endswith(".npy"):  # NumPy would give its bytes
                raise ValueError(f"{member.filename!r:.60}, which is no array")
            with archive.open(member) as array:
                _check_header(array, member.file_size, member.filename.removesuffix(".npy"))


def check_ratio(unpacked: int, packed: int, free: int | None = None) -> None:
    """Raise `ValueError` for what unpacks to far more than it is, and to more than ``free``.

    Args:
        unpacked, packed: bytes.
        free: which need no reason. Default: `BOMB_BYTES`.
    """
    if unpacked > (BOMB_BYTES if free is None else free) and unpacked > BOMB_RATIO * packed:
        raise ValueError(f"{packed:,} bytes that would unpack to {unpacked:,}")


def _check_header(file: Any, size: int, name: str = "") -> None:
    """Raise unless a .npy holds what its header says; nothing is allocated for the array."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    try:
        shape, _, dtype = read(file, max_header_size=_HEADER_BYTES)
    except ValueError as error:  # of NumPy's lines, the others give advice
        raise ValueError(str(error).partition("\n")[0]) from None
    if dtype.hasobject:
        raise ObjectsError(name)
    if any(type(n) is not int for n in shape):
        raise ValueError(f"an array of the shape {shape!r:.60}")
    # an empty array may have long axes, and its numbers no bytes: both would take time and memory
    claimed = math.prod(max(n, 1) for n in shape) * max(dtype.itemsize, 1)
    if min(shape, default=0) < 0 or claimed > size:
        raise ValueError(f"an array of {claimed:,} bytes announced in {size:,}")
