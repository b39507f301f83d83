"""Does a process that runs for an hour stay the size it is? Memory, open files, threads over time.

``--what stream`` trains a small byte model unless ``--run`` names one, and feeds ``linrnn stream``
made-up log lines as fast as it reads them. ``--what train`` runs ``linrnn train digits`` as
everyone would, for more epochs than fit. Each lasts ``--minutes`` from when it has started in
earnest (6 MB read, an epoch trained), is stopped as Ctrl-C does, and must end with exit code 130.

Samples go to ``benchmarks/results/long-haul-stream.csv`` (or ``-train.csv``) as they come, so what
a run that is cut short has seen is kept; the verdict goes into a page of the same name.

Flat means, of the samples after the first fifth of that time (``--warm-up``): memory grows by no
more than 3 % along the fitted line and by no more than 10 % from their first tenth to their last;
open files and threads do not grow along the line, and by no more than one from first to last. The
line has the median slope of the pairs of samples that lie an eighth to a quarter of that time
apart. A median of slopes (H. Theil, 1950; P. K. Sen, 1968) does not mind outliers; of neighbours,
it does not mind a step that happens once, which most of them do not see. Exit code 1: not flat, or
the process failed.
"""

import argparse
import csv
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np

from _report import RESULTS, command_line, conditions, table, write_lines
from stream import linrnn, log_lines, train

WARM_UP = 0.2
FITTED, TOTAL, COUNTED = 0.03, 0.10, 0.5
NEAR, FAR = 1 / 8, 1 / 4
START = 900.0  # seconds until then, at most
STARTED = {"stream": 6_000_000, "train": 1}  # bytes and epochs
MOST_FITTED = 1000  # samples whose pairs are compared: a million slopes
INTERRUPTED = 130


class Sample(NamedTuple):
    """A process at one moment; ``done`` counts bytes that it was fed, or epochs."""

    seconds: float
    resident_bytes: int
    open_files: int
    threads: int
    done: int


class Trend(NamedTuple):
    """One quantity after the warm-up: first and last tenth (medians), growth along the line."""

    name: str
    first: float
    last: float
    fitted: float

    @property
    def flat(self) -> bool:
        """Whether it grows by less than the limits at the head of this file."""
        if self.name != "resident_bytes":
            return self.fitted < COUNTED and self.last <= self.first + 1
        return self.fitted <= FITTED * self.first and self.last <= (1 + TOTAL) * self.first


def sample(process_id: int, start: float, done: int) -> Sample | None:
    """A look at a process (Linux), or None when it has just ended."""
    folder = Path(f"/proc/{process_id}")
    try:
        lines = (folder / "status").read_text().splitlines()
        open_files = len(list((folder / "fd").iterdir()))
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines)
    if "VmRSS" not in fields:
        return None
    resident = int(fields["VmRSS"].split()[0]) * 1024
    seconds = time.monotonic() - start
    return Sample(seconds, resident, open_files, int(fields["Threads"]), done)


def trends(samples: Sequence[Sample], started: int = 1, warm_up: float = WARM_UP) -> list[Trend]:
    """Trends of memory, open files and threads by work, after the warm-up."""
    begin, end = next(s.seconds for s in samples if s.done >= started), samples[-1].seconds
    rest = [s for s in samples if s.seconds >= begin + warm_up * (end - begin)]
    seconds = np.array([s.seconds for s in rest])
    tenth = max(1, len(rest) // 10)
    found = []
    for name in ("resident_bytes", "open_files", "threads"):
        values = np.array([getattr(s, name) for s in rest], float)
        first, last = np.median(values[:tenth]), np.median(values[-tenth:])
        fitted = median_slope(seconds, values) * (seconds[-1] - seconds[0])
        found.append(Trend(name, float(first), float(last), fitted))
    return found


def median_slope(x: np.ndarray, y: np.ndarray) -> float:
    """The median slope of lines through pairs of points that are neither near nor far."""
    keep = np.linspace(0, len(x) - 1, min(len(x), MOST_FITTED)).round().astype(int)
    i, j = np.triu_indices(len(keep), 1)
    run, rise = (v[keep][j] - v[keep][i] for v in (x, y))
    between = (run >= NEAR * (x[-1] - x[0])) & (run <= FAR * (x[-1] - x[0])) & (run > 0)
    return float(np.median(rise[between] / run[between])) if between.any() else 0.0


@contextmanager
def streaming(run: Path, work: Path) -> Iterator[tuple[subprocess.Popen, Callable[[], int]]]:
    """``linrnn stream`` that is fed for ever, and how many bytes it has taken."""
    command = linrnn("stream", str(run), "--quantile", "0.999", "--only-flagged")
    command += ["--state", str(work / "state.safetensors")]
    blocks = [log_lines(i) for i in range(64)]
    fed = 0

    def feed() -> None:
        nonlocal fed
        for i in count():
            try:
                process.stdin.write(blocks[i % len(blocks)])
            except (OSError, ValueError):  # it has ended
                return
            fed += len(blocks[i % len(blocks)])

    (work / "state.safetensors").unlink(missing_ok=True)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    yield process, lambda: fed
    feeder.join()


@contextmanager
def training(run: Path, work: Path) -> Iterator[tuple[subprocess.Popen, Callable[[], int]]]:
    """``linrnn train digits`` of a million epochs, and how many it has behind it."""
    del run
    folder = next(f for i in count() if not (f := work / f"train-{i}").exists())
    command = linrnn("train", "digits", "--train.epochs", "1000000", "--out", str(folder))
    # the recipe's warm-up and cosine are parts of all epochs, and would keep the rate near zero
    command += ["--optim.schedule", "constant", "--optim.warmup-fraction", "0"]

    def epochs() -> int:
        metrics = folder / "metrics.csv"
        return max(0, metrics.read_bytes().count(b"\n") - 1) if metrics.exists() else 0

    with (work / "train.log").open("wb") as log:
        yield subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT), epochs


