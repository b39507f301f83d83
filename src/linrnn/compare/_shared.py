"""Work in one folder that several processes share: who comes first takes a piece."""

import json
import os
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from linrnn._files.storage import exclusive
from linrnn._process.signals import stop_signals
from linrnn.compare._process import start
from linrnn.errors import ArgumentError, InterruptedRunError, RunFolderError, check_few
from linrnn.train import Config
from linrnn.train.processes import environment_for

MAX_JOBS = 256
"""Runs at once."""

_WAIT = 2.0  # seconds, while other processes are at all that is left

Piece = TypeVar("Piece")


@contextmanager
def in_turn(
    work: Sequence[Piece], lock: Callable[[Piece], Path], waiting: Callable[[int], Any]
) -> Iterator[Iterator[Piece]]:
    """Pieces of work, each with its lock held while it is at hand.

    In their order, but for those that another process is at: they come when it is done with them,
    so that every process gets them all.

    Args:
        work: all of it.
        lock: the file to hold for a piece.
        waiting: told once how many pieces are left, where other processes are at all of them.

    Raises:
        InterruptedRunError: asked to stop while waiting.
        RunFolderError: the file of a lock is something else.
    """
    # closed here, since a lock would otherwise live as long as the traceback of an error
    with closing(_pieces(work, lock, waiting)) as pieces:
        yield pieces


def check_jobs(what: str, jobs: int) -> None:
    """Raise `ArgumentError` unless ``jobs`` runs can be trained at once here."""
    check_few(what, MAX_JOBS, jobs=jobs)
    if jobs > 1 and os.name == "nt":
        raise ArgumentError(
            f"{what}: jobs must be 1 on Windows, where nothing is locked, got {jobs}."
        )


@contextmanager
def helpers(n: int, configs: Sequence[Config], request: Mapping[str, Any]) -> Iterator[None]:
    """Inside, ``n`` processes do what is requested; they end with the block.

    Args:
        n: how many; they share the work by `in_turn`.
        configs: of all runs, for what it takes to import their mixers.
        request: what `linrnn.compare._helper` reads, as JSON.
    """
    words, environment = json.dumps(request), environment_for(*configs)
    with ExitStack() as resources:
        for _ in range(n):
            process = start("linrnn.compare._helper", [], resources, environment, errors=None)
            resources.callback(process.terminate)  # before it is waited for
            assert process.stdin is not None
            # one that could not begin leaves its part to the others
            with suppress(BrokenPipeError):
                process.stdin.write(words)
                process.stdin.close()
        yield


def _pieces(
    work: Sequence[Piece], lock: Callable[[Piece], Path], waiting: Callable[[int], Any]
) -> Generator[Piece, None, None]:
    left, announced = list(work), False
    while left:
        n_left = len(left)
        for piece in list(left):
            with _try_lock(lock(piece)) as free:
                if free:
                    left.remove(piece)
                    yield piece
        if left and len(left) == n_left:
            if not announced:
                waiting(len(left))
            announced = True
            _pause(lock(left[0]).parent)


@contextmanager
def _try_lock(lock: Path) -> Iterator[bool]:
    """Whether no other process holds it; then it is held."""
    with ExitStack() as locks:
        try:
            locks.enter_context(exclusive(lock))
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            raise RunFolderError(
                f"{lock}: the lock must be a file that can be made, got: "
                f"{error.strerror or error}. Remove it, or choose another --out."
            ) from error
        yield True


def _pause(folder: Path) -> None:
    stopped = threading.Event()
    with stop_signals(lambda *_: stopped.set()):
        if stopped.wait(_WAIT):
            raise InterruptedRunError(f"stopped in {folder}; the same command continues there.")
