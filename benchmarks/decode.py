"""How fast language models write and read on a CPU, ours and others with the same weights.

Prints for each size the tokens a second of decoding (a model called by hand, and in transformers'
``generate``), the time to read a prompt, and the ratios; also what is to be had at most, were our
model to read its weights once and do nothing else. Everyone is measured in turn in one run.
Writes ``benchmarks/results/decode-cpu.md``. Exit code 1: a peer is not installed.
"""

import argparse
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from _decoders import BOUND, NAMES, SIZES, Decoder, bound, build, missing, our_model
from _report import RESULTS, command_line, conditions, section, table, write_lines
from _timing import Candidate, Timing, in_turn

FLOOR = 3.0  # times faster than each peer
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CHECKED = 24  # tokens of the prompt on which everyone must say the same
GENERATED = 16

Times = Mapping[str, Mapping[str, Timing]]
"""Measured times, by question and by peer."""


def check_agreement(decoders: Mapping[str, Decoder]) -> None:
    """Stop unless everyone computes the same function, of a prompt and of the token after it."""
    ids = torch.randint(64, (1, CHECKED))
    first, *others = ((d.prefill(ids), d.start(ids)()) for d in decoders.values())
    for other in others:
        for got, expected in zip(other, first, strict=True):
            size = expected.abs().max()
            torch.testing.assert_close(got / size, expected / size, rtol=0, atol=1e-3)


def measure(
    kind: str, size: str, dtype: str, options: argparse.Namespace
) -> tuple[Times, dict[str, int]]:
    """Everyone's times for one kind of model: ``step``, ``generate`` and ``prefill``."""
    decoders = build(kind, SIZES[size], DTYPES[dtype])
    if dtype == "float32":  # a large model with random weights blows any rounding up
        check_agreement(decoders)
    least = bound(our_model(kind, SIZES[size]), DTYPES[dtype])
    prompt = torch.randint(SIZES[size].vocabulary, (1, options.prompt))
    few = prompt[:, :4]
    calls = {
        "step": {n: Candidate(d.start(few)) for n, d in decoders.items()}
        | {BOUND: Candidate(least["step"])},
        "generate": {
            n: Candidate(lambda d=d: d.generate(few, GENERATED))
            for n, d in decoders.items()
            if d.generate is not None
        },
        "prefill": {n: Candidate(lambda d=d: d.prefill(prompt)) for n, d in decoders.items()}
        | {BOUND: Candidate(lambda: least["prefill"](prompt))},
    }
    times = {}
    for what, candidates in calls.items():
        times[what] = in_turn(candidates, seconds=options.seconds, limit=options.limit)
        text = ", ".join(f"{n} {t.text()}" for n, t in times[what].items())
        print(f"{size} {kind} {dtype}, {what} [ms]: {text}", file=sys.stderr, flush=True)
    return times, {n: d.parameters for n, d in decoders.items()}


def speed_rows(title: str, times: Times, counts: Mapping[str, int]) -> list[list[str]]:
    """A row a model: its parameters, tokens a second, prompt."""
    rows = []
    for name in (*counts, BOUND):
        rate = {"step": 1, "generate": GENERATED}
        cells = [
            f"{n / times[what][name].seconds:.0f}" if name in times[what] else "-"
            for what, n in rate.items()
        ]
        million = f"{counts[name] / 1e6:.1f}" if name in counts else "-"
        rows.append([f"{title}: {name}", million, *cells, times["prefill"][name].text()])
    return rows


def ratio_rows(kind: str, title: str, times: Times) -> list[list[str]]:
    """How many times longer each peer takes, judged, and how many times it could be at most."""
    ours, *others = NAMES[kind]
    rows = []
    for other in (name for name in others if name in times["step"]):
        cells = []
        for found in times.values():
            if other not in found:
                cells.append("-")
                continue
            ratio = found[other].seconds / found[ours].seconds
            judged = "met" if ratio >= FLOOR else "NOT met"
            if BOUND in found:
                judged += f", at most {found[other].seconds / found[BOUND].seconds:.1f}×"
            cells.append(f"{'>' if found[other].over else ''}{ratio:.1f}× ({judged})")
        rows.append([f"{title}: {ours} against {other}", *cells])
    return rows


def report(options: argparse.Namespace, absent: Sequence[str]) -> list[str]:
    """The page of results."""
    speeds, ratios = [], []
    for size in options.sizes:
        for kind, dtype in itertools.product(NAMES, options.dtypes):
            times, counts = measure(kind, size, dtype, options)
            title = f"{size}, {dtype}"
            speeds += speed_rows(title, times, counts)
            ratios += ratio_rows(kind, title, times)
    packages = [p for p in ("torch", "transformers", "mambapy") if p not in absent]
    lines = ["# Language models on a CPU", "", *conditions(command_line(), packages)]
    lines += ["- one sequence, the same weights; medians, everyone measured in turn"]
    lines += [f"- {BOUND}: adding up every matrix once, and for a prompt PyTorch's matrix products"]
    lines += ["- at most: how much faster than the peer a model would be that does nothing else"]
    lines += [f"- a prompt of {options.prompt} tokens; mambapy reads it without keeping a state"]
    lines += [f"- NOT INSTALLED, so not compared: {', '.join(absent)}"] if absent else []
    head = ["model", "10⁶ parameters", "tokens/s", "tokens/s in generate", "prompt [ms]"]
    lines += ["", "## Speed", "", *section("speed", table(head, speeds))]
    head = [f"times faster (≥ {FLOOR:g})", "decoding", "in generate", "prompt"]
    return [*lines, *section("ratios", table(head, ratios))]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny models: does everything run?")
    parser.add_argument("--skip-missing", action="store_true", help="peers may be missing")
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=["10M", "130M"])
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch (2)")
    parser.add_argument("--prompt", type=int, default=512, help="tokens to read (512)")
    parser.add_argument("--seconds", type=float, default=3.0, help="aimed at, a candidate (3)")
    parser.add_argument("--limit", type=float, default=120.0, help="of one call, in seconds (120)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder (benchmarks/results)")
    options = parser.parse_args(argv)
    if options.quick:
        options.sizes, options.prompt = ["tiny"], 32
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write; 1 when a peer is missing."""
    options = parse(argv)
    absent = missing()
    if "transformers" in absent:
        print("transformers is not installed. `make bench-decode` installs it.", file=sys.stderr)
        return 1
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    lines = report(options, absent)
    print("\n".join(lines))
    write_lines(options.out / "decode-cpu.md", lines)
    if absent and not options.skip_missing:
        print(f"peers not installed: {', '.join(absent)}. `make bench-decode` installs them; "
              "--skip-missing compares without them.", file=sys.stderr)  # fmt: skip
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
