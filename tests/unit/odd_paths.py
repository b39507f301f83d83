"""Everything but a regular file that may lie where one is expected, and what watches over it."""

import os
import resource
import signal
import socket
import stat
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

SECONDS = 2.0  # of the clock and of the processor, that a refusal may take
BYTES = 256 << 20  # that it may add to the memory of the process

LINKS = ("link outside", "link inside", "dangling link", "link to itself", "link to a device")
OTHERS = ("pipe", "socket", "device", "folder", "unreadable")
KINDS = (*LINKS, *OTHERS)


def replace_by(kind, path, elsewhere, monkeypatch):
    """Put something else in the place of a regular file, if there is one.

    Args:
        kind: one of `KINDS`, or "missing".
        path: of the file.
        elsewhere: a folder outside; a link outside leads to a copy of the file in it.
        monkeypatch: for what cannot be made, for root may read everything.
    """
    data = path.read_bytes() if path.is_file() else b"of somebody else\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    elsewhere.mkdir(exist_ok=True)
    outside = elsewhere / path.name
    if kind == "link outside":
        outside.write_bytes(data)
        os.utime(outside, (1e9, 1e9))
        path.symlink_to(outside)
    elif kind == "link inside":
        path.with_name(f"{path.name}.moved").write_bytes(data)
        path.symlink_to(f"{path.name}.moved")
    elif kind == "dangling link":
        path.symlink_to(elsewhere / "nothing")
    elif kind == "link to itself":
        path.symlink_to(path.name)
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        _bind(path)
    elif kind == "device":
        _make_device(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "unreadable":
        path.write_bytes(data)
        _refuse(path, monkeypatch)
    else:
        assert kind == "missing", kind


def _bind(path):
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _make_device(path):
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
        os.close(os.open(path, os.O_RDONLY))
    except PermissionError:
        path.unlink(missing_ok=True)
        pytest.skip("no devices may be made or opened here")


def _refuse(path, monkeypatch):
    """Root may open what nobody may read, so the opening is made to fail."""
    opening = os.open

    def refused(name, *args, **options):
        if os.path.basename(os.fspath(name)) == path.name:
            raise PermissionError(13, "Permission denied", name)
        return opening(name, *args, **options)

    monkeypatch.setattr(os, "open", refused)


def snapshot(folder):
    """Names, contents, kinds and times of all below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_mtime_ns, data)
    return found


class TooSlow(BaseException):
    """Not one that a reader could take for an error of its file."""


@contextmanager
def untouched(elsewhere, seconds=SECONDS):
    """Check that the body leaves a folder unchanged, ends soon, and takes little memory."""

    def ring(*_):
        raise TooSlow

    before, peak = snapshot(elsewhere), _peak(reset=True)
    used, start = time.process_time(), time.monotonic()
    ringing = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 30)
    try:
        yield
    except TooSlow:
        pytest.fail("did not end")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, ringing)
    assert snapshot(elsewhere) == before
    took = min(time.process_time() - used, time.monotonic() - start)
    assert took < seconds, f"took {took:.1f} s"
    assert _peak() - peak < BYTES


def _peak(*, reset=False):
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) << 10
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
