"""Lines as they arrive, from a pipe that may never end, until a signal asks to stop."""

import os
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from types import FrameType
from typing import Any

from linrnn._process.signals import stop_signals

BLOCK = 1 << 20
"""Bytes read at once at most, and of a line: a longer one comes in pieces."""


class Lines:
    """Blocks of whole lines, each with its newline, as soon as they are there.

    While entered, Ctrl-C and SIGTERM end the iteration in place of the process: whole lines that
    were read are given out, and whoever iterates can put its state away. Memory does not grow with
    what was read.

    Args:
        descriptor: of an open file or pipe.

    Attributes:
        stopped: whether a signal came.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.stopped = False
        self._exit = ExitStack()

    def __enter__(self) -> "Lines":
        # select() returns when a signal's byte arrives here: no gap in which one could be missed
        self._bell, ring = socket.socketpair()
        ring.setblocking(False)
        self._exit.enter_context(ring)
        self._exit.enter_context(self._bell)
        previous_fd = signal.set_wakeup_fd(ring.fileno(), warn_on_full_buffer=False)
        self._exit.callback(signal.set_wakeup_fd, previous_fd)
        self._exit.enter_context(stop_signals(self._stop))
        return self

    def __exit__(self, *error: Any) -> None:
        self._exit.close()

    def __iter__(self) -> Iterator[list[bytes]]:
        unread = b""
        while block := self._read():
            unread += block
            end = unread.rfind(b"\n") + 1
            if not end and len(unread) >= BLOCK:
                # inside a number there is no place to cut
                end = max(unread.rfind(b" "), unread.rfind(b",")) + 1 or len(unread)
            if end:
                yield _split(unread[:end])
                unread = unread[end:]
        if unread and not self.stopped:  # after a signal the end of that line is still to come
            yield _split(unread)

    def _read(self) -> bytes:
        """The bytes that have arrived; none at the end of the input or after a signal."""
        while not self.stopped:
            sources: list[int | socket.socket] = [self._descriptor, self._bell]
            ready, _, _ = select.select(sources, [], [])
            if self._descriptor in ready and not self.stopped:
                return os.read(self._descriptor, BLOCK)
        return b""

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.stopped:  # asked twice: whatever it hangs in
            raise KeyboardInterrupt
        self.stopped = True


def _split(text: bytes) -> list[bytes]:
    """Lines with their newlines: of ``bytes.splitlines`` a carriage return would end one too."""
    lines = [line + b"\n" for line in text.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]
