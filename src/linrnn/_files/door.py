"""The one door to files: only regular ones come through, and inside a folder no link is followed.

Whoever calls linrnn may name a file or a folder by a link, which is followed. What lies in that
folder may be from a stranger: a link there leads to a place that the caller did not name, a pipe
or a device is read for ever. So a name inside a folder is looked up from the folder downwards,
one step after the other, and each must be a folder, the last one a regular file.
"""

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

MAX_WHOLE = 1 << 30
"""Bytes of a file that is read whole, at most."""

# a name that changes between a look and the opening neither leads away nor makes anyone wait
_CAREFUL = (
    getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_BELOW = os.open in os.supports_dir_fd  # not on Windows, where paths are looked up step by step
_CHUNK = 1 << 20
_MODE = 0o666  # of which the umask takes what it takes

LINK = "a symbolic link, which is not followed inside a folder"
_KINDS = (
    (stat.S_ISLNK, LINK),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class DoorError(OSError, ValueError):
    """The path is no regular file inside its folder, or the file is too large; the text says which.

    Args:
        path: of the file.
        what: was found.
    """

    def __init__(self, path: Path | str, what: str) -> None:
        super().__init__(errno.EINVAL, what, str(path))

    def __str__(self) -> str:
        return str(self.strerror)


class Folder:
    """A folder that is open: whatever becomes of its path, names in it stay in it.

    Args:
        path: for messages, and where the system opens no file below an open folder.
        handle: of the open folder; None on such a system.
    """

    def __init__(self, path: Path, handle: int | None) -> None:
        self.path, self.handle = path, handle

    def look(self, name: str) -> os.stat_result | None:
        """The status of a name itself, not of a link's target; None where there is nothing."""
        try:
            return os.stat(self._at(name), dir_fd=self.handle, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open(self, name: str, flags: int) -> int:
        """A descriptor of a regular file, made with the umask's mode if ``flags`` say so.

        Raises:
            DoorError: something else has the name.
            OSError: it cannot be opened.
        """
        path = self.path / name
        with _named(path):
            status = self.look(name)
            if status is not None:  # to open a device may already do something
                _check_regular(path, status)
            handle = os.open(self._at(name), flags | _CAREFUL | _NO_LINK, _MODE, dir_fd=self.handle)
        return _regular(path, handle)

    def create(self, name: str) -> tuple[str, int]:
        """A new file beside the one of a name: what it is called, and its descriptor."""
        temporary = f".{name}.{secrets.token_hex(4)}"
        return temporary, self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def replace(self, name: str, target: str) -> None:
        """Rename a file, and replace the one that has the new name."""
        os.replace(self._at(name), self._at(target), src_dir_fd=self.handle, dst_dir_fd=self.handle)

    def link(self, name: str, target: str) -> None:
        """Make ``target`` a second name for a file, and replace the one that has that name."""
        status = self.look(name)
        if status is not None:
            _check_regular(self.path / name, status)
        temporary = f".{target}.{os.getpid()}"
        self.remove(temporary)
        try:
            self._link(name, temporary)
            self.replace(temporary, target)
        finally:
            # where both were names of one file already, nothing was replaced
            self.remove(temporary)

    def _link(self, name: str, target_name: str) -> None:
        below: dict[str, Any] = {}
        if self.handle is not None:
            below = {"src_dir_fd": self.handle, "dst_dir_fd": self.handle, "follow_symlinks": False}
        try:
            os.link(self._at(name), self._at(target_name), **below)
        except OSError:  # not every file system has links
            source = self.open(name, os.O_RDONLY)
            with os.fdopen(source, "rb") as old:
                target = self.open(target_name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                with os.fdopen(target, "wb") as new:
                    shutil.copyfileobj(old, new)

    def remove(self, name: str) -> None:
        """Remove a name if it is there; a link goes, and not what it leads to."""
        try:
            os.unlink(self._at(name), dir_fd=self.handle)
        except FileNotFoundError:
            return

    def names(self) -> list[str]:
        """The names of all its entries, in order."""
        return sorted(os.listdir(self.path if self.handle is None else self.handle))

    def sync(self) -> None:
        """Make renames in it survive a power cut."""
        if self.handle is not None:
            os.fsync(self.handle)

    def below(self, name: str, *, make: bool = False) -> "Folder":
        """A folder in this one.

        Args:
            name: of it.
            make: it where it is missing.

        Raises:
            DoorError: a link or a file has the name.
        """
        path = self.path / name
        with _named(path):
            if make and self.look(name) is None:
                _make(self._at(name), self.handle)
                self.sync()  # or a power cut takes the name, and all that is in the folder
            status = self.look(name)
            if status is not None:
                _check_folder(path, status)
            if self.handle is None:
                return Folder(path, None)
            flags = os.O_RDONLY | os.O_DIRECTORY | _CAREFUL | _NO_LINK
            return Folder(path, os.open(name, flags, dir_fd=self.handle))

    def close(self) -> None:
        """Let go of it."""
        if self.handle is not None:
            os.close(self.handle)

    def _at(self, name: str) -> str:
        """A name as the system is to be asked about it; never one that leads out of the folder."""
        if name in ("", ".", "..") or "/" in name or os.path.basename(name) != name:
            raise DoorError(self.path / name, "a name outside its folder")
        return name if self.handle is not None else str(self.path / name)


@contextmanager
def folder_at(path: Path, inside: Path | None = None, *, make: bool = False) -> Iterator[Folder]:
    """A folder, open.

    Args:
        path: of it.
        inside: a folder above it, which may be a link; nothing below it may. None: ``path``.
        make: it, and those above, where they are missing.

    Raises:
        DoorError: a link or a file is on the way, or ``path`` does not lie in ``inside``.
        OSError: it is missing, or cannot be opened or made.
    """
    top = path if inside is None else inside
    steps = _steps(path, top)
    with _named(top):
        if make:
            make_folder(top)
        if not stat.S_ISDIR(os.stat(top).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(top))
        flags = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _CAREFUL
        folder = Folder(top, os.open(top, flags) if _BELOW else None)
    try:
        for step in steps:
            above, folder = folder, folder.below(step, make=make)
            above.close()
        yield folder
    finally:
        folder.close()


def open_file(path: Path, *, inside: Path | None, limit: int | None = None) -> BinaryIO:
    """A regular file, open for reading.

    Args:
        path: of it.
        inside: a folder above it, which may be a link; nothing below it may. None where whoever
            calls linrnn named the file itself, which may then be a link.
        limit: bytes it may have at most.

    Raises:
        DoorError: it is no regular file, not in ``inside``, or larger.
        OSError: it is missing or cannot be opened.
    """
    if inside is None:
        with _named(path):
            _check_regular(path, os.stat(path))
            handle = _regular(path, os.open(path, os.O_RDONLY | _CAREFUL))
    else:
        steps = _steps(path, inside)
        if not steps:
            raise DoorError(path, "a folder")
        with folder_at(inside.joinpath(*steps[:-1]), inside) as folder:
            handle = folder.open(steps[-1], os.O_RDONLY)
    file = cast(BinaryIO, os.fdopen(handle, "rb"))
    size = os.fstat(handle).st_size
    if limit is not None and size > limit:
        file.close()
        raise DoorError(path, f"a file of {size:,} bytes, more than {limit:,}")
    return file


def read_bytes(path: Path, *, inside: Path | None, limit: int = MAX_WHOLE) -> bytes:
    """All of a file that has no more than ``limit`` bytes; see `open_file`."""
    with open_file(path, inside=inside, limit=limit) as file:
        data = file.read(os.fstat(file.fileno()).st_size + 1)
        while chunk := file.read(_CHUNK):  # it has grown, or has no size, as below /proc
            data += chunk
            if len(data) > limit:
                raise DoorError(path, f"more than {limit:,} bytes")
    return data


def check_file(path: Path, *, inside: Path) -> Path:
    """``path``, if it is a regular file in ``inside`` that no link leads to; see `open_file`."""
    steps = _steps(path, inside)
    if not steps:
        raise DoorError(path, "a folder")
    with folder_at(inside.joinpath(*steps[:-1]), inside) as folder, _named(path):
        status = folder.look(steps[-1])
        if status is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        _check_regular(path, status)
    return path


def check_folder(path: Path, *, inside: Path) -> None:
    """Raise `DoorError` if there is something at ``path`` and it is no folder, or a link is."""
    try:
        with folder_at(path, inside):
            return
    except FileNotFoundError:
        return


def what_is(path: Path) -> str:
    """Describe the file at a path if it is no regular file."""
    try:
        return _kind(os.stat(path))
    except OSError as error:
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        return "no such file" if missing else error.strerror or "no file"
    except ValueError:  # a name that no file can have
        return "no such file"


def no_folder(path: Path) -> str:
    """Describe what is at a path that is no folder."""
    kind = what_is(path)
    if kind == "no such file":
        return "no such folder"
    return "a file" if os.path.isfile(path) else kind


def address(file: BinaryIO, path: Path) -> str:
    """A path that leads to a file which is open, for libraries that take nothing else.

    Raises:
        DoorError: the system has no such paths, and ``path`` is another file by now.
    """
    handle = file.fileno()
    for place in ("/proc/self/fd", "/dev/fd"):
        if os.path.exists(f"{place}/{handle}"):
            return f"{place}/{handle}"
    if not os.path.samestat(os.stat(path), os.fstat(handle)):
        raise DoorError(path, "another file than a moment before")
    return str(path)


def _steps(path: Path, inside: Path) -> tuple[str, ...]:
    """The names on the way down to a path."""
    try:
        steps = path.relative_to(inside).parts
    except ValueError:
        steps = ("..",)
    if ".." in steps:
        raise DoorError(path, "a place outside its folder")
    return steps


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Let errors of the system name the whole path, and wrong names be errors of the door."""
    try:
        yield
    except DoorError:
        raise
    except OSError as error:
        if error.errno == errno.ELOOP:  # it became a link after the look, or leads to itself
            raise DoorError(path, LINK) from error
        if error.errno == errno.ENXIO:
            raise DoorError(path, "a pipe, a socket or a device") from error
        error.filename = str(path)
        del error.filename2  # of None the text would say "-> None"
        raise
    except ValueError as error:  # a zero byte, or what the file system cannot spell
        raise DoorError(path, "a name that no file can have") from error


def make_folder(path: Path, *, new: bool = False) -> None:
    """Make a folder and those above it, and have the disk hold their names.

    Args:
        path: of it.
        new: whether one that is there already is an error.

    Raises:
        FileExistsError: it is there, and must be new; or a file has a name on the way.
        OSError: it cannot be made.
    """
    missing, above = [], path
    while not above.is_dir() and above != above.parent:
        missing.append(above)
        above = above.parent
    if new and not missing:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    for folder in reversed(missing):
        try:
            os.mkdir(folder)
        except FileExistsError:
            if not folder.is_dir() or (new and folder == path):  # another process was faster
                raise
        sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder survive a power cut; nothing on systems without such a call."""
    if _BELOW:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _CAREFUL)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _make(name: str, handle: int | None) -> None:
    try:
        os.mkdir(name, dir_fd=handle)
    except FileExistsError:  # another process was faster
        return


def _check_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise DoorError(path, _kind(status))


def _check_folder(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode):
        what = "a file" if stat.S_ISREG(status.st_mode) else _kind(status)
        raise DoorError(path, f"{path.name} as {what}")


def _kind(status: os.stat_result) -> str:
    return next((name for of, name in _KINDS if of(status.st_mode)), "no regular file")


def _regular(path: Path, handle: int) -> int:
    """The descriptor, if it is one of a regular file."""
    try:
        _check_regular(path, os.fstat(handle))
    except BaseException:
        os.close(handle)
        raise
    return handle
