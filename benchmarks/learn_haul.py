"""Does a stream that is learned from stay the size and the speed it is? Memory, time a token.

Trains a small byte model unless ``--run`` names one, and gives ``linrnn stream --learner`` made-up
log lines, a few at a time, for ``--minutes`` from its first answer. It is paced: the next lines
wait until the process has computed for no more than ``--share`` of the time, so that an hour of it
costs a few minutes of one core and can run beside other work. At the end it is stopped as Ctrl-C
does, and must end with exit code 130.

A sample holds memory, open files and threads, the tokens that were learned from, and the processor
time of the process. Beside it, at the same moment, stands the processor time a token of a fresh
stream: the same weights and learner in this process, gone back to the start. What else runs on the
machine slows both, so it is their quotient that is judged. Samples go to
``benchmarks/results/learn-haul.csv`` as they come, the verdict to ``learn-haul.md``, and a plot of
both over time to ``docs/assets``.

Flat means what it means in ``long_haul.py``, and for the quotient: it grows by no more than 5 %
along the line, and by no more than 10 % from its first tenth to its last. Exit code 1: not flat, or
the process failed. ``--redraw`` measures nothing and draws what the CSV file holds.
"""

import argparse
import csv
import os
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
import torch

from _report import RESULTS, command_line, conditions, table, write_lines
from long_haul import INTERRUPTED, WARM_UP, Sample, Trend, median_slope, sample, stop, trends
from stream import linrnn, log_lines, train

FITTED, TOTAL = 0.05, 0.10
AT_ONCE = 4  # lines
BLOCKS = 64  # of other lines, before they come again
START = 900.0  # seconds until the first answer, at most
NAMES = {"ms": "processor time a token (ms)", "quotient": "the same, of a fresh stream's"}


class Look(NamedTuple):
    """The process at one moment, and a fresh stream beside it."""

    seconds: float
    resident_bytes: int
    open_files: int
    threads: int
    tokens: int
    processor_seconds: float
    fresh_ms: float


def processor_seconds(process_id: int) -> float:
    """Processor time of a process, all threads together (Linux); 0 when it has ended."""
    found = 0
    try:
        for thread in Path(f"/proc/{process_id}/task").iterdir():
            found += int((thread / "schedstat").read_text().split()[0])
    except OSError:
        return 0.0
    return found / 1e9


class Feeder(threading.Thread):
    """Gives a process lines, reads its answers, and waits so that it computes only now and then.

    Args:
        process: ``linrnn stream``.
        share: of the time, that it may compute.

    Attributes:
        tokens: that were answered and learned from.
        began: when the first answer came, by the clock of this process; None before.
    """

    def __init__(self, process: subprocess.Popen, share: float) -> None:
        super().__init__(daemon=True)
        self._process, self._share = process, share
        self.tokens, self.began = 0, None

    def run(self) -> None:
        """Until the process ends."""
        blocks = [log_lines(i).splitlines(keepends=True) for i in range(BLOCKS)]
        spent = 0.0
        for i in count():
            block = blocks[i % BLOCKS]
            for at in range(0, len(block) - AT_ONCE, AT_ONCE):
                if not self._answered(block[at : at + AT_ONCE]):
                    return
                now = processor_seconds(self._process.pid)
                if self.began is None:
                    self.began, spent = time.monotonic(), now
                rest = (now - spent) / self._share - (time.monotonic() - self.began)
                time.sleep(max(0.0, min(rest, 1.0)))

    def _answered(self, lines: Sequence[bytes]) -> bool:
        try:
            self._process.stdin.write(b"".join(lines))
            self._process.stdin.flush()
            answers = [self._process.stdout.readline() for _ in lines]
        except (OSError, ValueError):  # it has ended
            return False
        self.tokens += sum(map(len, lines))
        return all(answers)


def fresh_stream(run: Path, learner: str) -> Callable[[], float]:
    """Milliseconds a token of a stream at its start, of this process, each time anew."""
    from linrnn import learn
    from linrnn.learn import LearningText
    from linrnn.train import load_model
    from linrnn.train.learning import steady
    from linrnn.train.optim import make_optimizer

    model, task, config = load_model(run)
    optimizer = make_optimizer(model, steady(config.optim))
    text = LearningText(model, learn.build(learner), optimizer, clip=config.optim.clip)
    start = text.state_dict()
    lines = log_lines(0).splitlines(keepends=True)[: 1 + AT_ONCE]
    first, *rest = [task.tokenizer.encode(line).astype("int64") for line in lines]

    def measure() -> float:
        text.load_state_dict(start)
        text.surprise(first)  # before there are traces a step is another
        began = time.thread_time()
        for ids in rest:
            text.surprise(ids)
        return 1e3 * (time.thread_time() - began) / sum(map(len, rest))

    return measure


