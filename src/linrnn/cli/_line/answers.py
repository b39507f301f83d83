"""Answers that are kept: what `list`, `show` and `--help` say is the same until something changes.

To show a mixer is to import PyTorch, and to list all of them to parse their sources, which takes a
second or more. So such an answer is kept in the user's cache folder, under a digest of all that it
can depend on: the words of the command, the files of this package, the packages that are installed,
the environment, the interpreter and the terminal. In doubt the answer is computed. Plug-ins and
import paths are code of others; and an answer that read a file beyond the installation, or says
what is missing, may change with no sign of it. ``LINRNN_ANSWERS=0`` in the environment keeps none
and uses none.
"""

import functools
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import linrnn
from linrnn._files.door import Folder, folder_at, read_bytes
from linrnn._options.catalogue import OPEN, registered
from linrnn.errors import LinrnnError

OFF = "LINRNN_ANSWERS"
MOST = 200
"""Answers that are kept; beyond, the oldest make room."""
_LARGEST = 4 << 20  # bytes of an answer
_WORD = re.compile("-{0,2}[A-Za-z][A-Za-z0-9_-]*")
_VERBS = ("list", "show", "help")
_HELP = ("-h", "--help")
_OPTIONS = ("-q", "--quiet", "-v", "--verbose", "--json", "--mixer", "--recipe", "--scale", *_HELP)
# of a shell and its window: no answer looks at them
_IGNORED = ("_", "OLDPWD", "PWD", "SHLVL", "TERM_SESSION_ID", "WINDOWID", "TMUX_PANE", "SSH_TTY")
_SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/usr")
_SESSION: "list[_Record]" = []
"""The record of the command that runs, if its answer may be kept."""


def doubt() -> None:
    """Say that this answer may change though nothing changed that can be seen: it is not kept."""
    for record in _SESSION:
        record.complete = False


def answered(args: Sequence[str], compute: Callable[[], int]) -> int:
    """The exit code of a command, whose answer was written: the kept one, or by ``compute``.

    Args:
        args: the words of the command line of this process.
        compute: runs it.
    """
    if not _storable(args):
        return compute()
    try:
        files = _files()
        parts = [[*args], _surroundings(), files]
    except (OSError, AttributeError):  # it cannot be seen
        return compute()
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    text = _stored(key)
    if text is not None:
        sys.stdout.write(text)
        return 0
    try:
        with recorded() as record:
            code = compute()
    except SystemExit as end:  # of a parser that has printed its help
        if end.code in (0, None):
            _store(key, files, record)
        raise
    if code == 0:
        _store(key, files, record)
    return code


def _storable(args: Sequence[str]) -> bool:
    environment = os.environ
    if environment.get(OFF) == "0" or environment.get("LINRNN_TRUST") or "torch" in sys.modules:
        return False
    words = all(_WORD.fullmatch(arg) or arg in _HELP for arg in args)
    verb = next((arg for arg in args if not arg.startswith("-")), None)
    asks = verb in _VERBS or any(arg in _HELP for arg in args)
    options = [arg for arg in args if arg.startswith("-")]
    return words and verb is not None and asks and all(arg in _OPTIONS for arg in options)


