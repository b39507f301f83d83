"""Threads that take turns: at an object, and at PyTorch's one generator of random numbers."""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Turns:
    """One thread at a time is inside, as often as it likes; a copy, or a pickled one, is new."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[Callable[[], "Turns"], tuple[()]]:
        return Turns, ()


def in_turn(
    method: Callable[Concatenate[Any, Parameters], Result],
) -> Callable[Concatenate[Any, Parameters], Result]:
    """A method during which no other thread is in one of the object, whose ``_turn`` says so."""

    @functools.wraps(method)
    def call(self: Any, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with self._turn:
            return method(self, *args, **kwargs)

    return call  # type: ignore[return-value]


_drawing = Turns()


@contextmanager
def drawing(seed: int | None = None) -> Iterator[None]:
    """Inside, this thread alone draws from the generator; outside it is as if nobody had.

    Threads take turns, for what one draws, or a seed that it sets, would change the numbers of all
    others.

    Args:
        seed: what the generator begins with; None leaves it where it is.
    """
    with _drawing, torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        yield
