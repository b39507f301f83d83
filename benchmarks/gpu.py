"""`make bench-gpu`: check scans, cells, matrix memories on this GPU; their speed beside a copy's.

Prints, and writes to benchmarks/results/, the median time of each scan and its rate in GB/s: the
fewest bytes it must move (every input read once, every output written once) over the time, beside
the rate of a plain copy measured in the same rounds. Peers run where they are installed:
accelerated-scan, flash-linear-attention (HGRN and matrix memories), mamba-ssm; cuDNN's GRU is
there for scale.
"""

import datetime
import importlib.metadata
import itertools
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from _memory_calls import MEMORIES, MEMORY_SHAPES, fla_peer, layouts, memory, op_of, options_of
from cells import CELLS
from cells import arguments as of_cell
from linrnn.cells import Cell
from linrnn.ops import backend_report, cell_scan, linear_scan
from linrnn.ops._layout import accumulator_dtype

CELL_SHAPES = ((8, 1024, 256), (1, 16384, 256), (64, 1024, 64))
SHAPES = ((8, 2048, 2048), (8, 8192, 1024), (1, 65536, 1024), (1, 1048576, 64), (64, 1024, 256))
ROUNDS = 25
BUDGET_S = 540.0  # then what is left is reported as not measured
# largest ‖got - true‖ / ‖true‖; a loop in the dtype has about a tenth of it
TOLERANCE = {
    torch.float64: 1e-12,
    torch.complex128: 1e-12,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.bfloat16: 2e-2,
    torch.float16: 2e-3,
}
RESULTS = Path(__file__).parent / "results"
PACKAGES = ("linrnn", "torch", "triton", "accelerated-scan", "flash-linear-attention", "mamba-ssm")

Run = Callable[[], object]
Scan = tuple[Callable[[], Tensor], tuple[Tensor, ...]]  # and what it is differentiated by


class Row(NamedTuple):
    """One measured line of the table."""

    shape: tuple[int, ...]
    dtype: str
    decay: str  # or which cell, or memory
    work: str
    name: str
    ms: float
    rate: float  # GB/s of the fewest bytes
    of_copy: float


def main() -> int:
    """Check, measure, print and write; 1 without a GPU or when a number is wrong."""
    if not torch.cuda.is_available():
        sys.stderr.write("bench-gpu: needs a GPU that PyTorch can use; this machine has none.\n")
        return 1
    problem = backend_report()["triton"]
    if problem != "available":
        sys.stderr.write(f"bench-gpu: the backend 'triton' cannot run: {problem}.\n")
        return 1
    start, device = time.monotonic(), torch.device("cuda")
    torch.manual_seed(0)
    checks = (check_layouts, check_shapes, check_cells, check_memories)
    wrong = [problem for check in checks for problem in check(device)]
    if wrong:
        sys.stderr.write("\n".join(["bench-gpu: wrong numbers:", *wrong, ""]))
        return 1
    print(
        f"correct on {torch.cuda.get_device_name()}: small layouts, {len(SHAPES)} shapes, "
        f"{len(CELLS)} cells and {len(MEMORIES)} matrix memories"
    )
    rows, skipped = [], []
    for shape, dtype, constant in cases():
        if time.monotonic() - start > BUDGET_S:
            skipped.append(f"{shape} {dtype}")
            continue
        rows += measure(shape, dtype, constant, device)
    for shape, (name, cell) in itertools.product(CELL_SHAPES, CELLS.items()):
        if time.monotonic() - start > BUDGET_S:
            skipped.append(f"{shape} {name}")
            continue
        rows += measure_cell(name, cell, shape, device)
    for shape, name in itertools.product(MEMORY_SHAPES, MEMORIES):
        if time.monotonic() - start > BUDGET_S:
            skipped.append(f"{shape} {name}")
            continue
        rows += measure_memory(name, shape, device)
    text = report(rows, skipped, time.monotonic() - start)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    name = re.sub(r"\W+", "-", torch.cuda.get_device_name().lower())
    (RESULTS / f"gpu-{name}-{datetime.date.today()}.md").write_text(text, encoding="utf-8")
    return 0


