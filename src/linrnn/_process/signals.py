"""Ctrl-C and SIGTERM, handled by the code at work and then by the earlier handler."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_STOP = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_signals(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Inside, Ctrl-C and SIGTERM call ``handler``; afterwards they do what they did before.

    Outside the main thread signals cannot be caught and nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number in _STOP}
    try:
        yield
    finally:
        for number, old in previous.items():
            # None: it was set by a program that Python is embedded in, and cannot be put back
            signal.signal(number, signal.SIG_DFL if old is None else old)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt`, for SIGTERM too: what is being done can be put away."""
    raise KeyboardInterrupt


class StopRequest:
    """While entered, the first Ctrl-C or SIGTERM sets `requested`; a second one ends at once."""

    def __init__(self) -> None:
        self.requested = False
        self._signals = stop_signals(self._handle)

    def __enter__(self) -> "StopRequest":
        self._signals.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._signals.__exit__(*error)

    def renew(self) -> None:
        """Install this handler of signals again, where another has replaced it."""
        _answer(self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            # not KeyboardInterrupt: Lightning would catch it and exit with its own code
            raise SystemExit(128 + signal.SIGINT)
        self.requested = True


class NoStopRequest:
    """In a process that another one stops: signals are let pass, and nothing is requested."""

    requested = False

    def renew(self) -> None:
        """Let them pass from here on."""
        _answer(signal.SIG_IGN)


def _answer(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():
        for number in _STOP:
            signal.signal(number, handler)
