"""Where a task's data lies, and how it gets there: downloads that resume and are checked."""

import gzip
import hashlib
import http.client
import io
import logging
import lzma
import os
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from linrnn._files.door import MAX_WHOLE, DoorError, check_file, folder_at, make_folder, open_file
from linrnn._files.storage import complete, exclusive, remove
from linrnn.errors import DataError
from linrnn.tasks._reading import numpy
from linrnn.tasks._reading.numpy import check_ratio

_CHUNK = 1 << 20
_MEMBERS = 1 << 20  # of an archive; the largest data set has a tenth of them
_TIMEOUT = 30.0  # seconds without a byte
_ATTEMPTS = 5

# what reading a damaged file raises
READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError)


class Source(NamedTuple):
    """A file of a data set, and where it is published."""

    name: str
    url: str
    checksum: str
    """``sha256:...``, or ``md5:...`` where nothing better was published."""


def folder_of(data_set: str, data: str = "") -> Path:
    """The folder (or file) of a data set.

    Args:
        data_set: name of its folder below ``LINRNN_DATA``, or else ``~/.cache/linrnn``.
        data: the user's own place, if one was given.
    """
    if data:
        return Path(data).expanduser()
    root = os.environ.get("LINRNN_DATA") or Path.home() / ".cache" / "linrnn"
    return Path(root).expanduser() / data_set


def obtain(task: str, source: Source, data_set: str, data: str = "", download: bool = True) -> Path:
    """The path of a file that is there, or else was downloaded.

    Args:
        task: its name, for the message.
        source: the file.
        data_set: name of its folder.
        data: the user's own place, if one was given; nothing is downloaded into it.
        download: whether the file may be.

    Raises:
        DataError: it is not there and cannot be had; the text says which file to put where.
    """
    place = folder_of(data_set, data)
    if place.is_file() and place.name == source.name:
        return place
    path = place / source.name
    if os.path.lexists(path):
        return chosen(task, path, place)
    if data or not download:
        raise missing(task, path, "no such file", [source])
    try:
        fetch(source.url, source.checksum, path)
    except DataError as error:
        raise missing(task, path, f"none, and no download: {error}", [source]) from error
    return path


def chosen(task: str, path: Path, folder: Path) -> Path:
    """``path``, if it is a regular file of a folder of data.

    Raises:
        DataError: it is something else, or a link is on the way to it.
    """
    try:
        return check_file(path, inside=folder)
    except OSError as error:
        raise DataError(
            f"{task}: the data file {path} must be a file in its folder, got "
            f"{error.strerror or error}. Put the file itself there, or name it with --data."
        ) from error


def missing(task: str, path: Path, got: str, sources: Sequence[Source]) -> DataError:
    """The one message about a file that is not there."""
    fix = " ".join(f"Get {s.name} from {s.url} and put it there" for s in sources)
    return DataError(
        f"{task}: the data file {path} must exist, got {got.rstrip('.')}. "
        f"{fix}, or name the folder that has it: --data FOLDER."
    )


def fetch(url: str, checksum: str, path: Path) -> None:
    """Download a file; it appears under its name only when it is whole and its checksum right.

    What has come so far is in ``<path>.part``. Where a download was interrupted, the next call
    goes on from there.

    Args:
        url: https, or http on this machine.
        checksum: ``sha256:...`` or ``md5:...`` in hexadecimal digits.
        path: of the file; its folder is made.

    Raises:
        DataError: no connection, an error of the server, or a file of another content.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        make_folder(path.parent)
        with _only_here(part):
            if path.is_file():  # another process was faster
                return
            logging.getLogger(__name__).warning("downloading %s to %s", url, path)
            resumed = part.is_file()
            _download(url, part)
            if resumed and not _has(part, checksum):  # its beginning may be of another version
                remove(part)
                _download(url, part)
            if not _has(part, checksum):
                size = part.stat().st_size
                remove(part)
                raise DataError(
                    f"fetch: the file at {url} must have the checksum {checksum}, got {size} "
                    "bytes of another content. Get the file from another place."
                )
            complete(part, path)
    except OSError as error:
        raise DataError(f"fetch: {path} must be writable, got {error}.") from error


def _download(url: str, part: Path) -> None:
    """Bring ``part`` to the full size, going on as long as something comes."""
    stalled = 0
    while True:
        old_size = part.stat().st_size if part.is_file() else 0
        try:
            if _transfer(url, part, old_size):
                return
            reason: object = "the connection was closed too early"
        except urllib.error.HTTPError as error:
            raise _no_download(url, f"{error.code} {error.reason}") from error
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError) as error:
            reason = getattr(error, "reason", None) or error
        except TimeoutError:
            reason = f"no byte for {_TIMEOUT:g} s"
        new_size = part.stat().st_size if part.is_file() else 0
        stalled = 0 if new_size > old_size else stalled + 1
        if not new_size or stalled >= _ATTEMPTS:
            raise _no_download(url, reason)


def _no_download(url: str, reason: object) -> DataError:
    return DataError(f"fetch: {url} must be reachable, got {reason}. Try again later.")


def _transfer(url: str, part: Path, have: int) -> bool:
    """One request; whether the file is complete after it."""
    _check_url(url)
    headers = {"User-Agent": "linrnn", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        response = urllib.request.build_opener(_Redirect).open(
            urllib.request.Request(url, headers=headers), timeout=_TIMEOUT
        )
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is left: complete, or of another file
            error.close()
            return True
        raise
    with response:
        follows = response.status == 206 and _first_byte(response) == have
        return _write(response, part, append=follows)


def _check_url(url: str) -> None:
    """Raise unless nobody on the way can read or change what comes from there."""
    parts = urllib.parse.urlsplit(url)
    is_local = parts.hostname in ("127.0.0.1", "::1", "localhost")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_local):
        raise DataError(f"fetch: url must begin with https://, got {url}.")


class _Redirect(urllib.request.HTTPRedirectHandler):
    """Follows a server to another place, but not out of https."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        _check_url(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _first_byte(response: Any) -> int | None:
    """Where a partial answer begins."""
    words = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")
    return int(words[0]) if words[0].isdigit() else None


