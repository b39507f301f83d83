"""How files are written, all of them or nothing, and read, no more of them than is expected."""

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from linrnn.errors import StorageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_CHECKSUM = "sha256"

MAX_JSON = 16 << 20
"""Bytes that no configuration, result or other record comes near."""

FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))
"""Error numbers of a disk, a file or a quota that takes no more."""

DENIED = (errno.EROFS, errno.EACCES, errno.EPERM)
"""Error numbers of a place that cannot be written to."""


def write_atomically(path: Path, data: bytes, *, keep: Path | None = None) -> None:
    """Replace a file's content: a reader, or a power cut, sees the old bytes or the new ones.

    Args:
        path: the file; its folder is made.
        data: all of it.
        keep: a name for the old content, in the same folder; there is no moment without ``path``.

    Raises:
        StorageError: the disk is full, the folder read-only, ...; the old file is as it was.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp makes it readable by the owner alone
        if keep is not None and path.exists():
            link(path, keep)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except BaseException as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise cannot_write(path, error) from error
        raise


def link(path: Path, other: Path) -> None:
    """Make ``other`` a second name for a file, in the place of what has that name."""
    temporary = other.with_name(f".{other.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    try:
        os.link(path, temporary)
    except OSError:  # not every file system has links
        shutil.copyfile(path, temporary)
    os.replace(temporary, other)
    # where both were names of one file already, nothing was replaced
    temporary.unlink(missing_ok=True)


def append(path: Path, data: bytes) -> None:
    """Add to the end of a file and wait until the disk has it; a cut-off piece may be left.

    Raises:
        StorageError: the file cannot be written.
    """
    try:
        with open(path, "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise cannot_write(path, error) from error


def remove_leftovers(path: Path) -> None:
    """Remove what a process left that was killed while it wrote or linked ``path``.

    For whoever may be sure that no other process is writing it.
    """
    ours = re.compile(rf"\.{re.escape(path.name)}\.\w+")
    if path.parent.is_dir():
        for other in path.parent.iterdir():
            if ours.fullmatch(other.name):
                other.unlink(missing_ok=True)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is made; it ends with the process, however that ends.

    Raises:
        BlockingIOError: another process holds it. Never on Windows, where nothing is locked.
        OSError: the file cannot be made.
    """
    with open(path, "w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def read_text(path: Path, limit: int = MAX_JSON) -> str:
    """The text of a file that no more than ``limit`` bytes are read of.

    Raises:
        OSError: it cannot be read.
        ValueError: it is longer, or no UTF-8.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise ValueError(f"a file of {size:,} bytes, more than {limit:,}")
        data = file.read(limit + 1)
    if len(data) > limit:  # a pipe or a device has no size
        raise ValueError(f"more than {limit:,} bytes")
    return data.decode()


def read_json(path: Path, limit: int = MAX_JSON) -> Any:
    """The value in a JSON file of at most ``limit`` bytes.

    Raises:
        OSError: it cannot be read.
        ValueError: it is longer, or no JSON.
    """
    try:
        return json.loads(read_text(path, limit))
    except RecursionError as error:
        raise ValueError("JSON that is nested too deep") from error


def cannot_write(path: Path, error: OSError) -> StorageError:
    """The error about a file that cannot be written, with what to do about the reason."""
    fix = "Choose a folder that can be written to"
    if error.errno in FULL:
        fix = "Free space on the disk"
    elif error.errno == errno.EIO:
        fix = "Check the disk"
    return StorageError(
        f"{path}: the file must be writable, got: {error.strerror or error}. {fix}; what was "
        "there before is as it was."
    )


class WrongChecksumError(ValueError):
    """The content of a file of tensors is not that which was written."""


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    *,
    keep: Path | None = None,
) -> None:
    """Write a safetensors file whose metadata holds the checksum of all the rest.

    Args:
        path, keep: as of `write_atomically`.
        tensors: contiguous, on the CPU, none sharing memory with another.
        metadata: texts by name.
    """
    meta = {**metadata, _CHECKSUM: checksum(tensors, metadata)}
    write_atomically(path, save(dict(tensors), meta), keep=keep)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata that `write_tensors` wrote.

    Raises:
        SafetensorError, OSError, ValueError: it is no such file.
        WrongChecksumError: it holds something else than was written.
    """
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata() or {})
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    expected = metadata.pop(_CHECKSUM, "none")
    found = checksum(tensors, metadata)
    if found != expected:
        raise WrongChecksumError(f"SHA-256 {found[:12]} instead of {expected[:12]}")
    return tensors, metadata


def checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """SHA-256 over named tensors on the CPU (name, dtype, shape, bytes) and over metadata."""
    digest = hashlib.sha256()
    for key, value in sorted(metadata.items()):
        digest.update(json.dumps([key, value]).encode())
    for name, x in sorted(tensors.items()):
        digest.update(json.dumps([name, str(x.dtype), list(x.shape)]).encode())
        # uint8 also shows the bytes of types NumPy does not know, such as bfloat16
        digest.update(x.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    """Make a rename in this folder survive a power cut."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
