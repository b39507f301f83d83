"""Running a property: how many cases, from which seed, and what one case may do.

A property is a function of one drawn case that raises where something is wrong. Its `cases` are
those of `make test`; `make test-slow` runs a hundred times as many. The environment variable
LINRNN_FUZZ_CASES sets the total of the latter, LINRNN_FUZZ_SEED begins elsewhere: without it the
cases are the same at every run. No coverage-guided fuzzer is used: what a file or a call may look
like is written down as a hypothesis strategy, which mutates whole fields and not only bytes.
"""

import os
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from linrnn.errors import LinrnnError

QUICK_TOTAL = 1_000
SLOW_TOTAL = int(os.environ.get("LINRNN_FUZZ_CASES", "100000"))

#: Cases of each property in `make test`, by name, filled where properties are defined.
SHARES: dict[str, int] = {}
#: Cases that were run, by name.
RAN: Counter[str] = Counter()

#: `make test` runs a property's own number of cases, `make test-slow` this many times that.
BUDGETS = pytest.mark.parametrize(
    "times", [1, pytest.param(SLOW_TOTAL / QUICK_TOTAL, marks=pytest.mark.slow)], ids=str
)

SECONDS = 1.0  # of processor time that a call may take
BYTES = 256 << 20  # that it may add to the memory of the process


def share(name: str, cases: int) -> str:
    """Note how many cases a property has in `make test`; returns its name."""
    assert name not in SHARES, name
    SHARES[name] = cases
    return name


def run(
    name: str,
    times: float,
    strategy: SearchStrategy[Any],
    check: Callable[[Any], None],
    *,
    shrink: bool = True,
) -> None:
    """Draw the cases of a property and check each.

    Args:
        name: of the property, known to `share`.
        times: how often its own number of cases.
        strategy: draws a case.
        check: raises where a case fails.
        shrink: look for a smaller case that fails as well.
    """
    cases = max(1, round(SHARES[name] * times))
    start = os.environ.get("LINRNN_FUZZ_SEED")
    count = 0

    @settings(
        max_examples=cases,
        derandomize=start is None,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        phases=(Phase.explicit, Phase.generate, *([Phase.shrink] if shrink else [])),
        report_multiple_bugs=shrink,
    )
    @given(strategy)
    def search(case: Any) -> None:
        nonlocal count
        count += 1
        check(case)

    (search if start is None else seed(int(start))(search))()
    RAN[name] += count
    # fewer where every possible case was seen
    assert count >= cases or count >= 100, f"{name}: {count} cases instead of {cases}"


@contextmanager
def quick_and_small(seconds: float = SECONDS) -> Any:
    """Check that the body takes little memory and under some seconds of processor time."""
    before = _peak(reset=True)
    start = time.process_time()
    yield
    took = time.process_time() - start
    assert took < seconds, f"took {took:.1f} s"
    grown = _peak() - before
    assert grown < BYTES, f"asked for {grown >> 20} MiB"


def _peak(*, reset: bool = False) -> int:
    """The most memory of this process so far, or since the last reset; 0 where nobody says."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def refused_or(kind: Any, call: Callable[[], Any], *, naming: str | None = None) -> Any:
    """The result of a call, of the right type, or None where it raises one of our errors.

    Args:
        kind: the type, or types, it must return.
        call: what is called.
        naming: what the error must name, on its only line.
    """
    with quick_and_small(), warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning is nothing to show about a bad file
        try:
            value = call()
        except LinrnnError as error:
            text = str(error)
        else:
            text = ""
    if text:
        if naming is not None:
            assert "\n" not in text, f"an error of several lines: {text!r}"
            assert naming in text, f"an error that does not name {naming}: {text}"
        return None
    assert isinstance(value, kind), f"returned {type(value).__name__}"
    return value
