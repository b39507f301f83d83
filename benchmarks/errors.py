"""The rounding error of every backend against a float64 loop, and of logarithms against none.

Prints and writes ``benchmarks/results/scan-errors.md`` and ``.csv``, and plots the error against
the length of the sequence into ``docs/assets``. ``--redraw`` measures nothing and draws what the
CSV file holds.
"""

import argparse
import csv
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from _loop import Solution, loop_solution
from _report import RESULTS, command_line, conditions, section, table, write_csv, write_lines
from linrnn.ops import backend_report, linear_scan, log_linear_scan

LENGTHS = (2**10, 2**14, 2**17, 2**20)
PLOT_LENGTHS = tuple(2**k for k in (6, 8, 10, 12, 14, 17, 20))
SIZES = (0.0, 0.9, 0.999, 1 - 1e-6, 1.0)
SIZE_NAMES = ("0", "0.9", "0.999", "1 − 10⁻⁶", "1")
COPIES = 4  # channels of each size
DTYPES = (torch.float32, torch.complex64)
LOOP = "loop"
LOG_SIZES = (0, 10, 40, 80, 160, 320, 640)


class Row(NamedTuple):
    """Errors of one backend in one case, for every size of ``a``."""

    backend: str
    dtype: torch.dtype
    constant: bool
    time: int
    quantity: str  # of `Solution`
    roundings: list[float]  # largest error, in units of eps times the largest value
    multiples: list[float]  # of the error of the loop of the same dtype


def problem(time: int, dtype: torch.dtype, constant: bool) -> tuple[Tensor, Tensor, Tensor]:
    """``a, b, grad`` with COPIES channels of each size of ``a`` next to each other.

    A varying ``a`` has the size as its geometric mean, and random signs or phases.
    """
    generator = torch.Generator().manual_seed(time + constant)
    size = torch.tensor(SIZES, dtype=torch.float64).repeat_interleave(COPIES)
    shape = size.shape if constant else (time, len(size))
    a = size if constant else size ** (2 * torch.rand(shape, generator=generator))
    if dtype.is_complex:
        a = torch.polar(a, 6.28 * torch.rand(shape, generator=generator, dtype=torch.float64))
    elif not constant:
        a = a * (1 - 2 * torch.randint(2, shape, generator=generator))
    b, grad = (torch.randn(time, len(size), dtype=dtype, generator=generator) for _ in range(2))
    return a.to(dtype), b, grad


def solve(backend: str, a: Tensor, b: Tensor, grad: Tensor) -> Solution:
    """States and gradients by one backend."""
    a, b = a if a.ndim == 1 else a[None], b[None]
    a, b = a.requires_grad_(), b.requires_grad_()
    h, _ = linear_scan(a, b, backend=backend)
    grad_a, grad_b = torch.autograd.grad(h, (a, b), grad[None])
    return Solution(h.detach()[0], grad_a if a.ndim == 1 else grad_a[0], grad_b[0])


def errors(got: Tensor, truth: Tensor) -> tuple[list[float], list[float]]:
    """For each size of ``a``: the largest absolute error, and the largest true value."""
    gap = (got.to(truth.dtype) - truth).abs().reshape(-1, len(SIZES), COPIES)
    scale = truth.abs().reshape(-1, len(SIZES), COPIES)
    return gap.amax((0, 2)).tolist(), scale.amax((0, 2)).tolist()


def measure(time: int, dtype: torch.dtype, constant: bool, backends: Sequence[str]) -> list[Row]:
    """Every backend's errors in one case; first those of the loop itself."""
    a, b, grad = problem(time, dtype, constant)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    truth = loop_solution(a.to(wide), b.to(wide), grad.to(wide))
    solutions = {LOOP: loop_solution(a, b, grad)}
    solutions |= {name: solve(name, a, b, grad) for name in backends}
    eps = torch.finfo(dtype).eps
    rows = []
    for quantity in Solution._fields:
        own, scale = errors(getattr(solutions[LOOP], quantity), getattr(truth, quantity))
        for name, solution in solutions.items():
            found, _ = errors(getattr(solution, quantity), getattr(truth, quantity))
            # no result of this dtype can promise less than half a rounding of the largest value
            least = [max(e, eps * s / 2) or 1.0 for e, s in zip(own, scale, strict=True)]
            multiples = [e / m for e, m in zip(found, least, strict=True)]
            roundings = [e / (eps * s or 1.0) for e, s in zip(found, scale, strict=True)]
            rows.append(Row(name, dtype, constant, time, quantity, roundings, multiples))
    return rows


def measure_all(lengths: Sequence[int], reference_up_to: int) -> list[Row]:
    """Every case; the backend `reference` is left out where it takes minutes."""
    available = [name for name, why in backend_report().items() if why == "available"]
    rows = []
    for time, dtype, constant in itertools.product(lengths, DTYPES, (True, False)):
        names = [n for n in available if n != "reference" or time <= reference_up_to]
        rows += measure(time, dtype, constant, names)
        print(f"T = {time}, {dtype}, constant a: {constant}", file=sys.stderr, flush=True)
    return rows


def error_table(rows: Sequence[Row], quantities: Sequence[str]) -> list[str]:
    """Largest multiple of the loop's error over the quantities, by size of ``a``."""
    lines: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        if row.backend == LOOP or row.quantity not in quantities:
            continue
        kind = "constant" if row.constant else "varying"
        dtype = str(row.dtype).removeprefix("torch.")
        key = (row.backend, dtype, kind, f"2^{row.time.bit_length() - 1}")
        lines[key] = [
            max(p) for p in zip(lines.get(key, row.multiples), row.multiples, strict=True)
        ]
    cells = [[*key, *(f"{m:.2f}" for m in worst)] for key, worst in sorted(lines.items())]
    return table(["backend", "dtype", "a", "T", *(f"size {n}" for n in SIZE_NAMES)], cells)


