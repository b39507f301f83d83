"""The speed of matrix memories on a CPU: our scans beside bare products and others.

Prints the median times of everyone, measured in turn in one run, forward and forward with all
gradients; writes ``benchmarks/results/memories-cpu.md``. "Products" are two batched products of
chunks of 64 steps, (64, K) by (K, V) and (K, 64) by (64, V): the arithmetic no one avoids, of which
a forward with gradients has three times as much.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from _memories import CHUNK, KINDS, PEERS, Shape, call, candidates, op_of, ours, problem
from _peak import megabytes, print_peak
from _report import RESULTS, command_line, conditions, section, table, write_lines
from _timing import in_turn

SHAPES = (
    Shape(1, 4096, 8, 64, 64),
    Shape(8, 1024, 4, 64, 64),
    Shape(4, 2048, 16, 16, 64),
    Shape(1, 16384, 4, 128, 128),
)
BESIDE = (Shape(1, 4096, 8, 64, 64), Shape(1, 1024, 8, 64, 64))  # with the peers
QUICK = Shape(1, 128, 2, 16, 16)
LENGTHS = (2048, 4096, 8192, 16384)  # whose memory is measured
STEP = Shape(1, 1, 8, 64, 64)
LEVELS = 15  # of a step, as the layer has by default
LIMIT = 120  # seconds for the process that measures memory
TABLES = ("products", "beside", "step", "memory")


def measure(options: argparse.Namespace) -> list[str]:
    """Ours over the products, every kind and shape."""
    rows = []
    for shape in (QUICK,) if options.quick else SHAPES:
        for kind in options.kinds:
            found = [
                in_turn(dict(candidates(kind, shape, train, False)), **_limits(options))
                for train in (False, True)
            ]
            times = [some["linrnn"] for some in found]
            ratios = [
                some["linrnn"].seconds / (each * some["products"].seconds)
                for some, each in zip(found, (1, 3), strict=True)
            ]
            least = found[0]["products"].text()
            rows.append([shape.text(), kind, least, *(t.text() for t in times), *_two(ratios)])
            _say(f"{shape.text()} {kind}")
    head = ["B, T, H, K, V", "decay", "products [ms]", "forward [ms]", "with gradients [ms]"]
    return table([*head, "forward / products", "with gradients / 3 products"], rows)


def beside(options: argparse.Namespace) -> list[str]:
    """Everyone, of ours how many times as fast."""
    rows = []
    for shape in (QUICK,) if options.quick else BESIDE:
        for kind in options.kinds:
            found = [
                in_turn(dict(candidates(kind, shape, train, True)), **_limits(options))
                for train in (False, True)
            ]
            for who in (name for name in found[0] if name != "products"):
                times = [some[who].text() for some in found]
                ratios = [some[who].seconds / some["linrnn"].seconds for some in found]
                rows.append([shape.text(), kind, who, *times, *_two(ratios)])
            _say(f"{shape.text()} {kind} beside others")
    head = ["B, T, H, K, V", "decay", "who", "forward [ms]", "with gradients [ms]"]
    return table([*head, "times ours, forward", "times ours, with gradients"], rows)


def steps(options: argparse.Namespace) -> list[str]:
    """One step with a state, without gradients: all of the call."""
    rows = []
    for kind in options.kinds:
        given = problem(kind, STEP)
        sizes: tuple[int, ...] = (STEP.K, STEP.V)
        if "levels" in kind:
            given["level_scales"] = torch.rand(STEP.B, 1, STEP.H, LEVELS)
            given["position"] = torch.full((STEP.B,), 1 << (LEVELS - 2))
            sizes = (LEVELS, *sizes)
        state = torch.randn(STEP.B, STEP.H, *sizes)
        op = op_of(given)
        with torch.no_grad():
            taken = _microseconds(partial(op, **given, initial_state=state))
        rows.append([kind, f"{taken:.1f}"])
    return table(["decay", f"a step at (B, T, H, K, V) = ({STEP.text()}) [us]"], rows)


def _microseconds(run: Callable[[], object], calls: int = 2000) -> float:
    best = float("inf")
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(calls):
            run()
        best = min(best, time.perf_counter() - start)
    return 1e6 * best / calls


def memory(options: argparse.Namespace) -> list[str]:
    """The addition of a training step to the peak, by length; ours of every kind."""
    peers = [(n, p.kinds[0]) for n, p in PEERS.items() if not p.missing()]
    lengths = (QUICK.T,) if options.quick else LENGTHS
    rows = []
    for name, kind in [*(("linrnn", kind) for kind in options.kinds), *peers]:
        peaks: list[str] = []
        for length in lengths:  # what takes too long at one takes too long at the next
            over = bool(peaks) and peaks[-1].startswith("over")
            peaks.append(
                peaks[-1] if over else megabytes(__file__, name, kind, length, limit=LIMIT)
            )
        rows.append([name, kind, *peaks])
        _say(f"memory of {name}")
    return table(["who", "decay", *(f"T = {t} [MB]" for t in lengths)], rows)


def measure_memory(name: str, kind: str, length: int) -> None:
    """Print the bytes a training step adds to this process's peak."""
    prepare = ours if name == "linrnn" else PEERS[name].prepare
    small, given = (problem(kind, Shape(1, steps, 8, 64, 64)) for steps in (CHUNK, length))
    print_peak(*(call(prepare(x), True).call for x in (small, given)))


def _limits(options: argparse.Namespace) -> dict[str, float]:
    return {"seconds": options.seconds, "limit": options.limit}


def _two(ratios: Sequence[float]) -> list[str]:
    return [f"{x:.1f}" if x < 100 else f"{x:.0f}" for x in ratios]


def _say(what: str) -> None:
    print(f"{what}: done", file=sys.stderr, flush=True)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny problems: does everything run?")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of decay (all)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of PyTorch (1 2)")
    parser.add_argument("--seconds", type=float, default=1.0, help="aimed at, a candidate (1)")
    parser.add_argument("--limit", type=float, default=30.0, help="of a call, in seconds (30)")
    parser.add_argument("--output", type=Path, default=RESULTS / "memories-cpu.md")
    parser.add_argument("--memory-of", nargs=3, metavar=("WHO", "DECAY", "TIME"), default=None)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write."""
    options = parse(argv)
    if options.memory_of:
        name, kind, length = options.memory_of
        measure_memory(name, kind, int(length))
        return
    torch.manual_seed(0)
    lines = ["# Matrix memories on a CPU", ""]
    named = {"fla": "fla-core", "fast_transformers": "pytorch-fast-transformers"}
    packages = {named.get(p.package, p.package) for p in PEERS.values() if not p.missing()}
    lines += [*conditions(command_line(), sorted(packages)), ""]
    for threads in options.threads if "products" in options.tables else ():
        torch.set_num_threads(threads)
        lines += [f"## Over bare products, {threads} threads", ""]
        lines += section(f"products-{threads}", measure(options))
    torch.set_num_threads(options.threads[0])
    if "beside" in options.tables:
        lines += [f"## Beside others, {options.threads[0]} threads", ""]
        lines += section("beside", beside(options))
    if "step" in options.tables:
        lines += ["## One step", "", *section("step", steps(options))]
    if "memory" in options.tables:
        lines += ["## Peak memory of a training step, (1, T, 8, 64, 64)", ""]
        lines += section("memory", memory(options))
    write_lines(options.output, lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