def _surroundings() -> list[Any]:
    """All that an answer can depend on beside its command line and files."""
    return [
        [linrnn.__version__, sys.version, sys.executable, sys.prefix, [*sys.flags]],
        [sys.warnoptions, sorted(map(str, sys._xoptions.items()))],
        sorted((k, v) for k, v in os.environ.items() if k not in _IGNORED),
        [_terminal(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
        [*shutil.get_terminal_size()],
    ]


def _files() -> list[Any]:
    """State of the files of this package and of the packages around it."""
    return [
        [_files_of(folder) for folder in linrnn.__path__],
        [_packages_of(folder or os.getcwd()) for folder in sys.path],
    ]


def _terminal(stream: Any) -> list[Any]:
    size = None
    with suppress(OSError, ValueError):
        size = [*os.get_terminal_size(stream.fileno())]
    return [stream.isatty(), stream.encoding, size]


def _files_of(folder: str) -> list[Any]:
    """Every file of a package: its path, when it was changed, and its size."""
    files = []
    for entry in os.scandir(folder):
        if entry.is_dir():
            if entry.name != "__pycache__":
                files += _files_of(entry.path)
        else:
            files.append(_file(entry.path))
    return sorted(files)


def _file(path: str) -> list[Any]:
    status = os.stat(path)
    return [path, status.st_mtime_ns, status.st_size, status.st_ino]


def _packages_of(folder: str) -> list[Any]:
    """The packages that lie in a folder of ``sys.path``, and when each was installed."""
    if not os.path.isdir(folder):
        return [folder, _file(folder)] if os.path.exists(folder) else [folder]
    packages: list[Any] = [folder, os.stat(folder).st_mtime_ns]
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name.endswith((".dist-info", ".egg-info")) and entry.is_dir():
            packages.append(_file(entry.path))
            for name in ("METADATA", "entry_points.txt"):
                with suppress(FileNotFoundError):
                    packages.append(_file(os.path.join(entry.path, name)))
        elif entry.name.endswith((".pth", ".egg-link")):
            packages.append(_file(entry.path))
    return packages


def _place(key: str) -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return Path(root or Path.home() / ".cache") / "linrnn" / "answers" / f"{key}.json"


def _stored(key: str) -> str | None:
    try:
        place = _place(key)
        stored = json.loads(read_bytes(place, inside=place.parent, limit=_LARGEST))
        text = stored["text"]
        return text if _digest(key, text) == stored["digest"] else None
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError):
        return None  # there is none, or it is damaged


def _digest(key: str, text: str) -> str:
    return hashlib.sha256(f"{key}{text}".encode()).hexdigest()


class _Record:
    """Output of a command, and the files it opens."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.stdout, self.stderr = sys.stdout, sys.stderr
        self.complete = True
        roots = {sys.prefix, sys.base_prefix, *linrnn.__path__, *_SYSTEM}
        roots |= {p for p in sys.path if p.rstrip(os.sep).endswith(("-packages", ".zip"))}
        self.roots = tuple(os.path.realpath(root) + os.sep for root in roots)
        # which names these have is part of the key, by when they were changed
        self.searched = {os.path.realpath(folder) for folder in sys.path}

    def hear(self, event: str, values: tuple[Any, ...]) -> None:
        """Files that are read beyond what is installed leave a doubt."""
        path = values[0]
        if isinstance(path, (str, bytes, os.PathLike)):
            real = os.path.realpath(os.fsdecode(path))
            searched = event != "open" and real in self.searched
            if not searched and not (real + os.sep).startswith(self.roots):
                self.complete = False


class _Twin:
    """A stream that is also written down; who goes around it leaves a doubt."""

    def __init__(self, stream: Any, record: _Record, answer: bool) -> None:
        self._stream, self._record, self._answer = stream, record, answer

    def write(self, text: str) -> int:
        if self._answer:
            self._record.parts.append(text)
        elif text:
            self._record.complete = False
        return int(self._stream.write(text))

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name in ("buffer", "detach", "reconfigure"):
            self._record.complete = False
        return getattr(self._stream, name)


@functools.cache  # a hook stays as long as the process
def _listen() -> None:
    def hook(event: str, values: tuple[Any, ...]) -> None:
        if _SESSION and event in ("open", "os.listdir", "os.scandir"):
            _SESSION[-1].hear(event, values)

    sys.addaudithook(hook)


@contextmanager
def recorded() -> Iterator[_Record]:
    """Write down the texts, and whether they depend only on the installed files."""
    record, streams = _Record(), cast(Any, sys)
    _listen()
    streams.stdout = _Twin(record.stdout, record, True)
    streams.stderr = _Twin(record.stderr, record, False)
    _SESSION.append(record)
    try:
        yield record
    finally:
        _SESSION.remove(record)
        sys.stdout, sys.stderr = record.stdout, record.stderr


def _store(key: str, files: list[Any], record: _Record) -> None:
    """Keep an answer, if all of it was recorded and it is as it would be again."""
    if not record.complete or any(map(registered, OPEN)):
        return
    text = "".join(record.parts)
    place = _place(key)
    data = json.dumps({"digest": _digest(key, text), "text": text}).encode()
    with suppress(OSError, LinrnnError, ValueError, RuntimeError):
        if _files() != files:  # edited in the meantime
            return
        with folder_at(place.parent, make=True) as folder:
            # not by `storage`, which imports PyTorch; a file that was cut off is not believed
            temporary, handle = folder.create(place.name)
            try:
                os.write(handle, data)
            finally:
                os.close(handle)
            folder.replace(temporary, place.name)
            _make_room(folder)


def _make_room(folder: Folder) -> None:
    """Remove the oldest answers where there are too many."""
    ages = {name: folder.look(name) for name in folder.names()}
    dated = sorted((status.st_mtime_ns, name) for name, status in ages.items() if status)
    for _, name in dated[: max(0, len(dated) - MOST)]:
        folder.remove(name)
