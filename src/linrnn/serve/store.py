"""Sessions that outlive the process: states in one file, and a journal of what came after it."""

import re
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linrnn._files.door import folder_at, read_bytes
from linrnn._files.storage import exclusive, remove, write_atomically
from linrnn.backbone import Model
from linrnn.errors import ArgumentError, DataError
from linrnn.serve.journal import Journal, records
from linrnn.state import leaves
from linrnn.streaming import Fed, Sessions, fingerprint

_STATES = re.compile(r"sessions-(\d{8})\.safetensors")
_JOURNALS = re.compile(r"journal-(\d{8})\.log")
_NAMED = 1024  # bytes at most for the name, dtype and shape of a tensor in a file
_HEADERS = 8  # as many bytes again for the fingerprint of the model and the counts


class SessionStore:
    """The sessions of a model; one thread at a time may use it.

    Args:
        model: in evaluation mode.
        folder: where they are kept, made if it is missing. None: they end with the process.
        journal: bytes of the journal after which all states are written anew.

    Raises:
        DataError: what the folder holds is damaged.
        ArgumentError: it is of another model, or another process uses it.
    """

    def __init__(self, model: Model, folder: Path | None, journal: int) -> None:
        self.sessions = Sessions(model)
        self._model, self._limit = model, journal
        self._mark = fingerprint(model)
        self._open = ExitStack()
        start = leaves(model.init_state(1))
        #: Bytes that no file of a session exceeds: its numbers, and what names them.
        self.most = sum(h.nbytes for h in start) + _NAMED * (len(start) + _HEADERS)
        self._kept = folder is not None
        if folder is None:
            folder = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
        self.folder = folder
        self._number, self._journal = 0, Journal(folder / "none")
        try:
            if self._kept:
                self._recover()
        except BaseException:
            self._open.close()
            raise

    def _recover(self) -> None:
        """Read what there is, and begin with a new journal."""
        with folder_at(self.folder, make=True):
            pass
        try:
            self._open.enter_context(exclusive(self.folder / ".lock"))
        except BlockingIOError as error:
            raise ArgumentError(
                f"serve: {self.folder} must be used by one process, got another that uses it. "
                "Stop it, or name another folder."
            ) from error
        with folder_at(self.folder) as folder:
            numbers = [int(m[1]) for name in folder.names() if (m := _STATES.fullmatch(name))]
        self._number = max(numbers, default=0)
        if numbers:
            self.sessions.load_all(self._states(self._number), mark=self._mark)
        for header, data in records(self._journal_path(self._number)):
            self._redo(header, data)
        self.write()

    def _redo(self, header: dict[str, Any], data: bytes) -> None:
        kind = header["kind"]
        if kind == "open":
            for name in header["names"]:
                self.sessions.join(name)
        elif kind == "close":
            self.sessions.drop(header["name"])
        elif kind == "restore":
            self._load(header["name"], data)
        elif kind == "feed":
            x, dt = _decoded(header, data)
            self.sessions.feed_rows(header["names"], x, dt)
        else:
            raise DataError(f"{self.folder}: records must be of a known kind, got {kind!r}.")

    def write(self) -> None:
        """Write all states, and begin a new journal.

        Raises:
            StorageError: that cannot be written; states and journal are as they were.
        """
        if not self._kept:
            return
        new = self._number + 1
        self.sessions.save_all(self._states(new), mark=self._mark)
        self._number, self._journal = new, Journal(self._journal_path(new))
        with folder_at(self.folder) as folder:
            for name in folder.names():
                match = _STATES.fullmatch(name) or _JOURNALS.fullmatch(name)
                if match and int(match[1]) != new:
                    folder.remove(name)

    def _states(self, number: int) -> Path:
        return self.folder / f"sessions-{number:08d}.safetensors"

    def _journal_path(self, number: int) -> Path:
        return self.folder / f"journal-{number:08d}.log"

    def _note(self, kind: str, header: dict[str, Any], data: bytes = b"") -> None:
        if not self._kept:
            return
        if self._journal.broken or self._journal.size > self._limit:
            self.write()
        self._journal.add(kind, header, data)

    def begin(self, names: Sequence[str]) -> None:
        """Begin sessions that have read nothing."""
        for name in names:
            self._check_new(name)
        self._note("open", {"names": list(names)})
        for name in names:
            self.sessions.join(name)

    def drop(self, name: str) -> None:
        """End a session."""
        self.sessions.steps(name)  # raises where there is none
        self._note("close", {"name": name})
        self.sessions.drop(name)

    def feed(self, names: Sequence[str], x: Sequence[Tensor], dt: Sequence[Any] | None) -> Fed:
        """Feed sessions, as `linrnn.streaming.Sessions.feed_rows` does, and keep what was fed."""
        if self._kept:
            header, data = _encoded(x, dt)
            self._note("feed", {"names": list(names), **header}, data)
        return self.sessions.feed_rows(names, list(x), dt)

    def snapshot(self, name: str) -> bytes:
        """The file of a session, as `linrnn.streaming.Sessions.save` writes it."""
        path = self.folder / "one.state"
        self.sessions.save(name, path)
        try:
            return read_bytes(path, inside=self.folder)
        finally:
            remove(path, inside=self.folder)

    def restore(self, name: str, data: bytes) -> None:
        """Begin a session with the file of one.

        Raises:
            DataError, ArgumentError: it is no such file, or of another model.
        """
        self._check_new(name)
        state, steps = self._loaded(data)
        self._note("restore", {"name": name}, data)
        self.sessions.join(name, state, steps=steps)

    def _check_new(self, name: str) -> None:
        # what the journal says must not fail when it is done again
        if name in self.sessions:
            raise ArgumentError(f"serve: the id of a session must be new, got {name!r}.")

    def _load(self, name: str, data: bytes) -> None:
        state, steps = self._loaded(data)
        self.sessions.join(name, state, steps=steps)

    def _loaded(self, data: bytes) -> tuple[Any, int]:
        path = self.folder / "one.state"
        write_atomically(path, data, inside=self.folder)
        try:
            one = Sessions(self._model)
            one.load("one", path)
            return one.state("one"), one.steps("one")
        except (ArgumentError, DataError) as error:
            raise type(error)(str(error).replace(str(path), "snapshot")) from error
        finally:
            remove(path, inside=self.folder)

    def close(self) -> None:
        """Write all states and let go of the folder."""
        try:
            self.write()
        finally:
            self._open.close()


def _encoded(x: Sequence[Tensor], dt: Sequence[Any] | None) -> tuple[dict[str, Any], bytes]:
    """Inputs of several streams as a header and bytes."""
    shapes = [list(one.shape) for one in x]
    flat = torch.cat([one.reshape(-1) for one in x]) if len(x) else torch.empty(0, device="cpu")
    header = {"shapes": shapes, "dtype": str(flat.dtype).removeprefix("torch."), "dt": dt}
    return header, flat.contiguous().numpy().tobytes()


def _decoded(header: dict[str, Any], data: bytes) -> tuple[list[Tensor], list[Any] | None]:
    flat = torch.from_numpy(np.frombuffer(data, header["dtype"]).copy())
    sizes = [int(np.prod(shape)) for shape in header["shapes"]]
    parts = zip(flat.split(sizes), header["shapes"], strict=True)
    return [part.reshape(shape) for part, shape in parts], header["dt"]
