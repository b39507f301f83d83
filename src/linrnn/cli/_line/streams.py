"""The three standard streams of a command, whatever it was started with."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from linrnn.cli._line.program import runnable
from linrnn.errors import StorageError, printable


class ClosedOutputError(StorageError):
    """Standard output is closed."""


@contextmanager
def standard_streams() -> Iterator[None]:
    """Inside, all three are there, and a text that the output cannot hold is written in escapes.

    A closed one is opened to nothing, so that no file of ours gets its number, to which libraries
    may write. Where it is the output, that is an error: what a command says would be lost.

    Raises:
        ClosedOutputError: standard output is closed.
        OSError: it took not all of what was written.
    """
    closed = _open_closed()
    if "stdout" in closed:
        raise ClosedOutputError(
            "standard output must be open, got a closed one. Send it to /dev/null if it is not "
            "wanted."
        )
    out = sys.stdout
    errors = out.errors if isinstance(out, io.TextIOWrapper) else None
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="backslashreplace")
    try:
        yield
        out.flush()
    except SystemExit:  # of a parser that has printed its help
        out.flush()
        raise
    finally:
        if isinstance(out, io.TextIOWrapper) and not out.closed:
            with suppress(OSError):
                out.reconfigure(errors=errors)


def say(text: str) -> None:
    """Write a line to standard error, or nothing where that cannot be."""
    text = printable(text, keep="\n\t")
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    with suppress(OSError, ValueError):
        # a file name that is no text would raise, and nothing be said
        sys.stderr.write(
            f"{runnable(text)}\n".encode(encoding, "backslashreplace").decode(encoding)
        )
        sys.stderr.flush()


def give_up_output() -> None:
    """Send what is still to be written nowhere, or the interpreter would fail on it as it ends."""
    with suppress(OSError, ValueError):
        number = sys.stdout.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)


def _open_closed() -> list[str]:
    """Names of the streams that were closed when the interpreter began, which it has as None."""
    names = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    for name in names:  # in the order of their numbers: the first that is free is taken
        mode = "r" if name == "stdin" else "w"
        handle = os.open(os.devnull, os.O_RDONLY if mode == "r" else os.O_WRONLY)
        stream = os.fdopen(handle, mode, encoding="utf-8", errors="backslashreplace")
        setattr(sys, name, stream)
    return names