@contextmanager
def learning(run: Path, args: argparse.Namespace) -> Iterator[tuple[subprocess.Popen, Feeder]]:
    """``linrnn stream --learner`` that is fed for ever."""
    out = next(f for i in count() if not (f := args.work / f"learned-{i}").exists())
    command = linrnn("stream", str(run), "--learner", args.learner, "--out", str(out))
    one = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env=one, **pipes)
    feeder = Feeder(process, args.share)
    feeder.start()
    yield process, feeder
    feeder.join()
    for pipe in (process.stdin, process.stdout):
        pipe.close()


def watch(run: Path, args: argparse.Namespace) -> tuple[list[Look], int]:
    """A stream for its minutes: the samples, each written at once, and the exit code."""
    looks: list[Look] = []
    args.out.mkdir(parents=True, exist_ok=True)
    fresh, path, start = fresh_stream(run, args.learner), args.out / "learn-haul.csv", None
    fresh()
    end = time.monotonic() + START
    with path.open("w", newline="") as file, learning(run, args) as (process, feeder):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Look._fields)
        try:
            while process.poll() is None and time.monotonic() < end:
                if feeder.began is not None and start is None:
                    start = feeder.began
                    end = start + 60 * args.minutes
                if start is not None and (seen := sample(process.pid, start, feeder.tokens)):
                    looks.append(Look(*seen, processor_seconds(process.pid), fresh()))
                    writer.writerow(_written(looks[-1]))
                    file.flush()
                time.sleep(args.every)
        except KeyboardInterrupt:
            print("learn haul: cut short", file=sys.stderr)
        finally:
            code = stop(process)
    return looks, code


def _written(look: Look) -> list[object]:
    seconds, *counts, processor, fresh = look
    return [f"{seconds:.1f}", *counts, f"{processor:.3f}", f"{fresh:.4f}"]