def log_errors() -> Iterator[list[str]]:
    """Relative error of ``h`` in logarithms and without, as ``log h`` grows; float32."""
    generator = torch.Generator().manual_seed(0)
    shape = (1, 1024, 64)
    log_a = torch.log(0.9 + 0.09 * torch.rand(shape, generator=generator))
    for size in LOG_SIZES:
        log_b = size + torch.randn(shape, generator=generator)
        a, b = log_a.double().exp(), (log_b.double() - size).exp()
        truth = linear_scan(a, b)[0]  # times exp(size), which would overflow
        log_h, _ = log_linear_scan(log_a, log_b)
        by_logs = ((log_h.double() - size).exp() / truth - 1).abs().max()
        h, _ = linear_scan(log_a.exp(), log_b.exp())
        plain = (h.double() / (truth * torch.tensor(float(size)).double().exp()) - 1).abs().max()
        text = f"{plain:.1e}" if h.isfinite().all() else "overflows"
        yield [str(size), f"{by_logs:.1e}", text, f"{torch.finfo(torch.float32).eps * size:.1e}"]


def log_table() -> list[str]:
    """`log_errors` as a table."""
    head = ["size of log b", "log_linear_scan", "linear_scan of exponentials", "eps × size"]
    return table(head, log_errors())


def plot(rows: Sequence[Row]) -> None:
    """Error against T, one panel a dtype: the worst size of ``a`` and worst quantity."""
    from _plots import draw, figure, save

    made, axes = figure(len(DTYPES), shared=True)
    backends = [*dict.fromkeys(row.backend for row in rows if row.backend != LOOP)]
    for ax, dtype in zip(axes, DTYPES, strict=True):
        lines = {}
        for name in (LOOP, *backends):  # the loop below the others
            worst: dict[int, float] = {}
            for row in rows:
                if row.backend == name and row.dtype == dtype:
                    worst[row.time] = max(worst.get(row.time, 0.0), *row.roundings)
            lines[name] = (sorted(worst), [worst[t] for t in sorted(worst)])
        draw(ax, lines, [*backends, LOOP])  # as in the plot of the times
        ax.set_title(str(dtype).removeprefix("torch."))
        ax.set_xlabel("length of the sequence T [steps]")
    axes[0].set_ylabel("largest error [eps × largest value]")
    save(made, axes, "scan-error", columns=1 + len(backends))


def report(rows: Sequence[Row]) -> list[str]:
    """The page of results."""
    tables = [row for row in rows if row.time in LENGTHS]
    lines = [
        "# Rounding errors of linear_scan",
        "",
        *conditions(command_line(), ["torch", "numpy"]),
    ]
    lines += [
        "- largest error over time and channels against a float64 loop, as a multiple of the",
        "  error of a loop of the same dtype (or of half a rounding of the largest value, where",
        "  that loop is more exact); columns are the size of a, a geometric mean where a varies",
    ]
    for title, name, quantities in (
        ("States h", "errors-h", ["h"]),
        ("Gradients of a and b, the worse of the two", "errors-grad", ["grad_a", "grad_b"]),
    ):
        lines += ["", f"## {title}", "", *section(name, error_table(tables, quantities))]
    lines += ["## Logarithms: relative error of h in float32, T = 1024", ""]
    return lines + section("errors-log", log_table())


def csv_rows(rows: Sequence[Row]) -> Iterator[list[object]]:
    """One row a size of ``a``."""
    for row in rows:
        case = (row.backend, str(row.dtype).removeprefix("torch."), row.constant, row.time)
        for size, eps, multiple in zip(SIZES, row.roundings, row.multiples, strict=True):
            yield [*case, row.quantity, size, f"{eps:.4g}", f"{multiple:.4g}"]


def read(path: Path) -> list[Row]:
    """Rows of a file by `csv_rows`."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = [*csv.DictReader(file)]
    rows = []
    for start in range(0, len(lines), len(SIZES)):
        of_a_row = lines[start : start + len(SIZES)]
        backend, dtype, constant, time, what = list(of_a_row[0].values())[:5]
        sizes = ([float(line[name]) for line in of_a_row] for name in CSV_HEAD[-2:])
        case = (backend, getattr(torch, dtype), constant == "True", int(time), what)
        rows.append(Row(*case, *sizes))
    return rows


CSV_HEAD = ("backend", "dtype", "constant", "time", "what", "size_a", "roundings", "times_loop")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write, plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short sequences, no plot")
    parser.add_argument("--redraw", action="store_true", help="the plot of --out, measure nothing")
    parser.add_argument("--reference-up-to", type=int, default=2**17, metavar="T")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder (benchmarks/results)")
    options = parser.parse_args(argv)
    if options.redraw:
        plot(read(options.out / "scan-errors.csv"))
        return 0
    lengths = LENGTHS[:1] if options.quick else sorted({*LENGTHS, *PLOT_LENGTHS})
    rows = measure_all(lengths, options.reference_up_to)
    lines = report(rows)
    print("\n".join(lines))
    write_lines(options.out / "scan-errors.md", lines)
    write_csv(options.out / "scan-errors.csv", CSV_HEAD, csv_rows(rows))
    if not options.quick:
        plot(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
