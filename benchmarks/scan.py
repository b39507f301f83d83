"""The speed of `linear_scan` on a CPU: against the cost of moving the data, and against others.

And that of `block_scan` with blocks of two, against `linear_scan` of as many channels.

Prints the median times of everyone, measured in turn in one run, and the ratios that matter; writes
them to ``benchmarks/results/scan-cpu.md`` and ``.csv``. Exit code 1: a peer is not installed.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from _peers import PEERS, differentiate
from _report import (
    RESULTS,
    command_line,
    conditions,
    section,
    table,
    write_csv,
    write_lines,
)
from _timing import Candidate, Timing, in_turn
from linrnn.ops import block_scan, linear_scan

SHAPES = ((8, 2048, 512), (1, 16384, 512), (4, 4096, 1024), (1, 1048576, 8))
QUICK_SHAPES = ((2, 64, 32), (1, 1024, 4))
DTYPES = (torch.float32, torch.complex64)
PASSES = {"forward": "forward", "both": "forward + backward"}
#: At most this many times `torch.add`; at least this many times faster than the best peer.
ADD_FLOOR = {"forward": 1.5, "both": 4.0}
PEER_FLOOR = {"forward": 5.0, "both": 4.0}
#: At most this many times `linear_scan`.
BLOCK_FLOOR = 4.0
SMALL_FLOOR = {"call": 5.0, "step": 3.0}
OURS, OURS_CONSTANT = "linrnn", "linrnn, constant a"
BLOCKS, BLOCKS_CONSTANT = "block_scan, 2×2", "block_scan, 2×2, constant A"
ADD, ADD_OUT = "torch.add", "torch.add, out="


class Cell(NamedTuple):
    """Everyone's times for one shape, dtype and pass."""

    shape: tuple[int, int, int]
    dtype: torch.dtype
    which: str
    times: Mapping[str, Timing]

    def name(self) -> str:
        """As a row is called."""
        return f"{self.shape} {str(self.dtype).removeprefix('torch.')}"

    def over_add(self, name: str = OURS) -> float:
        """Time of ``name`` in times of `torch.add` that allocates its result."""
        return self.times[name].seconds / self.times[ADD].seconds

    def speedup(self, peer: str) -> float:
        """How many times longer a peer takes; a lower bound for one over the limit."""
        return self.times[peer].seconds / self.times[OURS].seconds

    def peers(self) -> list[str]:
        """Names of the peers that were timed."""
        return [name for name in self.times if name in PEERS]

    def best_peer(self) -> str | None:
        """The fastest peer, in whatever layout."""
        return min(self.peers(), key=lambda p: self.times[p].seconds, default=None)