HAULS = {"stream": streaming, "train": training}


def watch(what: str, run: Path, args: argparse.Namespace) -> tuple[list[Sample], int]:
    """Run one of them for its minutes: the samples, each written at once, and the exit code."""
    samples: list[Sample] = []
    args.work.mkdir(parents=True, exist_ok=True)
    args.out.mkdir(parents=True, exist_ok=True)
    path, start = args.out / f"long-haul-{what}.csv", time.monotonic()
    end = START
    with path.open("w", newline="") as file, HAULS[what](run, args.work) as (process, done):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Sample._fields)
        try:
            while process.poll() is None and time.monotonic() - start < end:
                if seen := sample(process.pid, start, done()):
                    if seen.done >= STARTED[what] > (samples[-1].done if samples else 0):
                        end = seen.seconds + 60 * args.minutes
                    samples.append(seen)
                    writer.writerow([f"{seen.seconds:.1f}", *seen[1:]])
                    file.flush()
                time.sleep(args.every)
        except KeyboardInterrupt:
            print("long haul: cut short", file=sys.stderr)
        finally:
            code = stop(process)
    return samples, code


def stop(process: subprocess.Popen) -> int:
    """Ctrl-C, and the exit code; what does not stop within two minutes is killed."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        return process.wait(120)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def page(what: str, samples: Sequence[Sample], code: int, warm_up: float) -> tuple[list[str], bool]:
    """The page on one run, and whether all is well."""
    found = trends(samples, STARTED[what], warm_up)
    well = code == INTERRUPTED and all(t.flat for t in found)
    last = samples[-1]
    work = f"{last.done / 1e6:,.0f} MB read" if what == "stream" else f"{last.done:,} epochs"
    rows = []
    for t in found:
        unit, digits = (1e6, 1) if t.name == "resident_bytes" else (1, 1)
        name = "resident memory (MB)" if t.name == "resident_bytes" else t.name.replace("_", " ")
        cells = [f"{v / unit:,.{digits}f}" for v in (t.first, t.last, t.fitted)]
        rows.append([name, *cells, "yes" if t.flat else "**no**"])
    lines = [
        f"# An hour of `linrnn {what}`" if last.seconds > 3500 else f"# A while of `linrnn {what}`",
        "",
        *conditions(command_line(), ("torch", "numpy")),
        "",
        f"{last.seconds / 60:.1f} minutes, {len(samples):,} samples, {work}; stopped as Ctrl-C "
        f"does, exit code {code} (expected {INTERRUPTED}). After the first {warm_up:.0%} "
        "of the time since it started in earnest:",
        "",
        *table(("", "first tenth", "last tenth", "fitted growth", "flat"), rows),
    ]
    return lines, well


def main(argv: Sequence[str] | None = None) -> int:
    """Run, sample, judge; 0 where all is flat."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--what", nargs="+", choices=tuple(HAULS), default=list(HAULS), help="one after the other")
    add("--minutes", type=float, default=60.0, help="of each, once it has started (60)")
    add("--every", type=float, default=5.0, help="seconds between samples (5)")
    add("--warm-up", type=float, default=WARM_UP, help="part of the time that is passed over (0.2)")
    add("--run", type=Path, default=None, help="run folder of a language model of bytes to stream")
    add("--work", type=Path, default=Path("runs", "long-haul"), help="folder for run folders")
    add("--out", type=Path, default=RESULTS, help="folder of the results (benchmarks/results)")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    well = True
    for what in args.what:
        run = args.run or (train(args.work) if what == "stream" else args.work)
        samples, code = watch(what, run, args)
        if not any(s.done >= STARTED[what] for s in samples):
            print(f"long haul: linrnn {what} did not start, exit code {code}", file=sys.stderr)
            return 1
        lines, good = page(what, samples, code, args.warm_up)
        write_lines(args.out / f"long-haul-{what}.md", lines)
        print("\n".join(lines))
        well = well and good
    return int(not well)


if __name__ == "__main__":
    sys.exit(main())
