"""The speed and memory of whole layers on a CPU: a training step and a streaming step.

Prints the median times of everyone, measured in turn in one run, the ratios, and the peak memory
of a training step, each measured in a process of its own; writes
``benchmarks/results/layers-cpu.md``. Exit code 1: a peer is not installed.

With ``--half`` it is about training steps inside of autocast to bfloat16 instead, beside those in
float32 and the layer's own products in bfloat16, with one and two threads; it writes
``layers-half-cpu.md``, or ``layers-half-amx.md`` where the processor has tiles. Exit code 1: where
the processor multiplies bfloat16 numbers itself, a layer is not faster than in float32.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from _layers import (
    HALF_FLOORS,
    HALF_LAYERS,
    LAYERS,
    PRODUCT_FLOORS,
    RIVALS,
    own_products,
    streaming_steps,
    training_step,
)
from _peak import megabytes, print_peak
from _report import RESULTS, command_line, conditions, section, table, write_lines
from _timing import Candidate, Timing, in_turn, keep_memory

D_MODEL, N_LAYERS = 256, 6
SHAPES = {256: 8, 512: 8, 1024: 8, 4096: 4, 16384: 1}  # time: batch
QUICK_SHAPES = {32: 2}
STEP_FLOOR = 1 / 3
OURS = [name for name in LAYERS if name.startswith("linrnn")]
JUDGED = (1024, 16384)  # lengths at which a layer is held to its own products
MEMORY_TIME = 1024
MEMORY_LIMIT = 60  # seconds


def _products(name: str) -> str:
    return f"products of {name.removeprefix('linrnn ')}"


def mark(met: bool) -> str:
    """How a floor is judged in the tables."""
    return "met" if met else "NOT met"


def time_training(options: argparse.Namespace) -> dict[int, dict[str, Timing]]:
    """Everyone's training step at every length; who is over the limit is not asked for more."""
    found: dict[int, dict[str, Timing]] = {}
    over: dict[str, Timing] = {}
    for time, batch in (QUICK_SHAPES if options.quick else SHAPES).items():
        calls = {
            name: Candidate(training_step(layer, D_MODEL, batch, time))
            for name, layer in LAYERS.items()
            if not (layer.missing() or name in over)
        }
        calls |= {
            _products(name): Candidate(own_products(LAYERS[name], D_MODEL, batch, time))
            for name in OURS
        }
        times = in_turn(calls, seconds=options.seconds, limit=options.limit)
        over |= {name: t for name, t in times.items() if t.over}
        found[time] = {**over, **times}
        text = ", ".join(f"{name} {t.text()}" for name, t in found[time].items())
        print(f"T = {time} [ms]: {text}", file=sys.stderr, flush=True)
    return found


def time_streaming(options: argparse.Namespace) -> dict[str, Timing]:
    """Everyone's step."""
    calls = {n: Candidate(c) for n, c in streaming_steps(D_MODEL, N_LAYERS).items()}
    return in_turn(calls, seconds=options.seconds, limit=options.limit, max_calls=51)


def measure_memory(name: str, batch: int, time: int) -> None:
    """Print the bytes a training step adds to this process's peak."""
    layer = LAYERS[name]
    print_peak(training_step(layer, D_MODEL, 1, 2), training_step(layer, D_MODEL, batch, time))


def training_table(times: Mapping[int, Mapping[str, Timing]]) -> list[str]:
    """Milliseconds of everyone."""
    head = ["forward + backward [ms]", *(f"T = {t}, batch {SHAPES.get(t, 2)}" for t in times)]
    names = next(iter(times.values()))
    return table(head, [[n, *(times[t][n].text() for t in times)] for n in names])


