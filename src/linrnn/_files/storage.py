"""How files are written, all of them or nothing, and read, no more of them than is expected."""

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from linrnn._files.door import address, folder_at, open_file, read_bytes, sync_folder
from linrnn.errors import StorageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_CHECKSUM = "sha256"

MAX_JSON = 16 << 20
"""Bytes that no configuration, result or other record comes near."""

MAX_TENSORS = 64 << 30
"""Bytes that no file of weights or of a state comes near; tensors are mapped, not copied."""

FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))
"""Error numbers of a disk, a file or a quota that takes no more."""

DENIED = (errno.EROFS, errno.EACCES, errno.EPERM)
"""Error numbers of a place that cannot be written to."""


def write_atomically(
    path: Path, data: bytes, *, keep: Path | None = None, inside: Path | None = None
) -> None:
    """Replace a file's content: a reader, or a power cut, sees the old bytes or the new ones.

    Args:
        path: the file; its folder is made.
        data: all of it.
        keep: a name for the old content, in the same folder; there is no moment without ``path``.
        inside: a folder above it, below which no link is followed. None: its own.

    Raises:
        StorageError: the disk is full, the folder read-only, ...; the old file is as it was.
    """
    try:
        with replaced(path, keep=keep, inside=inside) as file:
            file.write(data)
    except OSError as error:
        raise cannot_write(path, error) from error


@contextmanager
def replaced(
    path: Path, *, keep: Path | None = None, inside: Path | None = None
) -> Iterator[IO[bytes]]:
    """A file to write to that takes the place of ``path`` when it is complete.

    Args:
        path, keep, inside: as of `write_atomically`.

    Raises:
        OSError: it cannot be written; the old file is as it was.
    """
    with folder_at(path.parent, inside, make=True) as folder:
        temporary, handle = folder.create(path.name)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if keep is not None and folder.look(path.name) is not None:
                folder.link(path.name, keep.name)
            folder.replace(temporary, path.name)
            folder.sync()
        except BaseException:
            folder.remove(temporary)
            raise


def link(path: Path, target: Path, *, inside: Path | None = None) -> None:
    """Make ``target`` a second name for a file of the same folder, and replace its old file."""
    with folder_at(path.parent, inside) as folder:
        folder.link(path.name, target.name)


def rename(path: Path, target: Path, *, inside: Path | None = None) -> None:
    """Give a file another name in the same folder, and replace the file that has it."""
    with folder_at(path.parent, inside) as folder:
        folder.replace(path.name, target.name)


def complete(path: Path, target: Path) -> None:
    """Give a file that came piece by piece its own name, once the disk has all of it."""
    with folder_at(path.parent) as folder:
        handle = folder.open(path.name, os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        folder.replace(path.name, target.name)
        folder.sync()


def remove(path: Path, *, inside: Path | None = None) -> None:
    """Remove a file if it is there; of a link, the link."""
    try:
        with folder_at(path.parent, inside) as folder:
            folder.remove(path.name)
    except FileNotFoundError:
        return


def append(path: Path, data: bytes, *, inside: Path | None = None) -> None:
    """Add to the end of a file and wait until the disk has it; a cut-off piece may be left.

    Raises:
        StorageError: the file cannot be written.
    """
    try:
        with folder_at(path.parent, inside) as folder:
            new = folder.look(path.name) is None
            handle = folder.open(path.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            with os.fdopen(handle, "ab") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if new:
                folder.sync()
    except OSError as error:
        raise cannot_write(path, error) from error


def remove_leftovers(path: Path, *, inside: Path | None = None) -> None:
    """Remove what a process left that was killed while it wrote or linked ``path``.

    For whoever may be sure that no other process is writing it.

    Raises:
        DoorError: a link is on the way.
    """
    ours = re.compile(rf"\.{re.escape(path.name)}\.\w+")
    try:
        with folder_at(path.parent, inside) as folder:
            for name in folder.names():
                if ours.fullmatch(name):
                    folder.remove(name)
    except FileNotFoundError:
        return


@contextmanager
def exclusive(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a file, which is made; it ends with the process, however that ends.

    What the file holds, if it was there before, stays as it is. A power cut that leaves anything
    of what is written under the lock leaves the file too: it says whose the rest is.

    Args:
        path: of the file; a link is not followed.
        wait: until another process lets go of it.

    Raises:
        BlockingIOError: another process holds it. Never on Windows, where nothing is locked.
        OSError: the file cannot be made, or is no regular one.
    """
    with folder_at(path.parent) as folder:
        new = folder.look(path.name) is None
        handle = folder.open(path.name, os.O_RDWR | os.O_CREAT)
    try:
        if new:
            sync_folder(path.parent)
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(handle)


@contextmanager
def report_in(folder: Path, names: Iterable[str]) -> Iterator[None]:
    """Inside, no other process writes the report of a folder.

    What one that was killed left half-written of it is removed.

    Args:
        folder: that several processes may work in.
        names: of the files of the report.

    Raises:
        StorageError: the folder cannot be written to.
    """
    with ExitStack() as locks:
        try:
            locks.enter_context(exclusive(folder / ".report.lock", wait=True))
            for name in names:
                remove_leftovers(folder / name)
        except OSError as error:
            raise cannot_write(folder, error) from error
        yield


def read_text(path: Path, limit: int = MAX_JSON, *, inside: Path | None) -> str:
    """The text of a file of at most ``limit`` bytes.

    Args:
        path, inside: as of `linrnn._files.door.open_file`.
        limit: of its bytes.

    Raises:
        OSError: it cannot be read.
        ValueError: it is longer, no regular file in its folder, or no UTF-8.
    """
    return read_bytes(path, inside=inside, limit=limit).decode()


def read_json(path: Path, limit: int = MAX_JSON, *, inside: Path | None) -> Any:
    """The value in a JSON file of at most ``limit`` bytes.

    Raises:
        OSError, ValueError: as `read_text`, or it is no JSON.
    """
    try:
        return json.loads(read_text(path, limit, inside=inside))
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
    inside: Path | None = None,
) -> None:
    """Write a safetensors file whose metadata holds the checksum of all the rest.

    Args:
        path, keep, inside: as of `write_atomically`.
        tensors: contiguous, on the CPU, none sharing memory with another.
        metadata: texts by name.
    """
    meta = {**metadata, _CHECKSUM: checksum(tensors, metadata)}
    write_atomically(path, save(dict(tensors), meta), keep=keep, inside=inside)


@contextmanager
def open_tensors(path: Path, *, inside: Path | None) -> Iterator[Any]:
    """A safetensors file, open, as its library gives it; its tensors stay when it is closed.

    Args:
        path, inside: as of `linrnn._files.door.open_file`.

    Raises:
        SafetensorError, OSError, ValueError: it is no such file, or larger than `MAX_TENSORS`.
    """
    with (
        open_file(path, inside=inside, limit=MAX_TENSORS) as file,
        safe_open(address(file, path), framework="pt") as stored,
    ):
        yield stored


def read_tensors(path: Path, *, inside: Path | None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata that `write_tensors` wrote.

    Args:
        path, inside: as of `linrnn._files.door.open_file`.

    Raises:
        SafetensorError, OSError, ValueError: it is no such file.
        WrongChecksumError: it holds something else than was written.
    """
    with open_tensors(path, inside=inside) as file:
        metadata = dict(file.metadata() or {})
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    expected = metadata.pop(_CHECKSUM, "none")
    actual = checksum(tensors, metadata)
    if actual != expected:
        raise WrongChecksumError(f"SHA-256 {actual[:12]} instead of {expected[:12]}")
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