def cases() -> Iterator[tuple[tuple[int, int, int], torch.dtype, bool]]:
    """Every shape, real and complex, constant and varying; the same bytes for both dtypes."""
    for dtype, constant, shape in itertools.product(
        (torch.float32, torch.complex64), (False, True), SHAPES
    ):
        batch, steps, channels = shape
        yield (batch, steps, channels // 2 if dtype.is_complex else channels), dtype, constant


def inputs(
    shape: tuple[int, int, int], dtype: torch.dtype, constant: bool, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Decays of modulus 0.9 to 1, inputs and a cotangent, all random."""
    b = torch.randn(shape, dtype=dtype, device=device)
    modulus = 0.9 + 0.1 * torch.rand(shape[2:] if constant else shape, device=device)
    a = torch.polar(modulus, 6.28 * torch.rand_like(modulus)) if dtype.is_complex else modulus
    return a.to(dtype).requires_grad_(), b.requires_grad_(), torch.randn_like(b)


def check_layouts(device: torch.device, times: tuple[int, ...] = (1, 63, 1000)) -> list[str]:
    """Small scans of every layout and dtype against the float64 loop on the CPU."""
    wrong = []
    flags = itertools.product(TOLERANCE, times, (False, True), ("rows", "packed"), (False, True))
    for dtype, steps, constant, layout, reverse in flags:
        packed, channels = layout == "packed", 37
        a, b, _ = inputs((1 if packed else 3, steps, channels), dtype, constant, device)
        cuts = torch.tensor([0, 0, steps // 3, steps]) if packed else None
        state = torch.randn(3, channels, device=device).to(accumulator_dtype(dtype))
        state.requires_grad_()
        reset = torch.rand(b.shape[:2], device=device) < 0.01
        what = f"T={steps} {dtype} {layout} constant={constant} reverse={reverse}"
        wrong += disagreements(
            what, (a, b, state), "reference", torch.device("cpu"), reset, cuts, reverse
        )
    return wrong


def check_shapes(device: torch.device) -> list[str]:
    """The shapes that are timed, against PyTorch's own operations in double precision."""
    wrong = []
    for shape, dtype, constant in cases():
        a, b, _ = inputs(shape, dtype, constant, device)
        wrong += disagreements(f"{shape} {dtype} constant={constant}", (a, b, None), "tree", device)
    return wrong


def disagreements(
    what: str,
    arguments: tuple[Tensor, Tensor, Tensor | None],
    other: str,
    where: torch.device,
    reset: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    reverse: bool = False,
) -> list[str]:
    """Compare outputs and gradients with backend ``other`` in double precision on ``where``."""
    dtype = arguments[1].dtype
    double = torch.complex128 if dtype.is_complex else torch.float64

    def run(backend: str, args: tuple[Any, ...], mask: Tensor | None) -> list[Tensor]:
        leaves = [x for x in args if x is not None]
        a, b, state = args
        h, final = linear_scan(
            a, b, state, reset=mask, cu_seqlens=cu_seqlens, reverse=reverse, backend=backend
        )
        weights = [
            torch.cos(torch.arange(x.numel(), device=x.device)).view_as(x) for x in (h, final)
        ]
        weights = [w.to(x.dtype) for w, x in zip(weights, (h, final), strict=True)]
        return [h, final, *torch.autograd.grad([h, final], leaves, weights)]

    got = run("triton", arguments, reset)
    exact = tuple(
        None if x is None else x.detach().to(where, double).requires_grad_() for x in arguments
    )
    true = run(other, exact, None if reset is None else reset.to(where))
    names = ("h", "final state", "grad of a", "grad of b", "grad of the state")
    return distances(what, names, got, true, dtype)


def distances(
    what: str, names: Iterable[str], got: list[Tensor], true: list[Tensor], dtype: torch.dtype
) -> list[str]:
    """What is farther from the truth than its dtype allows."""
    wrong = []
    for name, x, y in zip(names, got, true, strict=False):
        y = y.detach()
        error = float((x.detach().to(y) - y).norm() / y.norm().clamp(min=1e-300))
        if not error <= TOLERANCE[dtype]:
            wrong.append(f"  {what}: {name} differs by {error:.1e}, allowed {TOLERANCE[dtype]:.0e}")
    return wrong


def check_cells(device: torch.device, shape: tuple[int, int, int] = (3, 100, 64)) -> list[str]:
    """Cells with resets, in three dtypes, against their loops in double precision on the CPU."""
    wrong, dtypes = [], (torch.float32, torch.float64, torch.bfloat16)
    for (name, cell), dtype in itertools.product(CELLS.items(), dtypes):
        wide, given = accumulator_dtype(dtype), of_cell(cell, shape)
        given = {n: x.to(dtype if n in cell.inputs else wide) for n, x in given.items()}
        reset = torch.rand(shape[:2]) < 0.05
        there = {n: x.to(device) for n, x in given.items()}
        exact = {n: x.double() for n, x in given.items()}
        got = cell_and_gradients(cell, there, reset.to(device), "triton")
        true = cell_and_gradients(cell, exact, reset, "reference")
        names = ("output", *cell.states, *(f"grad of {n}" for n in given))
        wrong += distances(f"{name} {dtype}", names, [x.cpu() for x in got], true, dtype)
    return wrong


def cell_and_gradients(
    cell: Cell, given: dict[str, Tensor], reset: Tensor, backend: str
) -> list[Tensor]:
    """The output, the final states, and the gradients of all arguments."""
    leaves = {n: x.clone().requires_grad_() for n, x in given.items()}
    y, last = cell_scan(cell, **leaves, reset=reset, reverse=True, backend=backend)
    flat = [y, *(last if isinstance(last, tuple) else [last])]
    weights = [torch.cos(torch.arange(x.numel(), device=x.device)).view_as(x) for x in flat]
    weights = [w.to(x.dtype) for w, x in zip(weights, flat, strict=True)]
    return [*flat, *torch.autograd.grad(flat, list(leaves.values()), weights)]


def check_memories(device: torch.device, times: tuple[int, ...] = (2, 63, 200)) -> list[str]:
    """Matrix memories of every kind, in three dtypes, against their chunks in double precision.

    Keys and values are no powers of two; those of 128 channels come beside.
    """
    wrong, dtypes = [], (torch.float32, torch.float64, torch.bfloat16)
    sizes = [(steps, 2, 20, 37) for steps in times] + [(130, 1, 128, 48)]
    for name, dtype, size in itertools.product(MEMORIES, dtypes, sizes):
        for layout in layouts(size[0]):
            rows = 1 if "cu_seqlens" in layout else 3
            given, wide = memory(name, (rows, *size), 3), accumulator_dtype(dtype)
            stored = ("q", "k", "v", "a", "b")
            given = {n: x.to(dtype if n in stored else wide) for n, x in given.items()}
            there = {n: x.to(device) for n, x in given.items()}
            mask = {"reset": layout["reset"].to(device)}
            got = memory_and_gradients(name, there, layout | mask, "triton")
            exact = {n: x.double() for n, x in given.items()}
            true = memory_and_gradients(name, exact, layout, "tree")
            names = ("output", "final state", *(f"grad of {n}" for n in given))
            what = f"{name} {dtype} {size} {list(layout)}"
            wrong += distances(what, names, [x.cpu() for x in got], true, dtype)
    return wrong


def memory_and_gradients(
    name: str, given: dict[str, Tensor], layout: dict[str, Any], backend: str
) -> list[Tensor]:
    """The output, the final state, and the gradients of all arguments."""
    leaves = {n: x.clone().requires_grad_() for n, x in given.items()}
    found = op_of(name)(**leaves, **options_of(name), **layout, backend=backend)
    weights = [torch.cos(torch.arange(x.numel(), device=x.device)).view_as(x) for x in found]
    weights = [w.to(x.dtype) for w, x in zip(weights, found, strict=True)]
    return [*found, *torch.autograd.grad(found, list(leaves.values()), weights)]


def measure(
    shape: tuple[int, int, int], dtype: torch.dtype, constant: bool, device: torch.device
) -> list[Row]:
    """Time the scan, its gradients, copies and peers in turn."""
    a, b, into = inputs(shape, dtype, constant, device)
    unit = b.numel() * b.element_size()
    runs: dict[tuple[str, str], tuple[Run, int]] = {
        ("copy", "clone"): (b.detach().clone, 2),
        ("copy", "torch.add"): (lambda: torch.add(b.detach(), into), 3),
    }
    scans: dict[str, Scan] = {"linrnn": (lambda: linear_scan(a, b)[0], (a, b))}
    if not constant and not dtype.is_complex:
        scans |= installed_peers(a.detach(), b.detach())
    for name, scan in scans.items():
        runs["forward", name] = (without_gradient(scan), 2 if constant else 3)
        runs["both", name] = (with_gradient(scan), 5 if constant else 8)
    kinds = (str(dtype).removeprefix("torch."), "constant" if constant else "varying")
    return timed(runs, unit, shape, kinds)


def measure_cell(
    name: str, cell: Cell, shape: tuple[int, int, int], device: torch.device
) -> list[Row]:
    """Time a cell and its gradients, and a copy, in turn."""
    given = {n: x.to(device).requires_grad_() for n, x in of_cell(cell, shape).items()}
    scan = (lambda: cell_scan(cell, **given, backend="triton")[0], tuple(given.values()))
    x, n = given[cell.inputs[0]].detach(), len(cell.inputs)
    kept = len(cell.states)  # read again: inputs, states, the gradient of the output
    runs: dict[tuple[str, str], tuple[Run, int]] = {
        ("copy", "clone"): (x.clone, 2),
        ("forward", "linrnn"): (without_gradient(scan), n + 1),
        ("both", "linrnn"): (with_gradient(scan), 3 * n + 2 * kept + 2),
    }
    return timed(runs, x.numel() * x.element_size(), shape, ("float32", name))


def measure_memory(name: str, shape: tuple[int, ...], device: torch.device) -> list[Row]:
    """Time a matrix memory and its gradients in bfloat16, a copy, and a peer, in turn."""
    given = memory(name, shape, shape[0])
    del given["initial_state"]
    stored = ("q", "k", "v", "a", "b")
    kept = {n: x.to(torch.bfloat16) if n in stored else x for n, x in given.items()}
    kept = {n: x.to(device).requires_grad_() for n, x in kept.items()}
    v, leaves, options = kept["v"].detach(), tuple(kept.values()), options_of(name)
    scans: dict[str, Scan] = {
        "linrnn": (lambda: op_of(name)(**kept, **options, backend="triton")[0], leaves)
    }
    peer = fla_peer(name, kept) if version("flash-linear-attention") else None
    if peer is not None:
        scans["flash-linear-attention"] = (peer, leaves)
    size = v.numel() * v.element_size()
    moved = sum(x.numel() * x.element_size() for x in leaves)
    runs: dict[tuple[str, str], tuple[Run, int]] = {("copy", "clone"): (v.clone, 2 * size)}
    for who, scan in scans.items():
        runs["forward", who] = (without_gradient(scan), moved + size)
        runs["both", who] = (with_gradient(scan), 3 * moved + 2 * size)
    return timed(runs, 1, shape, ("bfloat16", name))


def timed(
    runs: dict[tuple[str, str], tuple[Run, int]],
    unit: int,
    shape: tuple[int, ...],
    kinds: tuple[str, str],
) -> list[Row]:
    """The rows of what moves so many units of bytes."""
    medians = interleaved({key: run for key, (run, _) in runs.items()})
    rates = {key: runs[key][1] * unit / ms / 1e6 for key, ms in medians.items()}
    copy = max(rate for (work, _), rate in rates.items() if work == "copy")
    return [
        Row(shape, *kinds, *key, ms, rates[key], rates[key] / copy) for key, ms in medians.items()
    ]


def without_gradient(scan: Scan) -> Run:
    """The forward pass alone."""

    def run() -> object:
        with torch.no_grad():
            return scan[0]()

    return run


def with_gradient(scan: Scan) -> Run:
    """Forward and backward."""
    function, leaves = scan
    into = torch.randn_like(function())
    return lambda: torch.autograd.grad(function(), leaves, into)


def interleaved(runs: dict[tuple[str, str], Run]) -> dict[tuple[str, str], float]:
    """Median milliseconds of each, by device events, all of them in turn in every round."""
    for run in runs.values():
        for _ in range(3):  # compiles, allocates
            run()
    pairs: dict[tuple[str, str], list[tuple[torch.cuda.Event, torch.cuda.Event]]]
    pairs = {key: [] for key in runs}
    for _ in range(ROUNDS):
        for key, run in runs.items():
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            run()
            last.record()
            pairs[key].append((first, last))
        torch.cuda.synchronize()
    return {
        key: statistics.median(first.elapsed_time(last) for first, last in events)
        for key, events in pairs.items()
    }


def installed_peers(a: Tensor, b: Tensor) -> dict[str, Scan]:
    """Other scans of the same recurrence, each given its inputs in the layout it likes best."""
    _, steps, channels = b.shape
    found: dict[str, Scan] = {}

    def leaves(*tensors: Tensor, time_last: bool) -> tuple[Tensor, ...]:
        return tuple(
            (x.mT if time_last else x).contiguous().clone().requires_grad_() for x in tensors
        )

    if version("accelerated-scan") and 32 <= steps <= 65536 and steps & (steps - 1) == 0:
        from accelerated_scan.warp import scan

        gates_tokens = leaves(a, b, time_last=True)
        found["accelerated-scan"] = (lambda: scan(*gates_tokens), gates_tokens)
    if version("flash-linear-attention"):
        from fla.ops.hgrn import chunk_hgrn

        x_g = leaves(b, a.log(), time_last=False)
        found["fla chunk_hgrn"] = (lambda: chunk_hgrn(*x_g)[0], x_g)
    if version("mamba-ssm"):
        from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

        # one state a channel: h_t = exp(-delta_t) h_{t-1} + delta_t u_t
        u_delta, one = leaves(b, -a.log(), time_last=True), torch.ones(channels, 1, device=b.device)
        found["mamba-ssm"] = (lambda: selective_scan_fn(*u_delta, -one, one, one), u_delta)
    if channels <= 1024 and steps <= 8192:
        gru = torch.nn.GRU(channels, channels, batch_first=True, device=b.device)
        (x,) = leaves(b, time_last=False)
        found["cuDNN GRU (for scale)"] = (lambda: gru(x)[0], (x,))
    return found


def version(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def report(rows: list[Row], skipped: list[str], seconds: float) -> str:
    """The table and what it was measured with, as Markdown."""
    device = torch.cuda.get_device_properties(0)
    lines = [
        f"# Scans, cells and matrix memories on {device.name}, {datetime.date.today()}",
        "",
        f"`make bench-gpu`: medians of {ROUNDS} rounds in turn, {seconds:.0f} s in all. GB/s "
        "counts the fewest bytes the work must move; the last column divides it by the faster of "
        "a clone and `torch.add` on the same tensors. `both` is forward and backward.",
        "",
        f"{device.multi_processor_count} multiprocessors, CUDA {torch.version.cuda}; "
        + ", ".join(f"{p} {version(p) or 'not installed'}" for p in PACKAGES)
        + ".",
        "",
        "Matrix memories are (batch, time, heads, d_key, d_value).",
        "",
        "| (batch, time, channels) | dtype | a, or what | work | what | ms | GB/s | of copy |",
        "| --- | --- | --- | --- | --- | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row.shape} | {row.dtype} | {row.decay} | {row.work} | {row.name} "
        f"| {row.ms:.3f} | {row.rate:.0f} | {row.of_copy:.0%} |"
        for row in rows
    ]
    if skipped:
        lines += ["", "Not measured, for want of time: " + "; ".join(skipped) + "."]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
