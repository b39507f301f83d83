"""Time against the length of the sequence, for every backend and every peer, as a plot.

Writes ``benchmarks/results/scan-time.csv`` and ``docs/assets/scan-time.png`` and ``.svg``. Left:
16 channels of one sequence, so longer is more work. Right: the same work at every length, with
fewer channels the longer the sequence. Exit code 1: a peer is not installed. ``--redraw`` measures
nothing and draws what the CSV file holds.
"""

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from _peers import PEERS, Calls, differentiate
from _report import RESULTS, write_csv
from _timing import Candidate, Timing, in_turn
from linrnn.ops import backend_report, linear_scan
from scan import inputs

LENGTHS = tuple(2**k for k in range(6, 21, 2))
CHANNELS = 16
WORK = 2**22  # channels times steps
TITLES = (f"B = 1, D = {CHANNELS}", "B = 1, D = 2²² / T")


class Point(NamedTuple):
    """Everyone's forward times at one length."""

    shape: tuple[int, int, int]
    times: Mapping[str, Timing]


def backend_calls(name: str, a: Tensor, b: Tensor, grad: Tensor) -> Calls:
    """`linear_scan` on one backend."""
    return differentiate(lambda a, b: linear_scan(a, b, backend=name)[0], a, b, grad)


def candidates(shape: tuple[int, int, int], tried: Sequence[str]) -> dict[str, Candidate]:
    """Every available backend and every installed peer among those still ``tried``."""
    tensors = inputs(shape, torch.float32)
    calls = {}
    for name, why in backend_report().items():
        if why == "available" and label(name) in tried:
            calls[label(name)] = Candidate(backend_calls(name, *tensors).forward)
    for name, peer in PEERS.items():
        if name in tried and not peer.missing():
            calls[name] = Candidate(peer.prepare(*tensors).forward, peer.compiles)
    return calls


def label(backend: str) -> str:
    """A backend as the plot calls it."""
    return f"linrnn {backend}"


def everyone() -> list[str]:
    """Names in the order of the legend."""
    backends = [label(n) for n, why in backend_report().items() if why == "available"]
    return [*backends, *PEERS]


def measure(shapes: Sequence[tuple[int, int, int]], limit: float) -> list[Point]:
    """Time shapes of rising length; who exceeds the limit is not tried on a longer one."""
    tried, points = everyone(), []
    for shape in shapes:
        calls = candidates(shape, tried)
        times = in_turn(calls, seconds=0.3, limit=limit, max_calls=9)
        tried = [name for name, t in times.items() if not t.over]
        points.append(Point(shape, times))
        print(shape, {name: t.text() for name, t in times.items()}, file=sys.stderr, flush=True)
    return points


def read(path: Path) -> list[list[Point]]:
    """The measured points of each panel, which end where a shorter sequence comes."""
    times: dict[tuple[int, tuple[int, int, int]], dict[str, Timing]] = {}
    panel, before = 0, 0
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            shape = (int(row["batch"]), int(row["time"]), int(row["channels"]))
            panel, before = panel + (shape[1] < before), shape[1]
            timing = Timing(float(row["median_ms"]) / 1e3, int(row["calls"]), bool(row["limit"]))
            times.setdefault((panel, shape), {})[row["who"]] = timing
    return [
        [Point(shape, found) for (at, shape), found in times.items() if at == number]
        for number in range(panel + 1)
    ]


def plot(panels: Mapping[str, Sequence[Point]]) -> None:
    """One panel a series of shapes."""
    from _plots import draw, figure, save

    made, axes = figure(len(panels), shared=True)
    order = [*dict.fromkeys(name for points in panels.values() for p in points for name in p.times)]
    for ax, (title, points) in zip(axes, panels.items(), strict=True):
        lines = {}
        for name in order:
            known = [p for p in points if name in p.times and not p.times[name].over]
            lines[name] = (
                [p.shape[1] for p in known],
                [p.times[name].seconds * 1e3 for p in known],
            )
        draw(ax, lines, order)
        ax.set_title(title)
        ax.set_xlabel("length of the sequence T [steps]")
    axes[0].set_ylabel("time, forward, float32 [ms]")
    save(made, axes, "scan-time", columns=4)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write, plot; 1 when a peer is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short sequences, no plot")
    parser.add_argument("--redraw", action="store_true", help="the plot of --out, measure nothing")
    parser.add_argument("--skip-missing", action="store_true", help="peers may be missing")
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch (2)")
    parser.add_argument("--limit", type=float, default=2.0, help="of one call, in seconds (2)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder (benchmarks/results)")
    options = parser.parse_args(argv)
    if options.redraw:
        plot(dict(zip(TITLES, read(options.out / "scan-time.csv"), strict=True)))
        return 0
    torch.set_num_threads(options.threads)
    lengths = LENGTHS[:2] if options.quick else LENGTHS
    shapes = [(1, t, CHANNELS) for t in lengths], [(1, t, WORK // t) for t in lengths]
    measured = [measure(of_a_panel, options.limit) for of_a_panel in shapes]
    panels = dict(zip(TITLES, measured, strict=True))
    head = ("batch", "time", "channels", "who", "median_ms", "calls", "limit")
    rows = [
        (*point.shape, name, f"{t.seconds * 1e3:.4g}", t.calls, "over" if t.over else "")
        for points in panels.values()
        for point in points
        for name, t in point.times.items()
    ]
    write_csv(options.out / "scan-time.csv", head, rows)
    if not options.quick:
        plot(panels)
    missing = [name for name, peer in PEERS.items() if peer.missing()]
    if missing and not options.skip_missing:
        print(f"peers not installed: {', '.join(missing)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
