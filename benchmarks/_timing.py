"""Medians of calls taken in turn, so that whatever else the machine does hits everyone alike."""

import ctypes
import gc
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import linrnn

MIN_CALLS = 3
#: PyTorch's and XLA's worker threads look for more work for up to 5 ms after a call, measured as
#: the CPU time of a sleeping process: a pause lets them rest before somebody else is timed. With
#: it they need no processes of their own, and every round has all candidates next to each other.
PAUSE_S = 0.01
#: After a pause caches are cold: shorter calls are repeated until they take this long together.
SHORT_S = 0.002
#: What a first call does only once is lost in a call of this length.
WARM_S = 0.5
_kept = False


class Timing(NamedTuple):
    """The median of some calls, or the limit that the first one exceeded."""

    seconds: float
    calls: int
    over: bool = False

    def text(self) -> str:
        """Milliseconds, or what is known: that it takes longer than the limit."""
        return f"over {self.seconds:g} s" if self.over else _digits(self.seconds * 1e3)


def _digits(x: float) -> str:
    return f"{x:.0f}" if x >= 100 else f"{x:.1f}" if x >= 1 else f"{x:.3f}"


class Candidate(NamedTuple):
    """Something to time; ``compiles`` exempts its first call from the limit."""

    call: Callable[[], object]
    compiles: bool = False


def in_turn(
    candidates: Mapping[str, Candidate],
    *,
    seconds: float,
    limit: float,
    max_calls: int = 15,
) -> dict[str, Timing]:
    """Time all candidates round by round.

    Args:
        candidates: what to time, by name.
        seconds: aim for this much time a candidate; a slow one still gets three calls.
        limit: a candidate whose call takes longer gets no further one.
        max_calls: measurements of a fast candidate, which is the number of rounds.
    """
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    planned: dict[str, int] = {}
    repeats: dict[str, int] = {}
    for name, candidate in candidates.items():
        if candidate.compiles:
            candidate.call()
        first, repeats[name] = _estimate(candidate.call, limit)
        if first is None:
            planned[name] = 0
            continue
        planned[name] = min(max_calls, max(MIN_CALLS, int(seconds / (first * repeats[name]))))
        if first > 1.0:  # a warm-up is no part of a second; another call would cost one
            samples[name].append(first)
            planned[name] -= 1
    for name in _schedule(planned, max_calls):
        taken = _time(candidates[name].call, limit, repeats[name])
        if taken is None:
            planned[name] = 0
        else:
            samples[name].append(taken)
    return {
        name: Timing(statistics.median(taken), len(taken))
        if len(taken) >= MIN_CALLS
        else Timing(limit, len(taken), over=True)
        for name, taken in samples.items()
    }


def _estimate(call: Callable[[], object], limit: float) -> tuple[float | None, int]:
    """Seconds of a call, None if over the limit, and how often to repeat it in a measurement."""
    taken, repeat = _time(call, limit, 1), 1
    if taken is None or taken >= WARM_S:
        return taken, repeat
    while True:  # the very first call, which may import or cache something, does not count
        taken = _time(call, limit, repeat)
        if taken is None or taken * repeat >= SHORT_S:
            return taken, repeat
        repeat *= 4


def _schedule(planned: dict[str, int], rounds: int) -> Iterator[str]:
    """Names in order of measurement, the calls of each spread evenly over the rounds."""
    for r in range(rounds):
        for name in planned:
            n = planned[name]  # read now: it drops to 0 when the candidate exceeds the limit
            if (r + 1) * n // rounds > r * n // rounds:
                yield name


def _time(call: Callable[[], object], limit: float, repeat: int) -> float | None:
    """Seconds of one call, or None if it took longer than the limit."""
    if not _kept:
        return_free_memory()
    time.sleep(PAUSE_S)
    try:
        with _alarm(limit):
            start = time.perf_counter()
            for _ in range(repeat):
                result = call()
            taken = (time.perf_counter() - start) / repeat
    except TimeoutError:
        return None
    del result  # returning memory to the system is not part of the call
    return None if taken > limit else taken


def keep_memory() -> bool:
    """`linrnn.keep_memory` for everyone who is timed: calls then find what earlier ones left.

    As in training: a step finds the pages of the step before. What the largest of all calls took
    stays mapped, so after the first round it is the same for all, whoever went before.

    Returns:
        Whether the allocator was told.
    """
    global _kept
    _kept = linrnn.keep_memory()
    return _kept


def return_free_memory() -> None:
    """Let every call begin without memory that an earlier one left behind.

    Touching a new page costs more than filling it. Without this, whether a result of 32 MB is new
    memory depends on the temporaries of whoever was measured before, and `torch.add` takes
    8 or 24 ms accordingly.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


@contextmanager
def _alarm(limit: float) -> Iterator[None]:
    """Interrupt Python code after ``limit`` seconds; a single long kernel runs to its end.

    Without garbage collection meanwhile: an error raised in one of its callbacks is lost.
    """

    def ring(*_: object) -> None:
        raise TimeoutError

    gc.disable()
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