def times(looks: Sequence[Look]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seconds; milliseconds of the processor a token since the sample before; over a fresh one."""
    table_of = np.array(looks, float)
    seconds, tokens, processor, fresh = (table_of[:, i] for i in (0, 4, 5, 6))
    learned = np.diff(tokens) > 0  # a process that waits for its pace learns nothing
    ms = 1e3 * np.diff(processor)[learned] / np.diff(tokens)[learned]
    return seconds[1:][learned], ms, ms / fresh[1:][learned]


def time_trends(looks: Sequence[Look], warm_up: float = WARM_UP) -> list[Trend]:
    """The trend of the time a token after the warm-up, absolute and beside a fresh stream."""
    seconds, *both = times(looks)
    kept = seconds >= seconds[0] + warm_up * (seconds[-1] - seconds[0])
    tenth, found = max(1, int(kept.sum()) // 10), []
    for name, values in zip(NAMES, both, strict=True):
        rest = values[kept]
        first, last = np.median(rest[:tenth]), np.median(rest[-tenth:])
        x = seconds[kept]
        grown = median_slope(x, rest) * (x[-1] - x[0])
        found.append(Trend(name, float(first), float(last), grown))
    return found


def level(trend: Trend) -> bool:
    """Whether a time grows by less than the limits at the head of this file."""
    within = trend.fitted <= FITTED * trend.first
    return within and trend.last <= (1 + TOTAL) * trend.first


def page(looks: Sequence[Look], code: int, args: argparse.Namespace) -> tuple[list[str], bool]:
    """The page, and whether all is well."""
    size = trends([Sample(*look[:5]) for look in looks], 1, args.warm_up)
    both = time_trends(looks, args.warm_up)
    well = code == INTERRUPTED and all(t.flat for t in size) and level(both[1])
    rows = []
    for t in size:
        unit = 1e6 if t.name == "resident_bytes" else 1
        name = "resident memory (MB)" if t.name == "resident_bytes" else t.name.replace("_", " ")
        cells = [f"{v / unit:,.1f}" for v in (t.first, t.last, t.fitted)]
        rows.append([name, *cells, "yes" if t.flat else "**no**"])
    for t, judged in zip(both, (False, True), strict=True):
        cells = [f"{v:.3f}" for v in (t.first, t.last, t.fitted)]
        rows.append([NAMES[t.name], *cells, ("yes" if level(t) else "**no**") if judged else ""])
    first, last = looks[0], looks[-1]
    share = (last.processor_seconds - first.processor_seconds) / (last.seconds - first.seconds)
    title = "An hour" if last.seconds > 3500 else "A while"
    return [
        f"# {title} of `linrnn stream --learner {args.learner}`",
        "",
        *conditions(command_line(), ("torch", "numpy")),
        f"- paced: {share:.1%} of a core, {last.tokens / last.seconds:,.0f} tokens a second, so "
        "that other work may run beside it",
        "",
        f"{last.seconds / 60:.1f} minutes, {len(looks):,} samples, {last.tokens:,} tokens learned "
        f"from, checkpoints among them; stopped as Ctrl-C does, exit code {code} (expected "
        f"{INTERRUPTED}). After the first {args.warm_up:.0%} of the time:",
        "",
        *table(("", "first tenth", "last tenth", "fitted growth", "flat"), rows),
    ], well


def plot(looks: Sequence[Look]) -> None:
    """Memory, and the time a token, over time."""
    from _plots import COLOURS, draw, figure, save

    made, (left, right) = figure(2)
    minutes = [look.seconds / 60 for look in looks]
    seconds, ms, _ = times(looks)
    fresh = [look.fresh_ms for look in looks]
    left.plot(minutes, [look.resident_bytes / 1e6 for look in looks], color=COLOURS[0])
    names = ("the stream", "a fresh one at the same moment")
    parts = [max(1, len(x) // 60) for x in (ms, fresh)]  # medians of some samples a point
    lines = {
        names[0]: (_medians(seconds / 60, parts[0]), _medians(ms, parts[0])),
        names[1]: (_medians(minutes, parts[1]), _medians(fresh, parts[1])),
    }
    draw(right, lines, names)
    for ax, what in ((left, "resident memory [MB]"), (right, "processor time a token [ms]")):
        ax.set_xscale("linear")
        ax.set_yscale("linear")
        ax.set_ylim(0, 1.15 * ax.get_ylim()[1])
        ax.set_xlabel("minutes")
        ax.set_ylabel(what)
    save(made, (left, right), "learn-haul", columns=2)


def read(path: Path) -> list[Look]:
    """The samples that were written."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    kinds = Look.__annotations__
    return [Look(**{name: kinds[name](row[name]) for name in Look._fields}) for row in rows]


def _medians(values: Sequence[float], size: int) -> list[float]:
    return [float(np.median(values[i : i + size])) for i in range(0, len(values), size)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run, sample, judge; 0 where all is flat."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--minutes", type=float, default=60.0, help="from the first answer (60)")
    add("--learner", default="chunked_rtrl", help="that learns (chunked_rtrl)")
    add("--share", type=float, default=0.05, help="of a core, that it may take (0.05)")
    add("--every", type=float, default=5.0, help="seconds between samples (5)")
    add("--warm-up", type=float, default=WARM_UP, help="part of the time that is passed over (0.2)")
    add("--redraw", action="store_true", help="the plot of --out, measure nothing")
    add("--no-plot", action="store_true", help="numbers alone")
    add("--run", type=Path, default=None, help="run folder of a language model of bytes")
    add("--work", type=Path, default=Path("runs", "learn-haul"), help="folder for run folders")
    add("--out", type=Path, default=RESULTS, help="folder of the results (benchmarks/results)")
    args = parser.parse_args(argv)
    if args.redraw:
        plot(read(args.out / "learn-haul.csv"))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    torch.set_num_threads(1)
    args.work.mkdir(parents=True, exist_ok=True)
    looks, code = watch(args.run or train(args.work), args)
    if len(looks) < 10:
        print(f"learn haul: it did not start, exit code {code}", file=sys.stderr)
        return 1
    lines, well = page(looks, code, args)
    write_lines(args.out / "learn-haul.md", lines)
    if not args.no_plot:
        plot(looks)
    print("\n".join(lines))
    return int(not well)


if __name__ == "__main__":
    sys.exit(main())