def inputs(
    shape: tuple[int, int, int], dtype: torch.dtype, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Decays with ``|a|`` in (0.9, 1), inputs and output gradients."""
    generator = torch.Generator().manual_seed(seed)
    size = 0.9 + 0.1 * torch.rand(shape, generator=generator)
    if dtype.is_complex:
        a = torch.polar(size, 6.28 * torch.rand(shape, generator=generator)).to(dtype)
    else:
        a = size.to(dtype)
    b, grad = (torch.randn(shape, dtype=dtype, generator=generator) for _ in range(2))
    return a, b, grad


def against_add(which: str, a: Tensor, b: Tensor, grad: Tensor) -> dict[str, Candidate]:
    """Ours, and `torch.add` on the same tensors."""
    out = torch.empty_like(b)
    constant = a[0, 0].clone()
    return {
        ADD: Candidate(lambda: torch.add(a, b)),
        ADD_OUT: Candidate(lambda: torch.add(a, b, out=out)),
        OURS: Candidate(getattr(differentiate(ours, a, b, grad), which)),
        OURS_CONSTANT: Candidate(getattr(differentiate(ours, constant, b, grad), which)),
    }


def against_blocks(which: str, a: Tensor, b: Tensor, grad: Tensor) -> dict[str, Candidate]:
    """`linear_scan`, and blocks of two of its channels."""
    constant = a[0, 0].clone()
    A, turned_b, turned_grad = (x.unflatten(-1, (-1, 2)) for x in (a, b, grad))
    A = torch.diag_embed(A) + 0.01
    matrices = {BLOCKS: A, BLOCKS_CONSTANT: A[0, 0].clone()}
    return {
        OURS: Candidate(getattr(differentiate(ours, a, b, grad), which)),
        OURS_CONSTANT: Candidate(getattr(differentiate(ours, constant, b, grad), which)),
        **{
            name: Candidate(getattr(differentiate(blocks, A, turned_b, turned_grad), which))
            for name, A in matrices.items()
        },
    }


def against_peers(which: str, a: Tensor, b: Tensor, grad: Tensor) -> dict[str, Candidate]:
    """Ours, and every peer that is installed."""
    calls = {OURS: Candidate(getattr(differentiate(ours, a, b, grad), which))}
    for name, peer in PEERS.items():
        if not peer.missing():
            calls[name] = Candidate(getattr(peer.prepare(a, b, grad), which), peer.compiles)
    return calls


def ours(a: Tensor, b: Tensor) -> Tensor:
    """The baseline of the comparison."""
    return linear_scan(a, b)[0]


def blocks(A: Tensor, b: Tensor) -> Tensor:
    """The same of blocks."""
    return block_scan(A, b)[0]


def large_calls(
    candidates: Callable[..., dict[str, Candidate]], options: argparse.Namespace
) -> list[Cell]:
    """Measure every shape, dtype and pass."""
    cells = []
    for shape in QUICK_SHAPES if options.quick else SHAPES:
        for dtype in DTYPES:
            tensors = inputs(shape, dtype)
            for which in PASSES:
                calls = candidates(which, *tensors)
                times = in_turn(calls, seconds=options.seconds, limit=options.limit)
                cells.append(Cell(shape, dtype, which, times))
                print(_progress(cells[-1]), file=sys.stderr, flush=True)
    return cells


def _progress(cell: Cell) -> str:
    times = ", ".join(f"{name} {t.text()}" for name, t in cell.times.items())
    return f"{cell.name()} {cell.which} [ms]: {times}"


def small_calls(options: argparse.Namespace) -> dict[str, Timing]:
    """Calls whose cost is their overhead: (1, 64, 64) with autograd, and a single step."""
    a, b, grad = inputs((1, 64, 64), torch.float32)
    a_t, b_t, h = a[:, 0].clone(), b[:, 0].clone(), b[:, 1].clone()
    decay, b_1 = a_t[0], b_t[:, None]

    def step() -> Tensor:
        with torch.no_grad():
            return linear_scan(decay, b_1, h)[1]

    calls = {
        "scan, forward + backward": differentiate(ours, a, b, grad).both,
        "torch.mul, forward + backward": differentiate(torch.mul, a, b, grad).both,
        "scan of one step": step,
        "torch.addcmul": lambda: torch.addcmul(b_t, a_t, h),
        "torch.mul and torch.add": lambda: torch.add(torch.mul(a_t, h), b_t),
    }
    timed = {name: Candidate(call) for name, call in calls.items()}
    return in_turn(timed, seconds=options.seconds, limit=options.limit, max_calls=51)


def mark(met: bool) -> str:
    """How a floor is judged in the tables."""
    return "met" if met else "NOT met"


def add_table(cells: Sequence[Cell]) -> list[str]:
    """Ours in times of `torch.add`, judged."""
    head = ["(B, T, D)", "pass", ADD, ADD_OUT, OURS, "ratio", "floor", "", OURS_CONSTANT, "ratio"]
    rows = []
    for cell in cells:
        floor, ratio = ADD_FLOOR[cell.which], cell.over_add()
        times = [cell.times[name].text() for name in (ADD, ADD_OUT, OURS)]
        constant = [cell.times[OURS_CONSTANT].text(), f"{cell.over_add(OURS_CONSTANT):.2f}"]
        judged = [f"{ratio:.2f}", f"≤ {floor}", mark(ratio <= floor)]
        rows.append([cell.name(), PASSES[cell.which], *times, *judged, *constant])
    return table(head, rows)


def block_table(cells: Sequence[Cell]) -> list[str]:
    """Blocks of two in times of `linear_scan`, judged."""
    head = ["(B, T, D)", "pass", OURS, BLOCKS, "ratio", OURS_CONSTANT, BLOCKS_CONSTANT, "ratio"]
    rows = []
    for cell in cells:
        row, ratios = [cell.name(), PASSES[cell.which]], []
        for single, paired in ((OURS, BLOCKS), (OURS_CONSTANT, BLOCKS_CONSTANT)):
            ratios.append(cell.times[paired].seconds / cell.times[single].seconds)
            row += [cell.times[single].text(), cell.times[paired].text(), f"{ratios[-1]:.2f}"]
        rows.append([*row, f"≤ {BLOCK_FLOOR}", mark(max(ratios) <= BLOCK_FLOOR)])
    return table([*head, "floor", ""], rows)


def peer_table(cells: Sequence[Cell], which: str) -> list[str]:
    """Every peer's time and how many times ours it is, the best one judged."""
    cells = [cell for cell in cells if cell.which == which]
    peers = cells[0].peers()
    rows = []
    for cell in cells:
        row = [cell.name(), cell.times[OURS].text()]
        for peer in peers:
            sign = ">" if cell.times[peer].over else ""
            row.append(f"{cell.times[peer].text()} ({sign}{cell.speedup(peer):.1f}×)")
        best = cell.best_peer()
        floor = PEER_FLOOR[which]
        if best:
            row += [f"{cell.speedup(best):.1f}×", f"≥ {floor}×", mark(cell.speedup(best) >= floor)]
        rows.append(row)
    judged = ["best peer", "floor", ""] if peers else []
    return table(["(B, T, D)", OURS, *peers, *judged], rows)


def small_table(times: Mapping[str, Timing]) -> list[str]:
    """Small calls against the elementwise operations they replace, judged."""
    pairs = (
        ("scan, forward + backward", "torch.mul, forward + backward", SMALL_FLOOR["call"]),
        ("scan of one step", "torch.mul and torch.add", SMALL_FLOOR["step"]),
        ("scan of one step", "torch.addcmul", SMALL_FLOOR["step"]),
    )
    rows = []
    for ours, other, floor in pairs:
        ratio = times[ours].seconds / times[other].seconds
        micro = [f"{times[name].seconds * 1e6:.1f}" for name in (ours, other)]
        cells = [ours, micro[0], other, micro[1], f"{ratio:.1f}", f"< {floor}", mark(ratio < floor)]
        rows.append(cells)
    return table(["call", "µs", "against", "µs", "ratio", "floor", ""], rows)


def report(
    add: Sequence[Cell],
    paired: Sequence[Cell],
    cells: Sequence[Cell],
    small: Mapping[str, Timing],
    missing: Sequence[str],
) -> list[str]:
    """The page of results."""
    packages = dict.fromkeys(["torch", *(p.package for p in PEERS.values() if not p.missing())])
    lines = ["# linear_scan on a CPU", "", *conditions(command_line(), packages)]
    lines += ["- medians in milliseconds, everyone measured in turn; results are allocated by all"]
    lines += [f"- NOT INSTALLED, so not compared: {', '.join(missing)}"] if missing else []
    lines += ["", "## Against torch.add on the same tensors", "", *section("add", add_table(add))]
    lines += ["## Blocks of two", "", *section("blocks", block_table(paired))]
    for which, name in PASSES.items():
        lines += [f"## Against others, {name}", "", *section(which, peer_table(cells, which))]
    lines += ["## Small calls, (1, 64, 64) and one step of (1, 64)", ""]
    return lines + section("small", small_table(small))


def csv_rows(cells: Sequence[Cell]) -> list[list[object]]:
    """One row a candidate of every cell."""
    rows: list[list[object]] = []
    for cell in cells:
        case = (*cell.shape, str(cell.dtype).removeprefix("torch."), cell.which)
        for name, t in cell.times.items():
            over_ours = f"{t.seconds / cell.times[OURS].seconds:.4g}"
            over_add = f"{cell.over_add(name):.4g}" if ADD in cell.times else ""
            measured = (f"{t.seconds * 1e3:.4g}", t.calls, "over" if t.over else "")
            rows.append([*case, name, *measured, over_add, over_ours])
    return rows


CSV_HEAD = (
    *("batch", "time", "channels", "dtype", "pass", "who", "median_ms", "calls", "limit"),
    *("times_add", "times_linrnn"),
)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny shapes: does everything run?")
    parser.add_argument("--skip-missing", action="store_true", help="peers may be missing")
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch (2)")
    parser.add_argument("--seconds", type=float, default=0.6, help="aimed at, a candidate (0.6)")
    parser.add_argument("--limit", type=float, default=5.0, help="of one call, in seconds (5)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder (benchmarks/results)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write; 1 when a peer is missing."""
    options = parse(argv)
    torch.set_num_threads(options.threads)
    missing = [name for name, peer in PEERS.items() if peer.missing()]
    # before any peer has run: temporaries of theirs change which memory is handed out next, and
    # torch.add takes half as long in memory that was once made of large pages
    small, add = small_calls(options), large_calls(against_add, options)
    paired = large_calls(against_blocks, options)
    cells = large_calls(against_peers, options)
    lines = report(add, paired, cells, small, missing)
    print("\n".join(lines))
    write_lines(options.out / "scan-cpu.md", lines)
    write_csv(options.out / "scan-cpu.csv", CSV_HEAD, csv_rows([*add, *paired, *cells]))
    if missing and not options.skip_missing:
        print(
            f"peers not installed: {', '.join(missing)}. `make bench` installs them; "
            "--skip-missing compares without them.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