def product_table(times: Mapping[int, Mapping[str, Timing]]) -> list[str]:
    """How many times as long as its own products a layer takes: what is left to be had."""
    rows = []
    for name in OURS:
        cells, most = [], PRODUCT_FLOORS.get(name)
        for time, everyone in times.items():
            ratio = everyone[name].seconds / everyone[_products(name)].seconds
            judged = f" (≤ {most:g}: {mark(ratio <= most)})" if most and time in JUDGED else ""
            cells.append(f"{ratio:.2f}×{judged}")
        rows.append([name, *cells])
    return table(["training, over its own products", *(f"T = {t}" for t in times)], rows)


def rival_table(times: Mapping[int, Mapping[str, Timing]]) -> list[str]:
    """How many times longer each rival takes, judged where there is a floor."""
    rows = []
    for ours, rivals in RIVALS.items():
        for rival, floors in rivals.items():
            if rival not in next(iter(times.values())):
                continue
            cells = []
            for time, everyone in times.items():
                ratio = everyone[rival].seconds / everyone[ours].seconds
                floor = floors.get(time)
                judged = f" (≥ {floor:g}: {mark(ratio >= floor)})" if floor else ""
                cells.append(f"{'>' if everyone[rival].over else ''}{ratio:.1f}×{judged}")
            rows.append([f"{ours} against {rival}", *cells])
    return table(["times faster", *(f"T = {t}" for t in times)], rows)


def streaming_table(times: Mapping[str, Timing]) -> list[str]:
    """Microseconds of a step, and the part of transformers' it is."""
    whole = times["transformers Mamba"].seconds
    rows = []
    for name, t in times.items():
        part = t.seconds / whole
        judged = mark(part <= STEP_FLOOR) if name.startswith("linrnn") else ""
        rows.append([name, f"{t.seconds * 1e6:.0f}", f"{part:.2f}", judged])
    return table(["one step of 6 layers", "µs", "of transformers Mamba", "≤ 1/3"], rows)


def memory_table(options: argparse.Namespace) -> list[str]:
    """Megabytes of a training step."""
    time, batch = (32, 2) if options.quick else (MEMORY_TIME, SHAPES[MEMORY_TIME])
    rows = []
    for name in (name for name, layer in LAYERS.items() if not layer.missing()):
        rows.append([name, megabytes(__file__, name, batch, time, limit=MEMORY_LIMIT)])
    return table([f"T = {time}, batch {batch}", "MB added to the peak by a training step"], rows)


def time_half(options: argparse.Namespace, batch: int, time: int) -> dict[str, dict[str, Timing]]:
    """A training step of each layer in both precisions, and its products, in turn."""
    found = {}
    for name, layer in HALF_LAYERS.items():
        calls = {
            "float32": Candidate(training_step(layer, D_MODEL, batch, time)),
            "bfloat16": Candidate(training_step(layer, D_MODEL, batch, time, half=True)),
            "products": Candidate(
                own_products(layer, D_MODEL, batch, time, dtype=torch.bfloat16, recurrent=True)
            ),
        }
        found[name] = in_turn(calls, seconds=options.seconds, limit=options.limit)
        text = ", ".join(f"{kind} {t.text()}" for kind, t in found[name].items())
        print(f"{name} [ms]: {text}", file=sys.stderr, flush=True)
    return found


def half_rows(times: Mapping[str, Mapping[str, Timing]]) -> list[list[str]]:
    """Milliseconds of each layer, and both ratios, judged."""
    rows = []
    for name, each in times.items():
        half, most = each["bfloat16"].seconds, HALF_FLOORS[name]
        over, faster = half / each["products"].seconds, each["float32"].seconds / half
        rows.append([
            name,
            *(each[kind].text() for kind in ("float32", "bfloat16", "products")),
            f"{over:.2f}× (≤ {most:g}: {mark(over <= most)})",
            f"{faster:.2f}× (> 1: {mark(faster > 1)})",
        ])  # fmt: skip
    return rows


