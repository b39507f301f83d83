"""Shared code of scripts that compare kernels: numbers first, then times in turn, in a file.

With ``--tiny`` kernels run small in Triton's interpreter, on a CPU: numbers are checked, and no
time is written.
"""

import argparse
import datetime
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

TINY = "--tiny" in sys.argv
if TINY:  # Triton reads it when kernels are defined
    os.environ["TRITON_INTERPRET"] = "1"

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
DEVICE = torch.device("cpu" if TINY else "cuda")
ROUNDS, WARM = 20, 3
HEAD = ("case", "run", "error", "ms", "GB/s", "of the baseline")
Run = Callable[[], object]


class Case(NamedTuple):
    """Runs to be timed in turn, the baseline first."""

    name: str
    runs: dict[str, Run]
    errors: dict[str, float]  # of each run that is checked, against double precision
    most: float  # error there may be
    size: float  # bytes that must be moved at the least


def main(
    description: str | None, cases: Callable[[], Iterable[tuple[str, Callable[[], Case]]]]
) -> int:
    """Check and time all cases; 1 at the first wrong number, which ends the script.

    A case that fails otherwise, as by too much shared memory, is told and the next one comes.
    """
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--tiny", action="store_true", help="in the interpreter, no times")
    arguments.add_argument("--dry", action="store_true", help="say what would be run")
    arguments.add_argument("--seconds", type=float, default=330.0, help="then stop (330)")
    arguments.add_argument("--to", type=Path, default=ROOT / "benchmarks" / "results")
    asked = arguments.parse_args()
    if asked.dry:
        print("\n".join(name for name, _ in cases()))
        return 0
    asked.to.mkdir(parents=True, exist_ok=True)
    stem = Path(sys.argv[0]).stem.replace("_", "-")
    end = time.monotonic() + asked.seconds
    with (asked.to / f"gpu-run-{stem}-{datetime.date.today()}.md").open("w") as file:

        def say(*cells: object) -> None:
            for stream in (sys.stdout, file):
                print(f"| {' | '.join(map(str, cells))} |", file=stream, flush=True)

        say(*HEAD)
        say(*("---" for _ in HEAD))
        for name, prepare in cases():
            if time.monotonic() > end:
                say(name, "no time was left", *[""] * 4)
                continue
            if not _done(name, prepare, say):
                return 1
    return 0


def _done(name: str, prepare: Callable[[], Case], say: Callable[..., None]) -> bool:
    """Say the rows of a case, at once; whether its numbers are right."""
    try:
        case = prepare()
        times = {} if TINY else _times(case.runs)
    except Exception as error:
        if TINY:
            raise
        say(name, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}", *[""] * 4)
        return True
    first = next(iter(case.runs))
    for run in case.runs:
        cells = [name, run, f"{case.errors[run]:.1e}" if run in case.errors else ""]
        if times:
            rate = case.size / times[run] / 1e6
            cells += [f"{times[run]:.4f}", f"{rate:.0f}", f"{times[first] / times[run]:.2f}"]
        say(*cells, *[""] * (len(HEAD) - len(cells)))
    wrong = {run: x for run, x in case.errors.items() if not x <= case.most}  # NaN is wrong, too
    for run, error in wrong.items():
        say(name, run, f"WRONG: {error:.1e}, above {case.most:.1e}", *[""] * 3)
    return not wrong


def _times(runs: dict[str, Run]) -> dict[str, float]:
    """Median milliseconds of each, all of them in turn in every round."""
    for run in runs.values():
        for _ in range(WARM):
            run()
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            run()
            last.record()
            last.synchronize()
            found[name].append(first.elapsed_time(last))
    return {name: statistics.median(x) for name, x in found.items()}


def error_of(found: Tensor, true: Tensor) -> float:
    """Norm of the difference over the norm of the truth."""
    wide = torch.complex128 if true.is_complex() else torch.float64
    true = true.to(wide)
    return ((found.to(wide) - true).norm() / true.norm()).item()


def equal_times(run: Callable[[], Tensor], times: int) -> float:
    """0 if a run gives the same bits so many times, else NaN."""
    first = run().clone()
    return 0.0 if all(torch.equal(first, run()) for _ in range(times)) else math.nan


def loop(a: Tensor, b: Tensor) -> Tensor:
    """``h_t = a_t h_{t-1} + b_t`` in double precision, one step after the other."""
    wide = torch.complex128 if b.is_complex() else torch.float64
    a, b = a.to(wide).expand_as(b), b.to(wide)
    h, states = torch.zeros_like(b[:, 0]), torch.empty_like(b)
    for t in range(b.shape[1]):
        h = a[:, t] * h + b[:, t]
        states[:, t] = h
    return states