def _write(response: Any, part: Path, append: bool) -> bool:
    """Store what comes; whether it is as much as was announced."""
    announced = response.headers.get("Content-Length")
    n_bytes = 0
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else os.O_TRUNC)
    with folder_at(part.parent) as folder:
        handle = folder.open(part.name, flags)
    with os.fdopen(handle, "ab") as file:
        try:
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                n_bytes += len(chunk)
        except http.client.IncompleteRead as error:
            file.write(error.partial)
            return False
    return announced is None or n_bytes == int(announced)


def _has(path: Path, checksum: str) -> bool:
    kind, _, digest = checksum.partition(":")
    actual = hashlib.new(kind, usedforsecurity=False)
    with open_file(path, inside=path.parent) as file:
        while chunk := file.read(_CHUNK):
            actual.update(chunk)
    return actual.hexdigest() == digest.lower()


@contextmanager
def _only_here(part: Path) -> Iterator[None]:
    """Keep other processes from the same download; they wait."""
    path = part.with_name(f"{part.name}.lock")
    with exclusive(path, wait=True):
        try:
            yield
        finally:
            remove(path)


def open_packed(path: Path, limit: int | None = None, free: int | None = None) -> io.BufferedIOBase:
    """A file for reading, unpacked if its name ends in .gz or .xz.

    Args:
        path: of the file.
        limit: bytes it may have at most, before it is unpacked.
        free: bytes it may unpack to however small it is; see `check_ratio`.

    Raises:
        OSError: it cannot be opened, is no regular file, or larger.
    """
    file = open_file(path, inside=None, limit=limit)
    if path.suffix in (".gz", ".tgz"):
        return io.BufferedReader(_Unpacked(gzip.GzipFile(fileobj=file), file, free), _CHUNK)
    if path.suffix == ".xz":
        return io.BufferedReader(_Unpacked(lzma.LZMAFile(file), file, free), _CHUNK)
    return cast(io.BufferedIOBase, file)


class _Unpacked(io.RawIOBase):
    """Unpacks a file as it is read; an error once the contents are far larger than the file."""

    def __init__(self, file: io.BufferedIOBase, packed: BinaryIO, free: int | None) -> None:
        self.file, self.packed, self.free, self.n_bytes = file, packed, free, 0
        self.size = os.fstat(packed.fileno()).st_size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self.file.readinto(buffer)
        self.n_bytes += count
        try:
            check_ratio(self.n_bytes, self.size, self.free)
        except ValueError as error:
            raise OSError(f"at least {error}") from None
        return count

    def close(self) -> None:
        self.file.close()
        self.packed.close()
        super().close()


def read_packed(path: Path, what: str) -> bytes:
    """All of a file, unpacked if its name ends in .gz or .xz.

    Args:
        path: of the file.
        what: it should hold, for the message.

    Raises:
        DataError: it is missing, damaged or too large.
    """
    try:
        with open_packed(path, MAX_WHOLE, numpy.BOMB_TEXT) as file:
            return b"".join(_limited(path, file))
    except READ_ERRORS as error:
        raise DataError(f"{path}: the file must hold {what}, got: {error}. Get it anew.") from error


def _limited(path: Path, file: io.BufferedIOBase) -> Iterator[bytes]:
    """The pieces of a file that is to be in memory whole."""
    n_bytes = 0
    while chunk := file.read(_CHUNK):
        n_bytes += len(chunk)
        if n_bytes > MAX_WHOLE:
            raise DoorError(path, f"more than {MAX_WHOLE:,} bytes")
        yield chunk


def read_tar(path: Path, select: Callable[[str], bool], what: str) -> Iterator[tuple[str, bytes]]:
    """Names and contents of some files of an archive, in its order; nothing is written to disk.

    The archive is read to its end, so one that was cut anywhere is refused.

    Args:
        path: a .tar, or one packed as .gz or .xz.
        select: whether a name is among them.
        what: the archive should be, for the message.

    Raises:
        DataError: it is missing, damaged, or no archive.
    """
    try:
        with open_packed(path) as file:
            with tarfile.open(fileobj=file, mode="r|") as archive:  # a stream, never sought in
                for count, member in enumerate(archive, 1):
                    if count > _MEMBERS:
                        raise tarfile.TarError(f"more than {_MEMBERS:,} files")
                    archive.members = []  # type: ignore[attr-defined]  # all read, kept
                    if member.isfile() and select(member.name):
                        if member.issparse():  # of any size, most of it nowhere in the file
                            raise tarfile.TarError(f"a file with holes, {member.name}")
                        content = archive.extractfile(member)
                        yield member.name, content.read() if content else b""
            while file.read(_CHUNK):
                pass
    except READ_ERRORS as error:
        raise DataError(f"{path}: the file must be {what}, got: {error}. Get it anew.") from error