def report_half(options: argparse.Namespace) -> int:
    """Write the page of steps inside of autocast; 1 where one does not pay."""
    time, batch = (32, 2) if options.quick else (1024, SHAPES[1024])
    head = ["forward + backward [ms]", "float32", "bf16-mixed", "own products in bfloat16",
            "over its own products", "faster than float32"]  # fmt: skip
    lines, failed = ["# Layers on a CPU in half precision", "", *_half_conditions()], False
    for threads in (1, 2):
        torch.set_num_threads(threads)
        times = time_half(options, batch, time)
        title = f"## T = {time}, batch {batch}, {threads} thread{'s' * (threads > 1)}"
        rows = half_rows(times)
        lines += ["", title, "", *section(f"threads-{threads}", table(head, rows))]
        failed |= any(t["bfloat16"].seconds >= t["float32"].seconds for t in times.values())
    print("\n".join(lines))
    # with tiles products take half the time, so ratios to them are others
    processor = "amx" if torch.cpu._is_amx_tile_supported() else "cpu"
    write_lines(options.out / f"layers-half-{processor}.md", lines)
    return int(failed and has_half_products() and not options.quick)


def has_half_products() -> bool:
    """Whether the processor multiplies bfloat16 numbers itself."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _half_conditions() -> list[str]:
    lines = conditions(command_line(), ["torch"])
    has = "has" if has_half_products() else "has no"
    tiles = ", and tiles (AMX)" if torch.cpu._is_amx_tile_supported() else ""
    lines += [f"- the processor {has} instructions for products of bfloat16{tiles}"]
    return [*lines, f"- one layer of width {D_MODEL}, bfloat16 by autocast; medians, in turn"]


def report(options: argparse.Namespace, missing: Sequence[str], kept: bool) -> list[str]:
    """The page of results."""
    streaming, times = time_streaming(options), time_training(options)
    packages = dict.fromkeys(["torch", "transformers", "mambapy", "minGRU-pytorch", "s5-pytorch"])
    installed = [p for p in packages if p.replace("-", "_") not in missing and p not in missing]
    lines = ["# Layers on a CPU", "", *conditions(command_line(), installed)]
    lines += [f"- one layer of width {D_MODEL}, float32; medians, everyone measured in turn"]
    if kept:
        lines += ["- freed memory is kept for all of them (`linrnn.keep_memory`)"]
    lines += [f"- NOT INSTALLED, so not compared: {', '.join(missing)}"] if missing else []
    lines += ["", "## Training step", "", *section("training", training_table(times))]
    lines += section("rivals", rival_table(times))
    lines += section("products", product_table(times))
    lines += ["## Streaming step", "", *section("streaming", streaming_table(streaming))]
    return [*lines, "## Peak memory", "", *section("memory", memory_table(options))]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tiny shape: does everything run?")
    parser.add_argument("--half", action="store_true", help="training in bfloat16 by autocast")
    parser.add_argument("--skip-missing", action="store_true", help="peers may be missing")
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch (2)")
    parser.add_argument("--seconds", type=float, default=1.0, help="aimed at, a candidate (1)")
    parser.add_argument("--limit", type=float, default=10.0, help="of one call, in seconds (10)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder (benchmarks/results)")
    parser.add_argument("--memory-of", nargs=3, metavar=("LAYER", "BATCH", "TIME"), default=None,
                        help="print the bytes of one training step and stop")  # fmt: skip
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write; 1 when a peer is missing."""
    options = parse(argv)
    torch.set_num_threads(options.threads)
    if options.memory_of:
        name, batch, time = options.memory_of
        measure_memory(name, int(batch), int(time))
        return 0
    kept = keep_memory()
    if options.half:
        return report_half(options)
    missing = sorted({layer.package for layer in LAYERS.values() if layer.missing()})
    lines = report(options, missing, kept)
    print("\n".join(lines))
    write_lines(options.out / "layers-cpu.md", lines)
    if missing and not options.skip_missing:
        print(f"peers not installed: {', '.join(missing)}. `make bench-layers` installs them; "
              "--skip-missing compares without them.", file=sys.stderr)  # fmt: skip
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
