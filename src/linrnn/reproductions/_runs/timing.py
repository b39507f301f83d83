"""Times of calls that take turns, so that whatever else a machine does hits all of them alike."""

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from linrnn.compare.run_table import Run
from linrnn.compare.standard_error import standard_error
from linrnn.compare.tune import safe_name
from linrnn.reproductions._page.runs import SECONDS, Part, decades, slug
from linrnn.reproductions._page.verdict import MINUTES, Judged

Call = Callable[[], object]

NO_VALUE = "–"
DEVICE = "on the device that the page names"
"""Ends the scale of a claim about times, whose runs are those of one machine."""
_FEWEST = MINUTES  # rounds of a contender that is slow, but not over the limit


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, measured once a round, or the reason why there are none."""

    seconds: tuple[float, ...]
    why: str = ""

    @property
    def median(self) -> float:
        """Seconds; NaN where nothing was measured."""
        return statistics.median(self.seconds) if self.seconds else math.nan

    @property
    def error(self) -> float:
        """Standard error of the mean over rounds; NaN for fewer than two."""
        return standard_error(self.seconds)

    def milliseconds(self) -> str:
        """The median, and the fastest and the slowest round."""
        return self._text([1e3 * s for s in (self.median, *self._ends())])

    def rate(self) -> str:
        """The median of calls a second, and the slowest and the fastest round."""
        return self._text([1 / s for s in (self.median, *reversed(self._ends()))])

    def _ends(self) -> list[float]:
        return [min(self.seconds), max(self.seconds)] if len(self.seconds) > 1 else []

    def _text(self, numbers: list[float]) -> str:
        if not self.seconds:
            return self.why or NO_VALUE
        middle, *ends = map(digits, numbers)
        return f"{middle} ({ends[0]} to {ends[1]})" if ends else f"{middle} (one call)"


@dataclass(frozen=True, kw_only=True)
class Turns:
    """How contenders are timed: round after round, each once a round."""

    rounds: int = 7
    """Measurements of a contender that is fast enough."""
    seconds: float = 3.0
    """Aimed at for all rounds of a contender; a slow one has fewer, at least five if allowed."""
    limit: float = 20.0
    """Seconds. A contender whose call takes longer has that one measurement and no more."""
    shortest: float = 0.005
    """Seconds. Shorter calls are repeated until a measurement takes this long."""
    pause: float = 0.01
    """Seconds before each measurement, in which worker threads of the last one come to rest."""
    clock: Callable[[], float] = field(default=time.perf_counter)

    def measure(self, contenders: Mapping[str, Call]) -> dict[str, Timing]:
        """Time everyone, after two calls each that do not count.

        A contender's n-th number was measured right beside everyone else's n-th. One that runs
        out of a GPU's memory is left out, with the reason.
        """
        samples: dict[str, list[float]] = {}
        plans: dict[str, tuple[int, int]] = {}  # rounds, calls a measurement
        failed: dict[str, str] = {}
        for name, call in contenders.items():
            try:
                self._once(call, 1)  # what is compiled, packed or cached once
                second = self._once(call, 1)
            except torch.OutOfMemoryError:
                failed[name] = "out of memory"
                continue
            samples[name] = [second] if second > self.limit else []
            plans[name] = self._plan(second)
        for i in range(self.rounds):
            for name, (rounds, repeats) in plans.items():
                if i < rounds:
                    samples[name].append(self._once(contenders[name], repeats))
        timings = {name: Timing(tuple(seconds)) for name, seconds in samples.items()}
        timings |= {name: Timing((), why) for name, why in failed.items()}
        return {name: timings[name] for name in contenders}

    def is_slow(self, timing: Timing) -> bool:
        """Whether a contender was over the limit or could not run, so that longer is hopeless."""
        return not timing.seconds or timing.median > self.limit

    def _plan(self, seconds: float) -> tuple[int, int]:
        if seconds > self.limit:
            return 0, 1
        seconds = max(seconds, 1e-9)  # a clock may stand still
        repeats = max(1, math.ceil(self.shortest / seconds))
        rounds = min(self.rounds, max(_FEWEST, int(self.seconds / (seconds * repeats))))
        return rounds, repeats

    def _once(self, call: Call, repeats: int) -> float:
        """Seconds of a call, from an idle device to an idle device."""
        time.sleep(self.pause)
        with _no_garbage_collection():
            synchronise()
            start = self.clock()
            for _ in range(repeats):
                result = call()
            synchronise()
            seconds = (self.clock() - start) / repeats
        del result  # returning memory is no part of the call
        return seconds


def over_lengths(
    turns: Turns,
    names: Sequence[str],
    lengths: Sequence[int],
    build: Callable[[str, int], Call],
    say: Callable[[str], Any],
) -> dict[int, dict[str, Timing]]:
    """Times of everyone at every length, shortest first.

    Args:
        turns: how to time.
        names: of the contenders.
        lengths: in rising order; after one over the limit no longer one is timed.
        build: the call of a contender at a length.
        say: told the times of each length.
    """
    timings: dict[int, dict[str, Timing]] = {}
    dropped: dict[str, Timing] = {}
    for length in lengths:
        calls = {name: build(name, length) for name in names if name not in dropped}
        times = turns.measure(calls)
        timings[length] = {name: times.get(name) or dropped[name] for name in names}
        for name, timing in times.items():
            if turns.is_slow(timing):
                dropped[name] = Timing((), timing.why or f"over {turns.limit:g} s before")
        text = ", ".join(f"{name} {t.milliseconds()}" for name, t in times.items())
        say(f"T = {length} [ms]: {text}")
    return timings


def ratio(slower: Timing, faster: Timing) -> float:
    """How many times longer the first takes: the median over the rounds both were in.

    NaN where one of them was not measured.

    Example:
        >>> ratio(Timing((4.0, 6.0, 9.0)), Timing((2.0, 2.0, 3.0)))
        3.0
    """
    rounds = zip(slower.seconds, faster.seconds, strict=False)
    quotients = [a / b for a, b in rounds]
    return statistics.median(quotients) if quotients else math.nan


def rounds(timings: Mapping[str, Mapping[str, Timing]], scale: str) -> Iterator[Run]:
    """A run for each round of each contender.

    Args:
        timings: by part of the page and contender.
        scale: of the page.
    """
    for part, contenders in timings.items():
        for name, timing in contenders.items():
            for number, seconds in enumerate(timing.seconds):
                yield Run(
                    scale=scale, part=slug(part), row=safe_name(name), seed=number,
                    measures={SECONDS: seconds},
                )  # fmt: skip


def faster(part: Part, label: str, rival: str, text: str, published: str) -> Judged:
    """The claim that one call takes less time than another, by the `rounds` both were in."""
    unit = "decades of the time"
    judged = part.paired(text, published, unit, (label, rival), decades, measure=SECONDS)
    return judged._replace(each="rounds")


def times(value: float) -> str:
    """A ratio in words, e.g. "7.96×".

    Example:
        >>> times(7.96), times(1324), times(math.nan)
        ('7.96×', '1324×', '–')
    """
    return NO_VALUE if math.isnan(value) else f"{digits(value)}×"


def percent_more(value: float) -> str:
    """A ratio as what comes on top, e.g. "+88 %".

    Example:
        >>> percent_more(1.88), percent_more(0.9), percent_more(math.nan)
        ('+88 %', '-10 %', '–')
    """
    return NO_VALUE if math.isnan(value) else f"{100 * (value - 1):+.0f} %"


def digits(x: float, figures: int = 3) -> str:
    """Some figures, or all of the integer part.

    Example:
        >>> digits(0.012345), digits(1.2345), digits(12.345), digits(1234.5)
        ('0.0123', '1.23', '12.3', '1234')
        >>> digits(0.736, 2), digits(23.4, 2), digits(230.0, 2), digits(9.8e-06, 2)
        ('0.74', '23', '230', '9.8e-06')
    """
    return f"{x:.0f}" if abs(x) >= 10 ** (figures - 1) else f"{x:#.{figures}g}".rstrip(".")


NOT_HERE = "not reproduced here"


def published_on_gpu(number: str) -> str:
    """A number that a GPU set, for a cell beside ours; where there is none, that it stays theirs.

    Example:
        >>> published_on_gpu("8×") in ("8×", f"8× on a GPU: {NOT_HERE}")
        True
    """
    return number if device().type == "cuda" else f"{number} on a GPU: {NOT_HERE}"


def device() -> torch.device:
    """A GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def conditions(turns: Turns) -> str:
    """One line on how and on what was measured."""
    where = f"the CPU, {torch.get_num_threads()} threads"
    if device().type == "cuda":
        where = f"{torch.cuda.get_device_name()}, synchronised before and after"
    return (
        f"measured on {where}, float32; contenders take turns in one process, at most "
        f"{turns.rounds} rounds after two calls that do not count; medians, and the fastest and "
        "the slowest round; ratios are medians over rounds; --seeds plays no part in times."
    )


def synchronise() -> None:
    """Wait until a GPU has finished its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
