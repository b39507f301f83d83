"""States of a disk after a power cut, at every moment between two calls of the system.

POSIX promises that a file has the content of its last ``fsync``, and a folder the names of its
last. Whatever came later may be there, in part or not at all: each name by itself, and of a
content any piece. The calls are recorded at the one door through which files come.
"""

import hashlib
import os
import random
import shutil
import stat
from pathlib import Path

import linrnn._files.door
import linrnn._files.storage


class Disk:
    """Records what is asked of the system below ``root``, and makes folders as a cut leaves them.

    Args:
        root: the folder that is watched; what lies there now is on the disk.
        syncs: whether ``fsync`` does anything: a law that notices nothing without is none.
    """

    def __init__(self, root, *, syncs=True):
        self.root, self.syncs = root, syncs
        self._removed = root.with_name(f"{root.name}-removed")
        self._removed.mkdir()
        self.kept = {}  # inode: content that the disk has
        self.names = {}  # folder: {name: inode, or True for a folder} that the disk has
        self.pending = []  # (folder, {name: inode, True or None}) since, in order
        self.moments = []  # all that a cut may find, at each moment
        for path in [root, *root.rglob("*")]:
            if path.is_dir():
                self.names[path] = {one.name: self._of(one) for one in path.iterdir()}

    def recorded(self, monkeypatch):
        """From now on, until the patch ends."""
        system = _System(self)
        for module in (linrnn._files.door, linrnn._files.storage):
            monkeypatch.setattr(module, "os", system)

    def _of(self, path):
        found = os.stat(path, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            return True
        self.kept.setdefault(found.st_ino, path.read_bytes())
        return found.st_ino

    def inside(self, folder):
        return folder == self.root or self.root in folder.parents

    def hold(self, folder, name):
        """Let no new file have the inode of one that loses a name: the disk may still have it."""
        if self.inside(folder) and os.path.lexists(folder / name):
            inode = os.stat(folder / name, follow_symlinks=False).st_ino
            if not (self._removed / str(inode)).exists():
                os.link(folder / name, self._removed / str(inode))

    def change(self, folder, names):
        if self.inside(folder):
            self.pending.append((folder, names))
            self.moment()

    def sync(self, handle):
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if not self.syncs or not self.inside(path if path.is_dir() else path.parent):
            return
        if path.is_dir():
            for folder, names in self.pending:
                if folder == path:
                    self._apply(self.names, folder, names)
            self.pending = [change for change in self.pending if change[0] != path]
        else:
            self.kept[os.fstat(handle).st_ino] = path.read_bytes()
        self.moment()

    def _apply(self, tree, folder, names):
        entries = tree.setdefault(folder, {})
        for name, inode in names.items():
            if inode is None:
                entries.pop(name, None)
            else:
                entries[name] = inode

    def moment(self):
        """Keep what a cut may find now."""
        current = dict(self.kept)
        for path in self.root.rglob("*"):
            try:
                if path.is_file():
                    current[path.stat().st_ino] = path.read_bytes()
            except FileNotFoundError:
                continue
        tree = {folder: dict(entries) for folder, entries in self.names.items()}
        self.moments.append((tree, dict(self.kept), current, list(self.pending)))

    def states(self, seed=0, samples=2, *, done=()):
        """Folders that a cut may leave: the moment, and paths with contents, None for a folder.

        Each comes once for every number of those of ``done`` that lie before it: what was reported
        to be there by then must be there.
        """
        draws, known = random.Random(seed), set()
        for at, (tree, kept, current, pending) in enumerate(self.moments):
            for mask in _masks(len(pending), samples, draws):
                for pieces in (kept, current, "torn"):
                    state = self._state(tree, kept, current, pending, mask, pieces, draws)
                    reported = sum(moments <= at for moments in done)
                    text = repr((reported, sorted(state.items())))
                    digest = hashlib.sha256(text.encode()).digest()
                    if digest not in known:
                        known.add(digest)
                        yield at, state

    def _state(self, tree, kept, current, pending, mask, pieces, draws):
        """Paths below the root, with their contents; None for a folder."""
        names = {folder: dict(entries) for folder, entries in tree.items()}
        for (folder, change), happened in zip(pending, mask, strict=True):
            if happened:
                self._apply(names, folder, change)
        state = {}

        def walk(folder):
            for name, inode in names.get(folder, {}).items():
                path = folder / name
                if inode is True:
                    state[str(path.relative_to(self.root))] = None
                    walk(path)
                    continue
                content = (current if pieces == "torn" else pieces).get(inode, b"")
                if pieces == "torn" and kept.get(inode) != content:
                    content = content[: draws.randrange(len(content) + 1)]
                state[str(path.relative_to(self.root))] = content

        walk(self.root)
        return state


def _masks(count, samples, draws):
    """Which of some changes happened: none, all, all but one, one alone, and some at random."""
    yield from ([False] * count, [True] * count)
    for one in range(count):
        yield [at != one for at in range(count)]
        yield [at == one for at in range(count)]
    for _ in range(samples):
        yield [draws.random() < 0.5 for _ in range(count)]


def materialise(state, root):
    """Put a state in the place of what is at ``root``."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for name, content in sorted(state.items()):
        if content is None:
            (root / name).mkdir(parents=True, exist_ok=True)
        else:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)


def half_written(folder):
    """Names of files that nobody finished, or removed."""
    return [path.name for path in folder.rglob(".*") if not path.name.endswith(".lock")]


def few(states, count):
    """So many of the folders, the last one among them."""
    return [*random.Random(0).sample(states[:-1], min(count, len(states) - 1)), states[-1]]


class _System:
    """The module ``os`` as the door sees it."""

    def __init__(self, disk):
        self._disk = disk

    def __getattr__(self, name):
        return getattr(os, name)

    def _folder(self, path, handle):
        """The folder and the name that a call is about."""
        if handle is None:
            path = Path(os.path.abspath(path))
            return path.parent, path.name
        return Path(os.readlink(f"/proc/self/fd/{handle}")), path

    def open(self, path, flags, mode=0o777, *, dir_fd=None):
        folder, name = self._folder(path, dir_fd)
        new = flags & os.O_CREAT and not os.path.lexists(folder / name)
        handle = os.open(path, flags, mode, dir_fd=dir_fd)
        if new:
            self._disk.change(folder, {name: os.fstat(handle).st_ino})
        return handle

    def mkdir(self, path, mode=0o777, *, dir_fd=None):
        os.mkdir(path, mode, dir_fd=dir_fd)
        folder, name = self._folder(path, dir_fd)
        self._disk.change(folder, {name: True})

    def replace(self, path, other, *, src_dir_fd=None, dst_dir_fd=None):
        folder, name = self._folder(path, src_dir_fd)
        inode = os.stat(folder / name, follow_symlinks=False).st_ino
        target = self._folder(other, dst_dir_fd)[1]
        self._disk.hold(folder, target)
        os.replace(path, other, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        self._disk.change(folder, {name: None, target: inode})

    def link(self, path, other, *, src_dir_fd=None, dst_dir_fd=None, follow_symlinks=True):
        below = {"src_dir_fd": src_dir_fd, "dst_dir_fd": dst_dir_fd}
        os.link(path, other, **below, follow_symlinks=follow_symlinks)
        folder, name = self._folder(path, src_dir_fd)
        inode = os.stat(folder / name, follow_symlinks=False).st_ino
        self._disk.change(folder, {self._folder(other, dst_dir_fd)[1]: inode})

    def unlink(self, path, *, dir_fd=None):
        folder, name = self._folder(path, dir_fd)
        self._disk.hold(folder, name)
        os.unlink(path, dir_fd=dir_fd)
        self._disk.change(folder, {name: None})

    def fsync(self, handle):
        os.fsync(handle)
        self._disk.sync(handle)
